"""Steps that take their time until what a case waits for has happened."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from support.pool import Fired, Pool, Script

STEP_SECONDS = 1.5
"""A node takes seconds to join, and an equally long stop would count as a hang."""


class Pace:
    """Engines held at the beginning of each of some steps, one gate a step."""

    def __init__(self, pool: Pool, script: Script, nodes: Sequence[str], steps: Iterable[int]):
        self._pool = pool
        self._script = script
        self._gates: list[Path] = []
        for step in steps:
            gate = script.gate()
            self._gates.append(gate)
            for node_id in nodes:
                hold(script, node_id, step, gate)

    def wait_for(
        self, what: str, condition: Callable[[], bool], step_seconds: float = STEP_SECONDS
    ) -> None:
        """Let step after step go until a condition holds; AssertionError if it never does."""
        while self._gates and not self._comes_true(condition, step_seconds):
            self._gates.pop(0).touch()
        self._pool.wait_for(what, condition)

    def wait_for_mark(self, line: int) -> Fired:
        """Let step after step go until a line of the script has fired."""
        what = f"line {line} of {self._script.path}"
        self.wait_for(what, lambda: self._script.fired(line) is not None)
        return self._pool.wait_for_mark(self._script, line)

    def end(self) -> None:
        """Let everybody go as fast as they can."""
        for gate in self._gates:
            gate.touch()

    def _comes_true(self, condition: Callable[[], bool], seconds: float) -> bool:
        try:
            self._pool.wait_for("the next step to go", condition, timeout=seconds)
        except AssertionError:
            return False
        return True


def hold(script: Script, node_id: str, step: int, gate: Path) -> int:
    """Hold a node's engine in a step until there is the file; returns the line."""
    return script.add(
        at="forward", step=step, action="hold", until=str(gate), engine=f"*/{node_id}/*"
    )
