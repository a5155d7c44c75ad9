"""Building the groups of one generation, on all engines alike, interruptible at any moment."""

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.communication.backends import Connector, open_connector
from planaria_worker.engine.communication.errors import GroupBroken
from planaria_worker.engine.communication.group import Group
from planaria_worker.engine.communication.store import Rendezvous
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.plan_view import GroupSpec

_GRACE_SECONDS = 1.0
"""The building thread bounds itself; this much later it is taken to be stuck and left behind."""


class Communicators:
    """The groups of one generation. Built once by the training thread, shut once by any thread."""

    def __init__(
        self,
        *,
        engine_id: str,
        host: str,
        device: torch.device,
        operation_timeout_seconds: float,
        failpoints: Failpoints,
    ) -> None:
        """Prepares an empty set.

        Args:
            engine_id: this engine, among the members of each group.
            host: address on which peers connect.
            device: its kind chooses gloo or NCCL.
            operation_timeout_seconds: bound of every wait, the last resort: whoever learns of a
                loss shuts the groups long before.
            failpoints: hit at `rebuild`, between meeting the peers and connecting to them.
        """
        self._engine_id = engine_id
        self._host = host
        self._device = device
        self._operation_timeout_seconds = operation_timeout_seconds
        self._failpoints = failpoints
        self._lock = threading.Lock()
        self._shut = threading.Event()
        self._groups: dict[str, Group] = {}
        self._connectors: list[Connector] = []
        self._outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups that stand, by name."""
        return MappingProxyType(self._groups)

    def build(
        self, specs: Sequence[GroupSpec], *, store_address: str, prefix: str, timeout_seconds: float
    ) -> Mapping[str, Group]:
        """Makes the groups with more than one member that this engine belongs to.

        Args:
            specs: the same order on all engines, or they wait for each other; names are unique.
            store_address: rendezvous store of an engine that is alive.
            prefix: put before every key in the store; one per job and generation.
            timeout_seconds: how long all of it may take.

        Returns:
            The groups by name.

        Raises:
            GroupBroken: `shut` was called meanwhile.
            UnavailableError: a peer or the store did not answer in time; names them. All groups are
                shut.
        """
        mine = [s for s in specs if self._engine_id in s.members and len(s.members) > 1]
        # A thread that can be left behind: neither the store's client nor gloo can be interrupted
        # while they connect to a process that is stopped.
        threading.Thread(
            target=self._run,
            args=(mine, store_address, prefix, time.monotonic() + timeout_seconds),
            name="build-groups",
            daemon=True,
        ).start()
        try:
            failure = self._outcome.get(timeout=timeout_seconds + _GRACE_SECONDS)
        except queue.Empty:
            failure = _unavailable(f"nothing happened within {timeout_seconds:g} s", {})
        if failure is not None:
            self.shut()
            raise failure
        return self.groups

    def shut(self, reason: str = "shut") -> None:
        """Shuts all groups, also those that are being built. Any thread, idempotent, at once."""
        with self._lock:
            self._shut.set()
            connectors, self._connectors = self._connectors, []
            groups = list(self._groups.values())
        self._outcome.put(GroupBroken("the groups were shut while they were built"))
        for group in groups:
            group.shut(reason)
        for connector in connectors:
            connector.cut()

    def _run(
        self, specs: Sequence[GroupSpec], store_address: str, prefix: str, deadline: float
    ) -> None:
        failure: Exception | None = None
        try:
            self._build(specs, store_address, prefix, deadline)
        except (OSError, RuntimeError) as error:  # so do torch and gloo say that nobody came
            reason = str(error).partition("\n")[0]
            failure = _unavailable(reason, {"reason": reason})
        except Exception as error:
            failure = error
        self._outcome.put(failure)

    def _build(
        self, specs: Sequence[GroupSpec], store_address: str, prefix: str, deadline: float
    ) -> None:
        if not specs:
            return
        rendezvous = Rendezvous.connect(
            store_address, prefix, timeout_seconds=_seconds_left(deadline)
        )
        connectors = [self._open(spec, rendezvous) for spec in specs]
        addresses = self._meet(specs, rendezvous, deadline)
        self._failpoints.hit("rebuild")
        for spec, connector in zip(specs, connectors, strict=True):
            self._connect(spec, connector, rendezvous, addresses, deadline)

    def _open(self, spec: GroupSpec, rendezvous: Rendezvous) -> Connector:
        connector = open_connector(
            self._device, self._host, operation_timeout_seconds=self._operation_timeout_seconds
        )
        with self._lock:
            self._require_open()
            self._connectors.append(connector)
        rendezvous.publish(_address_key(spec, spec.rank(self._engine_id)), connector.address)
        return connector

    def _meet(
        self, specs: Sequence[GroupSpec], rendezvous: Rendezvous, deadline: float
    ) -> Mapping[str, str]:
        """Waits until every member of every group is there, so that connecting takes no time."""
        members = {
            _address_key(spec, rank): engine_id
            for spec in specs
            for rank, engine_id in enumerate(spec.members)
        }
        addresses = rendezvous.gather(list(members), deadline=deadline, interrupted=self._shut)
        missing = sorted({members[key] for key in members.keys() - addresses.keys()})
        if missing:
            names = ", ".join(missing)
            raise _unavailable(f"{names} did not come in time", {"missing": names})
        return addresses

    def _connect(
        self,
        spec: GroupSpec,
        connector: Connector,
        rendezvous: Rendezvous,
        addresses: Mapping[str, str],
        deadline: float,
    ) -> None:
        rank = spec.rank(self._engine_id)
        backend = connector.connect(
            rendezvous.scoped(f"{spec.name}/"),
            rank,
            [addresses[_address_key(spec, member)] for member in range(len(spec.members))],
            timeout_seconds=_seconds_left(deadline),
        )
        group = Group(
            name=spec.name,
            members=spec.members,
            rank=rank,
            backend=backend,
            timeout_seconds=self._operation_timeout_seconds,
        )
        with self._lock:
            if not self._shut.is_set():
                self._groups[spec.name] = group
                self._connectors.remove(connector)
                return
        group.shut()
        self._require_open()

    def _require_open(self) -> None:
        if self._shut.is_set():
            raise GroupBroken("the groups were shut while they were built")


def _address_key(spec: GroupSpec, rank: int) -> str:
    return f"{spec.name}/address/{rank}"


def _seconds_left(deadline: float) -> float:
    """At least a little: gloo takes 0 for no bound at all."""
    return max(deadline - time.monotonic(), 0.1)


def _unavailable(what: str, metadata: Mapping[str, str]) -> PlanariaError:
    return PlanariaError(
        ErrorReason.UNAVAILABLE, f"communicators could not be built: {what}", metadata
    )
