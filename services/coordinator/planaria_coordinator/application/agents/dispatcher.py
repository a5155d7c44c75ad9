"""Directives on their way: kept until they have a result, sent again when an agent connects."""

from collections.abc import Iterable
from typing import Protocol

from planaria_coordinator.application.agents.agent_messages import Probe
from planaria_coordinator.domain.engines.directive import Directive


class Wire(Protocol):
    """An open session with an agent."""

    def send(self, directive: Directive) -> None:
        """Queue a directive; never blocks and never fails."""
        ...

    @property
    def unstored_report(self) -> int:
        """Number of the last report that came; 0 when it has been acknowledged."""
        ...

    def acknowledge(self, report_number: int) -> None:
        """Say that the reports up to this one are stored; never blocks and never fails."""
        ...

    def echo(self) -> None:
        """Ask for a heartbeat at once; never blocks and never fails."""
        ...

    def probe(self, probe: Probe) -> None:
        """Ask whether the node reaches another one; never blocks and never fails."""
        ...

    def end(self) -> None:
        """Let the session end."""
        ...


class Dispatcher:
    """Hands directives to the sessions of their nodes.

    What was sent is in the database already. A directive reaches an agent at least once for as long
    as it is pending; that it takes effect at most once is the agent's and the engine's affair, who
    know it by its id.
    """

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, Directive]] = {}
        self._nodes: dict[str, str] = {}
        self._wires: dict[str, Wire] = {}

    def attach(self, node_id: str, wire: Wire) -> None:
        """Send to this session from now on, beginning with all that has no result yet."""
        self._wires[node_id] = wire
        for directive in tuple(self._pending.get(node_id, {}).values()):
            wire.send(directive)

    def detach(self, node_id: str, wire: Wire) -> None:
        """Forget a session, unless another one has taken its place."""
        if self._wires.get(node_id) is wire:
            del self._wires[node_id]

    def send(self, directive: Directive) -> None:
        """Send now, or when the agent connects."""
        self._pending.setdefault(directive.node_id, {})[directive.id] = directive
        self._nodes[directive.id] = directive.node_id
        wire = self._wires.get(directive.node_id)
        if wire is not None:
            wire.send(directive)

    def forget(self, directive_ids: Iterable[str]) -> None:
        """These have a result, or mean nothing any more."""
        for directive_id in directive_ids:
            node_id = self._nodes.pop(directive_id, None)
            if node_id is not None:
                del self._pending[node_id][directive_id]
