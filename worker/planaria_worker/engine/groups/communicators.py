"""Building the groups of one generation, on all engines alike, interruptible at any moment.

communicators.start(specs, ..., when_standing=...)   # returns at once
groups = communicators.wait()                        # here or in another thread
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import torch

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.priority import come_first
from planaria_worker.engine.groups.backends import Connector, open_connector
from planaria_worker.engine.groups.errors import GroupBroken
from planaria_worker.engine.groups.group import Group
from planaria_worker.engine.groups.rendezvous import Rendezvous
from planaria_worker.engine.plan.plan_view import GroupSpec
from planaria_worker.engine.process.failpoints import Failpoints
from planaria_worker.engine_config import Transport

_GRACE_SECONDS = 1.0
"""The building thread bounds itself; this much later it is taken to be stuck and left behind."""


class Communicators:
    """The groups of one generation. Built once, in a thread of its own; shut by any thread."""

    def __init__(
        self,
        *,
        engine_id: str,
        host: str,
        device: torch.device,
        transport: Transport,
        operation_timeout_seconds: float,
        failpoints: Failpoints,
    ) -> None:
        """Prepares an empty set.

        Args:
            engine_id: this engine, among the members of each group.
            host: address on which peers connect.
            device: where the tensors are, but for groups that are on the host.
            transport: what moves them; the same on all engines.
            operation_timeout_seconds: bound of every wait, the last resort: whoever learns of a
                loss shuts the groups long before.
            failpoints: hit at `rebuild`, between meeting the peers and connecting to them.
        """
        self._engine_id = engine_id
        self._host = host
        self._device = device
        self._transport = transport
        self._operation_timeout_seconds = operation_timeout_seconds
        self._failpoints = failpoints
        self._lock = threading.Lock()
        self._shut = threading.Event()
        self._groups: dict[str, Group] = {}
        self._connectors: list[Connector] = []
        self._outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._deadline = 0.0
        self._prefix = ""

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups that stand, by name."""
        return MappingProxyType(self._groups)

    def adopt(self, groups: Mapping[str, Group]) -> None:
        """Takes over groups of an earlier generation, by the names they have in this one."""
        self._groups.update(groups)

    def build(
        self, specs: Sequence[GroupSpec], *, store_address: str, prefix: str, timeout_seconds: float
    ) -> Mapping[str, Group]:
        """Makes groups and waits until they stand: `start`, then `wait`."""
        self.start(
            specs, store_address=store_address, prefix=prefix, timeout_seconds=timeout_seconds
        )
        return self.wait()

    def start(
        self,
        specs: Sequence[GroupSpec],
        *,
        store_address: str,
        prefix: str,
        timeout_seconds: float,
        when_over: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Begins to make the groups with more than one member that this engine belongs to.

        Those that were adopted stand already.

        Args:
            specs: the same order on all engines, or they wait for each other; names are unique.
            store_address: rendezvous store of an engine that is alive.
            prefix: put before every key in the store; one per job and generation.
            timeout_seconds: how long all of it may take.
            when_over: called from another thread when the groups stand, with None, or when they
                do not, with what `wait` raises.
        """
        mine = [
            spec
            for spec in specs
            if self._engine_id in spec.members
            and len(spec.members) > 1
            and spec.name not in self._groups
        ]
        self._deadline = time.monotonic() + timeout_seconds
        self._prefix = prefix
        # A thread that can be left behind: neither the store's client nor gloo can be interrupted
        # while they connect to a process that is stopped.
        threading.Thread(
            target=self._run,
            args=(mine, store_address, prefix, self._deadline, when_over),
            name="build-groups",
            daemon=True,
        ).start()

    @property
    def is_over(self) -> bool:
        """Whether nobody would have to wait; how it ended, `wait` says."""
        return not self._outcome.empty()

    def wait(self) -> Mapping[str, Group]:
        """Returns the groups by name, once they all stand.

        Raises:
            GroupBroken: `shut` was called meanwhile.
            UnavailableError: a peer or the store did not answer in time; names them. All groups are
                shut.
        """
        seconds = max(self._deadline - time.monotonic(), 0.0) + _GRACE_SECONDS
        try:
            failure = self._outcome.get(timeout=seconds)
        except queue.Empty:
            failure = _unavailable("nothing happened in time", {})
        if failure is None and self._shut.is_set():
            failure = _interrupted()
        self._outcome.put(failure)  # for whoever waits after this one
        if failure is not None:
            self.shut()
            raise failure
        return self.groups

    def shut(self, reason: str = "shut", *, keeping: Collection[str] = ()) -> None:
        """Shuts all groups but those that were set aside, also those that are being built.

        Any thread, idempotent, at once.

        Args:
            reason: why; who is blocked in a group is told.
            keeping: names of groups that go on.
        """
        with self._lock:
            self._shut.set()
            connectors, self._connectors = self._connectors, []
            groups = [group for name, group in self._groups.items() if name not in keeping]
        self._outcome.put(_interrupted())
        for group in groups:
            group.give_up(reason)
        for connector in connectors:
            connector.cut()

    def _run(
        self,
        specs: Sequence[GroupSpec],
        store_address: str,
        prefix: str,
        deadline: float,
        when_over: Callable[[Exception | None], None] | None,
    ) -> None:
        come_first()
        failure: Exception | None = None
        try:
            self._build(specs, store_address, prefix, deadline)
        except (OSError, RuntimeError) as error:  # so do torch and gloo say that nobody came
            reason = str(error).partition("\n")[0]
            failure = _unavailable(reason, {"reason": reason})
        except Exception as error:
            failure = error.with_traceback(None)  # which would keep what was opened
        if self._shut.is_set():
            failure = _interrupted()
        try:
            if when_over is not None:
                when_over(failure)
        finally:
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
            self._transport,
            self._device,
            self._host,
            is_line=spec.is_line,
            is_downward=spec.is_downward,
            is_brief=spec.is_brief,
            is_on_host=spec.is_on_host,
            operation_timeout_seconds=self._operation_timeout_seconds,
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
            group_id=f"{self._prefix}{spec.name}",
            name=spec.name,
            members=spec.members,
            is_line=spec.is_line,
            is_brief=spec.is_brief,
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
            raise _interrupted()


def _address_key(spec: GroupSpec, rank: int) -> str:
    return f"{spec.name}/address/{rank}"


def _seconds_left(deadline: float) -> float:
    """At least a little: gloo takes 0 for no bound at all."""
    return max(deadline - time.monotonic(), 0.1)


def _interrupted() -> GroupBroken:
    return GroupBroken("the groups were shut while they were built")


def _unavailable(what: str, metadata: Mapping[str, str]) -> PlanariaError:
    return PlanariaError(
        ErrorReason.UNAVAILABLE, f"communicators could not be built: {what}", metadata
    )
