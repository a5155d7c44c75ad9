"""Carries out the coordinator's directives and answers them; each takes effect once."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from google.protobuf.message import Message

from planaria.api.worker.v1.directive_pb2 import Directive, Quiesce
from planaria.api.worker.v1.report_pb2 import (
    CheckpointDiscarded,
    CheckpointSealed,
    CheckpointTaken,
    Copied,
    Digested,
    DirectiveResult,
    Exported,
    Failure,
    FenceReport,
    HeldLayer,
    IdleGroup,
    LayerDigest,
    RolledForward,
    Stopped,
)
from planaria_common.clock import Clock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_common.priority import stand_back
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError, StaleGenerationError
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.layers.copy import CopyInterrupted, CopyServer, LayerFetcher
from planaria_worker.engine.layers.layer_tasks import LayerTasks
from planaria_worker.engine.process import convert
from planaria_worker.engine.recovery.plan_request import Activated, Answer
from planaria_worker.engine.recovery.staging import Staged
from planaria_worker.engine.step.training_context import EngineResources
from planaria_worker.engine.telemetry import Vitals
from planaria_worker.engine.training.trainer import Trainer

_NUM_REMEMBERED = 1024

_log = get_logger("directives")


class Directives:
    """Carries out directives; `handle` is called on the control thread and waits for nothing."""

    def __init__(
        self,
        *,
        job_secret: str,
        resources: EngineResources,
        trainer: Trainer,
        layer_tasks: LayerTasks,
        checkpointer: Checkpointer,
        copy_server: CopyServer,
        vitals: Vitals,
        answer: Callable[[DirectiveResult], None],
        stop: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._job_secret = job_secret
        self._fence = resources.fence
        self._trainer = trainer
        self._layer_tasks = layer_tasks
        self._checkpointer = checkpointer
        self._copy_server = copy_server
        self._store = resources.store
        self._stopwatch = resources.stopwatch
        self._vitals = vitals
        self._answer = answer
        self._stop = stop
        self._clock = clock
        self._failpoints = resources.failpoints
        self._lock = threading.Lock()
        self._results: OrderedDict[str, DirectiveResult | None] = OrderedDict()
        self._fetchers: dict[LayerFetcher, int] = {}
        self._handlers: dict[str, Callable[[Directive], None]] = {
            "quiesce": self._quiesce,
            "roll_forward": self._roll_forward,
            "copy": self._copy,
            "activate": self._activate,
            "stage_plan": self._stage_plan,
            "switch": self._switch,
            "digest_layers": self._digest,
            "export": self._export,
            "write_checkpoint": self._write_checkpoint,
            "seal_checkpoint": self._seal_checkpoint,
            "discard_checkpoint": self._discard_checkpoint,
            "stop": self._stop_engine,
        }

    def handle(self, directive: Directive) -> None:
        """Begin to carry out a directive; answer a repetition with the first result."""
        with self._lock:
            if directive.directive_id in self._results:
                result = self._results[directive.directive_id]
                is_new = False
            else:
                self._results[directive.directive_id] = result = None
                is_new = True
                while len(self._results) > _NUM_REMEMBERED:
                    self._results.popitem(last=False)
        if is_new:
            self._guarded(directive, lambda: self._begin(directive))
        elif result is not None:
            self._answer(result)

    def fence_itself(self) -> bool:
        """Sum, commit and serve nothing until the coordinator's next fence: the agent is away.

        The layers stay as they are. Returns whether there are any.
        """
        reason = "its agent is away for longer than the lease"
        self._copy_server.suspend()
        self._trainer.fence_itself(reason)
        self._interrupt_copies(self._fence.newest + 1)
        return bool(self._store.held())

    def _begin(self, directive: Directive) -> None:
        kind = directive.WhichOneof("command") or "nothing"
        _log.info("directive", command=kind, generation=directive.generation)
        handler = self._handlers.get(kind)
        if handler is None:
            raise PlanariaError(
                ErrorReason.INVALID_ARGUMENT, f"an engine cannot {kind}", {"field": "command"}
            )
        self._fence.see(directive.generation)
        self._trainer.handover.unstage(directive.generation)
        handler(directive)

    def _quiesce(self, directive: Directive) -> None:
        fence_time = self._clock.now()
        generation, quiesce = directive.generation, directive.quiesce
        reason = f"fenced by generation {generation}"
        self._copy_server.resume()
        self._trainer.handover.unstage(
            generation + 1
        )  # an engine that is to stop switches to nothing
        if quiesce.mode == Quiesce.MODE_AT_COMMIT:
            self._fence.fence_at_commit(generation)
            when_true = self._fence.when_idle
        else:
            self._fence.fence(generation)
            goes_on = False
            if quiesce.mode == Quiesce.MODE_FENCE:
                goes_on = self._trainer.end_commit_attempts(quiesce.lost_engine_ids, reason)
            else:
                self._trainer.halt(reason)
            when_true = self._fence.when_settled if goes_on else self._fence.when_halted
        self._interrupt_copies(generation)
        # A commit that was decided is in the layers first.
        when_true(lambda: self._report_fence(directive, fence_time))

    def _report_fence(self, directive: Directive, fence_time: datetime) -> None:
        """Report what is here; until a new plan is activated, nothing is summed or committed."""
        self._trainer.report_held_step()
        committed_steps, last = self._vitals.committed_steps, self._trainer.last_commit
        progress, retained_work = self._trainer.progress, self._trainer.retained_work
        is_in_flight = progress.step == committed_steps
        report = FenceReport(
            committed_steps=committed_steps,
            last_commit=None if last is None else last.to_proto(),
            layers=self._held_layers(),
            finished_microbatches=list(progress.finished) if is_in_flight else (),
            step_compute_seconds=progress.compute_seconds if is_in_flight else 0.0,
            fence_time=convert.timestamp(fence_time),
            idle_groups=[
                IdleGroup(id=group.group_id, size=group.size) for group in self._trainer.idle_groups
            ],
            microbatch_seconds=progress.usual_microbatch_seconds,
        )
        if retained_work is None:
            report.park_time.CopyFrom(convert.timestamp(max(fence_time, self._trainer.park_time)))
        else:
            report.applied_generation = retained_work.generation
            report.kept_microbatches.extend(retained_work.kept(committed_steps))
        idle_seconds = self._stopwatch.idle_seconds
        if idle_seconds is not None:
            compute_end = self._clock.now() - timedelta(seconds=idle_seconds)
            report.compute_end_time.CopyFrom(convert.timestamp(compute_end))
        self._failpoints.hit("report", committed_steps)
        self._finish(directive, fence_report=report)

    def _roll_forward(self, directive: Directive) -> None:
        record = CommitRecord.from_proto(directive.roll_forward.record)

        def answer(stale: Sequence[int]) -> None:
            rolled_forward = RolledForward(
                committed_steps=self._vitals.committed_steps, stale_layers=stale
            )
            self._finish(directive, rolled_forward=rolled_forward)

        def work() -> None:
            self._failpoints.hit("roll_forward", record.step)
            self._trainer.roll_forward(directive.generation, record, answer)

        self._trainer.submit(lambda: self._guarded(directive, work))

    def _activate(self, directive: Directive) -> None:
        request = convert.plan_to_activate(directive.generation, directive.activate)
        self._trainer.handover.unstage(directive.generation + 1)  # this one replaces it
        work = self._trainer.accept(request, self._activated(directive))
        self._trainer.submit(lambda: self._guarded(directive, work))

    def _stage_plan(self, directive: Directive) -> None:
        request = convert.plan_to_stage(directive.generation, directive.stage_plan)
        self._trainer.handover.unstage(directive.generation + 1)  # this one replaces it

        def answer(result: Staged | Exception) -> None:
            if isinstance(result, Exception):
                self._fail(directive, result)
            else:
                self._finish(directive, staged=convert.staged(result))

        self._trainer.handover.stage(request, answer)

    def _switch(self, directive: Directive) -> None:
        self._trainer.handover.mark_for_switch(directive.generation, self._activated(directive))

    def _activated(self, directive: Directive) -> Answer:
        def answer(result: Activated | Exception) -> None:
            if isinstance(result, Exception):
                self._fail(directive, result)
            else:
                self._finish(directive, activated=convert.activated(result))

        return answer

    def _copy(self, directive: Directive) -> None:
        def work(fetcher: LayerFetcher) -> None:
            start_time = self._clock.now()
            num_bytes = self._layer_tasks.obtain(
                convert.wanted_layers(directive.copy),
                generation=directive.generation,
                fetcher=fetcher,
            )
            copied = Copied(
                bytes=num_bytes,
                layers=self._held_layers(),
                start_time=convert.timestamp(start_time),
                end_time=convert.timestamp(self._clock.now()),
            )
            self._finish(directive, copied=copied)

        self._in_background(directive, work)

    def _digest(self, directive: Directive) -> None:
        def work(_fetcher: LayerFetcher) -> None:
            self._failpoints.hit("digest", self._vitals.committed_steps)
            digests, version = self._layer_tasks.digest(directive.digest_layers.layers)
            layers = [LayerDigest(layer=layer, sha256=value) for layer, value in digests.items()]
            self._finish(directive, digested=Digested(layers=layers, version=version))

        self._in_background(directive, work)

    def _export(self, directive: Directive) -> None:
        export = directive.export

        def work(fetcher: LayerFetcher) -> None:
            num_bytes = self._layer_tasks.export(
                Path(export.path),
                convert.sources(export.layers),
                model_format=export.format,
                version=self._vitals.committed_steps,
                fetcher=fetcher,
            )
            self._finish(directive, exported=Exported(path=export.path, bytes=num_bytes))

        self._in_background(directive, work)

    def _write_checkpoint(self, directive: Directive) -> None:
        version, layers = directive.write_checkpoint.version, directive.write_checkpoint.layers

        def work(_fetcher: LayerFetcher) -> None:
            self._checkpointer.write(version, layers)
            self._finish(directive, checkpoint_taken=CheckpointTaken(layers=layers))

        self._in_background(directive, work)

    def _seal_checkpoint(self, directive: Directive) -> None:
        entries = [convert.layer_entry(layer) for layer in directive.seal_checkpoint.layers]

        def work(_fetcher: LayerFetcher) -> None:
            sealed = self._checkpointer.seal(directive.seal_checkpoint.version, entries)
            checkpoint_sealed = CheckpointSealed(
                path=str(sealed.path),
                bytes=sum(entry.num_bytes for entry in entries),
                removed=sealed.removed,
            )
            self._finish(directive, checkpoint_sealed=checkpoint_sealed)

        self._in_background(directive, work)

    def _discard_checkpoint(self, directive: Directive) -> None:
        def work(_fetcher: LayerFetcher) -> None:
            self._checkpointer.discard(directive.discard_checkpoint.version)
            self._finish(directive, checkpoint_discarded=CheckpointDiscarded())

        self._in_background(directive, work)

    def _stop_engine(self, directive: Directive) -> None:
        self._finish(directive, stopped=Stopped())
        self._stop(directive.stop.reason)

    def _in_background(self, directive: Directive, work: Callable[[LayerFetcher], None]) -> None:
        """Run work on a thread of its own, with a fetcher that a newer generation interrupts."""
        fetcher = LayerFetcher(job_secret=self._job_secret, failpoints=self._failpoints)
        with self._lock:
            self._fetchers[fetcher] = directive.generation

        def run() -> None:
            stand_back()  # there may be much to copy: failure handling comes first
            self._guarded(directive, lambda: work(fetcher))
            with self._lock:
                del self._fetchers[fetcher]

        threading.Thread(target=run, name="background-directive", daemon=True).start()

    def _interrupt_copies(self, generation: int) -> None:
        with self._lock:
            older = [fetcher for fetcher, of in self._fetchers.items() if of < generation]
        for fetcher in older:
            fetcher.interrupt()

    def _guarded(self, directive: Directive, work: Callable[[], None]) -> None:
        """Answer with a failure if anything goes wrong."""
        try:
            work()
        except Exception as error:
            self._fail(directive, error)

    def _fail(self, directive: Directive, error: Exception) -> None:
        if isinstance(error, PlanariaError) and error.reason is ErrorReason.COPY_FAILED:
            self._trainer.handover.reconnect()
        _log.warning("directive_failed", command=directive.WhichOneof("command"), cause=str(error))
        self._finish(directive, failure=self._failure(error, directive.generation))

    def _failure(self, error: Exception, generation: int) -> Failure:
        match error:
            case StaleGenerationError() | FencedError() | CopyInterrupted():
                newest = self._fence.newest
                return convert.failure(
                    ErrorReason.STALE_GENERATION,
                    f"generation {generation} is over: the newest is {newest}",
                    {"generation": str(generation), "newest": str(newest)},
                )
            case PlanariaError():
                return convert.failure(error.reason, error.message, error.metadata)
            case _:
                _log.exception("directive_error", exc_info=error)
                detail = f"{type(error).__name__}: {error}".partition("\n")[0]
                return convert.failure(ErrorReason.ENGINE_FAILED, detail, {"detail": detail})

    def _finish(self, directive: Directive, **outcome: Message) -> None:
        """Answer a directive, unless it has been answered."""
        result = DirectiveResult(
            directive_id=directive.directive_id,
            job_id=directive.job_id,
            **outcome,  # type: ignore[arg-type]  # one field of the oneof, by its name
        )
        with self._lock:
            if self._results.get(directive.directive_id) is not None:
                return
            self._results[directive.directive_id] = result
        self._answer(result)

    def _held_layers(self) -> list[HeldLayer]:
        held = self._store.held().items()
        return [HeldLayer(layer=layer, version=version) for layer, version in held]
