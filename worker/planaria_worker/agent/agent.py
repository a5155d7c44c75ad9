"""The agent: directives from the session to the engines, what engines say to the session."""

import asyncio
import contextlib
import itertools
import secrets
import shutil
import signal
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from planaria.api.common.v1.errors_pb2 import ErrorReason as ProtoReason
from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.api.worker.v1.report_pb2 import (
    DirectiveResult,
    EngineExited,
    EngineSnapshot,
    EngineState,
    Failure,
    Stopped,
)
from planaria.api.worker.v1.worker_service_pb2 import (
    Hello,
    Leave,
    LogLines,
    Probe,
    ProbeResult,
    SessionRequest,
    SessionResponse,
    Welcome,
)
from planaria.job import JobSpec
from planaria.local.processes import boot_id
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_common.version import PROTOCOL_VERSION, package_version
from planaria_worker.agent.concurrency import in_thread
from planaria_worker.agent.engine_handle import EngineHandle
from planaria_worker.agent.engine_process import LOG_FILE, SOCKET_FILE, Launch
from planaria_worker.agent.engines import Engines
from planaria_worker.agent.host_faults import is_host_fault
from planaria_worker.agent.log_tail import last_lines
from planaria_worker.agent.machine import Machine
from planaria_worker.agent.outbox import Outbox
from planaria_worker.agent.preparation import PreparedData, prepare_data
from planaria_worker.agent.reach import find_reach
from planaria_worker.agent.settings import WorkerSettings
from planaria_worker.agent.stored_reports import StoredReports
from planaria_worker.engine_config import EngineConfig

NUM_KEPT_RESULTS = 1_000
NUM_TAIL_LINES = 20
LAST_WORDS_SECONDS = 0.25
"""Reading them may take as long before the end of an engine is reported without."""
DEFAULT_LEASE_SECONDS = 10.0
DEFAULT_PROGRESS_DEADLINE_SECONDS = 5.0
LEASES_PER_LEASE = 5
LOOKS_PER_DEADLINE = 10
MAX_PROBES = 16
"""At a time; more are not answered."""
MAX_PROBE_SECONDS = 5.0
LEAVE_SECONDS = 1.0
START_PAUSE_SECONDS = 1.0
START_TRIES = 30
"""Of an engine, while the machine lacks space, descriptors or memory."""

log = get_logger("agent")


