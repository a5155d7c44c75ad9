"""Builds the groups of one generation; any thread can end it at any time.

communicators.start(specs, ..., when_over=...)   # returns at once
groups = communicators.wait()                    # here or in another thread
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.priority import come_first
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups.data_parallel_group import DataParallelGroup
from planaria_worker.engine.groups.group import Group, GroupBroken
from planaria_worker.engine.groups.group_spec import GroupSpec
from planaria_worker.engine.groups.pipeline_link import PipelineLink
from planaria_worker.engine.groups.rendezvous import Rendezvous
from planaria_worker.engine.groups.transport.backends import Connector
from planaria_worker.engine.groups.transport.choice import open_connector
from planaria_worker.engine_config import Transport

_GRACE_SECONDS = 1.0
"""The building thread bounds itself; this much later it is assumed to be stuck and abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of a generation that are ready, by name."""

    links: Mapping[str, PipelineLink]
    data_parallel: Mapping[str, DataParallelGroup]

    @property
    def all(self) -> tuple[Group[Any], ...]:
        return *self.links.values(), *self.data_parallel.values()


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
        """Prepare an empty set.

        Args:
            engine_id: this engine, among the members of each group.
            host: address on which peers connect.
            device: of the tensors, except for groups in host memory.
            transport: what moves the tensors; the same on all engines.
            operation_timeout_seconds: bound of every wait, as a last resort: an engine that learns
                of a lost peer shuts the groups long before.
            failpoints: hit at `rebuild`, after all peers have met and before they connect.
        """
        self._engine_id = engine_id
        self._host = host
        self._device = device
        self._transport = transport
        self._operation_timeout_seconds = operation_timeout_seconds
        self._failpoints = failpoints
        self._lock = threading.Lock()
        self._shut = threading.Event()
        self._links: dict[str, PipelineLink] = {}
        self._data_parallel: dict[str, DataParallelGroup] = {}
        self._connectors: list[Connector[Any]] = []
        self._outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._is_built = False
        self._deadline = 0.0
        self._prefix = ""

    @property
    def groups(self) -> Groups:
        """The groups that are ready."""
        with self._lock:
            return Groups(links=dict(self._links), data_parallel=dict(self._data_parallel))

    def adopt(self, groups: Mapping[str, DataParallelGroup]) -> None:
        """Take over groups of an earlier generation, by the names they have in this one."""
        self._data_parallel.update(groups)

    def build(
        self, specs: Sequence[GroupSpec], *, store_address: str, prefix: str, timeout_seconds: float
    ) -> Groups:
        """Build groups and wait until they are ready: `start`, then `wait`."""
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
        """Start to build the groups with more than one member that this engine belongs to.

        Those that were adopted are ready already.

        Args:
            specs: in the same order on all engines, or they wait for each other; with unique names.
            store_address: of the rendezvous store of an engine that is alive.
            prefix: of every key in the store; one for each job and generation.
            timeout_seconds: how long the whole build may take.
            when_over: called from another thread: with None when the groups are ready, else with
                what `wait` raises.
        """
        mine = [
            spec
            for spec in specs
            if self._engine_id in spec.members
            and len(spec.members) > 1
            and spec.name not in self._data_parallel
        ]
        self._deadline = time.monotonic() + timeout_seconds
        self._prefix = prefix
        # A thread that can be abandoned: neither the store's client nor gloo can be interrupted
        # while they connect to a process that is stopped.
        threading.Thread(
            target=self._run,
            args=(mine, store_address, prefix, self._deadline, when_over),
            name="build-groups",
            daemon=True,
        ).start()

    @property
    def is_built(self) -> bool:
        """Whether all groups were ready before anybody shut them."""
        return self._is_built

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return not self._outcome.empty()

    def wait(self) -> Groups:
        """Return the groups, once all are ready.

        Raises:
            GroupBroken: `shut` was called.
            UnavailableError: a peer or the store did not answer in time; the message names them.
                All groups are shut.
        """
        seconds = max(self._deadline - time.monotonic(), 0.0) + _GRACE_SECONDS
        try:
            failure = self._outcome.get(timeout=seconds)
        except queue.Empty:
            failure = _unavailable("timed out", {})
        if failure is None and self._shut.is_set():
            failure = _interrupted()
        self._outcome.put(failure)  # for the next call
        if failure is not None:
            self.shut()
            raise failure
        return self.groups

    def shut(self, reason: str = "shut", *, keeping: Collection[Group[Any]] = ()) -> None:
        """Shut all groups that are not retained, also those that are being built.

        Any thread, idempotent, without waiting.

        Args:
            reason: why; the error of a thread that is blocked in a group carries it.
            keeping: groups that stay open.
        """
        with self._lock:
            self._shut.set()
            connectors, self._connectors = self._connectors, []
            groups: list[Group[Any]] = [*self._links.values(), *self._data_parallel.values()]
        self._outcome.put(_interrupted())
        for group in groups:
            if group not in keeping:
                group.shut_unless_retained(reason)
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
        except (
            OSError,
            RuntimeError,
        ) as error:  # as torch and gloo report a peer that did not come
            reason = str(error).partition("\n")[0]
            failure = _unavailable(reason, {"reason": reason})
        except Exception as error:
            failure = error.with_traceback(None)  # a traceback would keep what was opened
        if self._shut.is_set():
            failure = _interrupted()
        self._is_built = failure is None
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

    def _open(self, spec: GroupSpec, rendezvous: Rendezvous) -> Connector[Any]:
        connector = open_connector(
            spec.kind,
            transport=self._transport,
            device=self._device,
            host=self._host,
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
        """Wait until all members of all groups have published, so that connecting takes no time."""
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
        connector: Connector[Any],
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
        make: type[PipelineLink | DataParallelGroup] = (
            PipelineLink if spec.kind.is_link else DataParallelGroup
        )
        group = make(
            group_id=f"{self._prefix}{spec.name}",
            spec=spec,
            rank=rank,
            backend=backend,
            timeout_seconds=self._operation_timeout_seconds,
        )
        with self._lock:
            if not self._shut.is_set():
                self._add(group)
                self._connectors.remove(connector)
                return
        group.shut()
        self._require_open()

    def _add(self, group: PipelineLink | DataParallelGroup) -> None:
        if isinstance(group, PipelineLink):
            self._links[group.name] = group
        else:
            self._data_parallel[group.name] = group

    def _require_open(self) -> None:
        if self._shut.is_set():
            raise _interrupted()


def _address_key(spec: GroupSpec, rank: int) -> str:
    return f"{spec.name}/address/{rank}"


def _seconds_left(deadline: float) -> float:
    """Seconds left, never 0: gloo takes 0 for no bound."""
    return max(deadline - time.monotonic(), 0.1)


def _interrupted() -> GroupBroken:
    return GroupBroken("the groups were shut while they were being built")


def _unavailable(what: str, metadata: Mapping[str, str]) -> PlanariaError:
    return PlanariaError(
        ErrorReason.UNAVAILABLE, f"communicators could not be built: {what}", metadata
    )