class Agent:
    """The node's side of a session; see `session.Node`."""

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        machine: Machine,
        outbox: Outbox,
        pid: int,
        launch: Launch,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._outbox = outbox
        self._stored_reports = StoredReports()
        self._pid = pid
        self._agent_id = secrets.token_hex(8)
        self._boot_id = boot_id()
        self._lease_seconds = DEFAULT_LEASE_SECONDS
        self._progress_deadline_seconds = DEFAULT_PROGRESS_DEADLINE_SECONDS
        self._results: OrderedDict[str, DirectiveResult | None] = OrderedDict()
        self._stopping: set[str] = set()
        self._wants_to_leave = False
        self._is_drained = asyncio.Event()
        self._has_no_session = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_probes = 0
        self.engines = Engines(
            root=settings.data_dir / "engines",
            on_event=self._engine_event,
            on_exit=self._exited,
            launch=launch,
        )

    # -- what the session asks -------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            node_id=self._settings.node_id,
            agent_id=self._agent_id,
            version=package_version(),
            protocol_version=PROTOCOL_VERSION,
            advertise_address=self._settings.advertise_address,
            num_accelerators=self._machine.num_accelerators,
            accelerator_kind=self._machine.accelerator_kind,
            accelerator_memory_bytes=self._machine.memory_bytes,
            pid=self._pid,
            engines=self.snapshots(),
            boot_id=self._boot_id,
            labels=self._settings.labels,
        )

    def welcomed(self, welcome: Welcome) -> None:
        self._lease_seconds = welcome.agent_lease.ToTimedelta().total_seconds()
        if welcome.HasField("progress_deadline"):
            self._progress_deadline_seconds = welcome.progress_deadline.ToNanoseconds() / 1e9

    @property
    def wants_to_leave(self) -> bool:
        """Whether the node is to be drained."""
        return self._wants_to_leave

    def may_leave(self) -> None:
        """The node is drained."""
        if self._wants_to_leave:
            self._is_drained.set()

    def session_ended(self) -> None:
        """The coordinator ends the session when it has read that the agent leaves."""
        self._has_no_session.set()

    def snapshots(self) -> Sequence[EngineSnapshot]:
        return [handle.snapshot for handle in self.engines]

    def new_log_lines(self) -> Sequence[LogLines]:
        return [lines for handle in self.engines if (lines := _new_lines(handle)) is not None]

    async def handle(self, response: SessionResponse) -> None:
        """Act on a directive once; answer a repetition with the first result."""
        if response.HasField("reports_stored"):
            self._outbox.acknowledge(response.reports_stored.report_number)
            self._stored_reports.acknowledge(response.reports_stored.report_number)
            return
        if response.HasField("probe"):
            self._spawn(response.probe.probe_id, self._probe(response.probe))
            return
        if not response.HasField("directive"):
            return  # a newer coordinator may say more than we understand
        directive = response.directive
        if directive.directive_id in self._results:
            known = self._results[directive.directive_id]
            if known is not None:
                self._outbox.post(SessionRequest(result=known))
            return
        self._results[directive.directive_id] = None
        while len(self._results) > NUM_KEPT_RESULTS:
            self._results.popitem(last=False)
        command = directive.WhichOneof("command")
        log.debug("directive", command=command, engine_id=directive.engine_id)
        handle = self.engines.get(directive.engine_id)
        if command == "stop":
            self._spawn(directive.directive_id, self._stop(directive, handle))
        elif handle is not None:
            handle.send(directive)
        elif command == "prepare":
            self._spawn(directive.directive_id, self._prepare(directive))
        else:
            self._refuse(directive, _no_such_engine(directive, self._settings.node_id))

    async def keep_leases(self) -> None:
        """Renew the engines' leases for as long as the agent lives."""
        while True:
            for handle in self.engines:
                handle.renew_lease(self._lease_seconds)
            await asyncio.sleep(self._lease_seconds / LEASES_PER_LEASE)

    async def end_silent_engines(self) -> None:
        """Kill engines that say nothing: stopped, or stuck with all their threads.

        The rest follows from the end of the process. An engine that starts may be silent: imports
        keep all its threads busy.
        """
        while True:
            await asyncio.sleep(self._progress_deadline_seconds / LOOKS_PER_DEADLINE)
            for handle in self.engines:
                starts = handle.snapshot.state == EngineState.ENGINE_STATE_STARTING
                if handle.count_silence() > LOOKS_PER_DEADLINE and not starts:
                    log.warning("engine_silent", engine_id=handle.engine_id)
                    handle.process.signal(signal.SIGKILL)

    async def _probe(self, probe: Probe) -> None:
        """Say whether another machine answers; nobody waits for long for one answer of several."""
        if self._num_probes >= MAX_PROBES:
            return
        self._num_probes += 1
        try:
            seconds = min(probe.timeout.ToNanoseconds() / 1e9, MAX_PROBE_SECONDS)
            reach = await in_thread(find_reach, list(probe.addresses), seconds)
        finally:
            self._num_probes -= 1
        result = ProbeResult(probe_id=probe.probe_id, reach=reach)
        self._outbox.post(SessionRequest(probe_result=result))

    # -- the agent's end ---------------------------------------------------------------------------

    async def drain(self) -> None:
        """Have the jobs hand over what they have on the node, and wait until they have."""
        self._wants_to_leave = True
        if list(self.engines):
            await self._is_drained.wait()

    async def leave(self) -> None:
        """End the engines, and tell the coordinator that they and the agent are gone."""
        self._stopping.update(handle.engine_id for handle in self.engines)
        await self.engines.stop_all()
        self._has_no_session.clear()
        self._outbox.post(SessionRequest(leave=Leave()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_no_session.wait(), LEAVE_SECONDS)

    # -- directives that are the agent's own ------------------------------------------------------

    async def _prepare(self, directive: Directive) -> None:
        """Start an engine; where the machine lacks something, wait a while for it."""
        for num_tries in itertools.count(1):
            try:
                await self._start_engine(directive)
                return
            except Exception as error:  # whatever it was, the coordinator must hear of it
                if not is_host_fault(error):
                    self._cannot_prepare(directive, error, ErrorReason.ENGINE_FAILED)
                    return
                if num_tries == START_TRIES:
                    self._cannot_prepare(directive, error, ErrorReason.UNAVAILABLE)
                    return
                log.warning("start_waits", engine_id=directive.engine_id, cause=str(error))
            await asyncio.sleep(START_PAUSE_SECONDS)

    async def _start_engine(self, directive: Directive) -> None:
        data = await in_thread(
            prepare_data,
            directive.prepare.job_spec,
            self._settings.data_dir / "data",
            self._settings.node_id,
        )
        folder = await in_thread(self.engines.new_folder, directive.engine_id)
        try:
            await self.engines.start(folder, self._engine_config(directive, data, folder))
        except Exception:
            await in_thread(shutil.rmtree, folder, ignore_errors=True)
            raise

    def _cannot_prepare(self, directive: Directive, error: Exception, reason: ErrorReason) -> None:
        if isinstance(error, PlanariaError) and reason is not ErrorReason.UNAVAILABLE:
            self._refuse(directive, error)
            return
        log.error("prepare_failed", engine_id=directive.engine_id, exc_info=error)
        detail = f"{type(error).__name__}: {error}"
        self._refuse(directive, _cannot_start(self._settings.node_id, detail, reason))

    def _engine_config(
        self, directive: Directive, data: PreparedData, folder: Path
    ) -> EngineConfig:
        prepare = directive.prepare
        resilience = JobSpec.model_validate_json(prepare.job_spec).resilience
        return EngineConfig(
            protocol_version=PROTOCOL_VERSION,
            engine_id=directive.engine_id,
            job_id=directive.job_id,
            generation=directive.generation,
            prepare_directive_id=directive.directive_id,
            job_spec=prepare.job_spec,
            job_secret=prepare.job_secret,
            accelerator=prepare.accelerator,
            accelerator_kind=self._machine.accelerator_kind,
            transport=self._machine.transport,
            advertise_address=self._settings.advertise_address,
            socket_path=str(folder / SOCKET_FILE),
            data_path=str(data.path),
            data_digest=data.digest,
            evaluation_data_path=str(data.evaluation_path or ""),
            initial_path=prepare.initial_state.path,
            initial_step=prepare.initial_state.step,
            initial_sha256=prepare.initial_state.sha256.hex(),
            initial_tokens=prepare.initial_state.num_tokens,
            forward_flops=tuple(prepare.forward_flops),
            lease_seconds=self._lease_seconds,
            unreachable_timeout_seconds=resilience.unreachable_timeout_seconds,
            progress_deadline_seconds=self._progress_deadline_seconds,
            log_level=self._settings.log_level,
        )

    async def _stop(self, directive: Directive, handle: EngineHandle | None) -> None:
        if handle is not None:
            self._stopping.add(handle.engine_id)
            log.info("engine_stopping", engine_id=handle.engine_id, cause=directive.stop.reason)
            await self.engines.stop(handle, directive)
        self._answer(_result(directive, stopped=Stopped()))

    # -- what engines say --------------------------------------------------------------------------

    def _engine_event(self, handle: EngineHandle, event: EngineEvent) -> None:
        kind = event.WhichOneof("message")
        if kind == "result":
            if not event.result.HasField("stopped"):  # answered when the process has ended
                self._answer(event.result)
        elif kind == "link_failed":
            self._outbox.post(SessionRequest(link_failed=event.link_failed))
        elif kind == "fault":
            log.warning(
                "engine_fault", engine_id=handle.engine_id, cause=event.fault.failure.message
            )
            self._outbox.post(SessionRequest(engine_fault=event.fault))
        elif kind == "step_report":
            self._report(handle, event, SessionRequest(step_report=event.step_report))
        elif kind == "checkpoint_report":
            report = SessionRequest(checkpoint_report=event.checkpoint_report)
            self._report(handle, event, report)

    def _report(self, handle: EngineHandle, event: EngineEvent, request: SessionRequest) -> None:
        self._outbox.report(request)
        self._stored_reports.note(request.report_number, handle, event.report_number)

    async def _exited(self, handle: EngineHandle, exit_code: int | None) -> None:
        """Pass on what the engine wrote last, if it can be read soon, and that it has ended."""
        exited = EngineExited(
            job_id=handle.config.job_id, engine_id=handle.engine_id, exit_code=exit_code
        )
        exited.detect_time.GetCurrentTime()
        was_stopped = handle.engine_id in self._stopping
        self._stopping.discard(handle.engine_id)
        if not was_stopped:
            self._note_unprepared(handle)
        with contextlib.suppress(OSError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                lines, exited.log_tail[:] = await in_thread(_last_words, handle)
                if lines is not None:
                    self._outbox.post(SessionRequest(log_lines=lines))
        if not was_stopped:
            self._outbox.post(SessionRequest(engine_exited=exited))

    def _note_unprepared(self, handle: EngineHandle) -> None:
        """Should the coordinator ask again for an engine that ended before it was ready, say so."""
        directive_id = handle.config.prepare_directive_id
        if directive_id in self._results and self._results[directive_id] is None:
            self._results[directive_id] = DirectiveResult(
                directive_id=directive_id,
                job_id=handle.config.job_id,
                failure=_failure(_cannot_start(self._settings.node_id, "its process ended")),
            )

    # -- results -----------------------------------------------------------------------------------

    def _answer(self, result: DirectiveResult) -> None:
        self._results[result.directive_id] = result
        self._outbox.post(SessionRequest(result=result))

    def _refuse(self, directive: Directive, error: PlanariaError) -> None:
        self._answer(_result(directive, failure=_failure(error)))

    def _spawn(self, directive_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Act in the background; a directive that was not carried out may come again."""

        def note_end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("task_failed", directive_id=directive_id, exc_info=error)
                self._results.pop(directive_id, None)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(note_end)


def _result(directive: Directive, **outcome: Any) -> DirectiveResult:
    return DirectiveResult(
        directive_id=directive.directive_id,
        job_id=directive.job_id,
        **outcome,
    )


def _failure(error: PlanariaError) -> Failure:
    return Failure(
        reason=ProtoReason.Value(f"ERROR_REASON_{error.reason}"),
        message=error.message,
        metadata=error.metadata,
    )


def _new_lines(handle: EngineHandle) -> LogLines | None:
    lines = handle.tail.new_lines()
    if not lines:
        return None
    message = LogLines(job_id=handle.config.job_id, engine_id=handle.engine_id, lines=lines)
    message.read_time.GetCurrentTime()
    return message


def _last_words(handle: EngineHandle) -> tuple[LogLines | None, list[str]]:
    return _new_lines(handle), last_lines(handle.folder / LOG_FILE, NUM_TAIL_LINES)


def _no_such_engine(directive: Directive, node_id: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.ENGINE_FAILED,
        f"node {node_id} has no engine {directive.engine_id}",
        {"node_id": node_id, "detail": "no such engine"},
    )


def _cannot_start(
    node_id: str, detail: str, reason: ErrorReason = ErrorReason.ENGINE_FAILED
) -> PlanariaError:
    return PlanariaError(
        reason,
        f"node {node_id} cannot start an engine: {detail}",
        {"node_id": node_id, "detail": detail},
    )
