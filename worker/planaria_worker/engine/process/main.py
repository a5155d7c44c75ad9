"""The process of an engine.

The agent is answered from the first moment on: torch, which takes seconds to import, comes after
the control thread.
"""

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planaria.api.common.v1 import errors_pb2
from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.api.worker.v1.report_pb2 import DirectiveResult, EngineSnapshot, Failure, Stopped
from planaria_common.clock import SystemClock
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import configure_logging, drain_logs, get_logger
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.process.control import Control
from planaria_worker.engine.telemetry import Stopwatch, Trace, Vitals
from planaria_worker.engine_config import EngineConfig

if TYPE_CHECKING:
    from planaria_worker.engine.process.assembly import Engine

EXIT_NOT_PREPARED = 1
EXIT_LEASE_EXPIRED = 3
_LEAVE_SECONDS = 2.0
_LOG_SECONDS = 0.5

_log = get_logger("engine")


class EngineProcess:
    """The process: its control thread at once, the engine as soon as it is warm."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        trace = Trace.from_environment(os.environ, config.engine_id)
        self._fence = Fence(config.generation, trace)
        self._vitals = Vitals(on_change=lambda: self._control.send_snapshot())
        self._stopwatch = Stopwatch(trace=trace)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._prepared: DirectiveResult | None = None
        self._waiting: list[Directive] = []
        self._control = Control(
            Path(config.socket_path),
            lease_seconds=config.lease_seconds,
            snapshot=self._snapshot,
            on_directive=self._handle,
            on_lease_expired=self._lease_expired,
        )

    def run(self) -> None:
        """Serve until the engine is stopped, its lease ends, or it cannot be prepared."""
        self._control.start()
        try:
            engine = self._assemble()
        except Exception as error:
            _log.exception("not_prepared")
            self._answer_prepare(DirectiveResult(failure=_failure(error)))
            self._exit(EXIT_NOT_PREPARED)
            raise
        self._answer_prepare(DirectiveResult(prepared=engine.prepared(self._snapshot())))
        self._take_over(engine)
        engine.run()

    def _take_over(self, engine: "Engine") -> None:
        """Lets the engine have its directives: first those that came too early, in order."""
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._engine = engine
                    return
            for directive in waiting:
                engine.directives.handle(directive)

    def _assemble(self) -> "Engine":
        from planaria_worker.engine.process.assembly import Engine  # torch

        return Engine(
            self._config,
            fence=self._fence,
            vitals=self._vitals,
            stopwatch=self._stopwatch,
            to_agent=self._control,
            stop=self._stop,
            clock=SystemClock(),
            failpoints=Failpoints.from_environment(os.environ, self._config.engine_id),
        )

    def _handle(self, directive: Directive) -> None:
        if directive.HasField("prepare"):
            self._repeat_prepared()
            return
        with self._lock:
            if self._engine is None and not directive.HasField("stop"):
                self._waiting.append(directive)
                return
        if self._engine is not None:
            self._engine.directives.handle(directive)
            return
        stopped = DirectiveResult(directive_id=directive.directive_id, stopped=Stopped())
        self._answer(stopped)
        self._stop()

    def _snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            engine_id=self._config.engine_id,
            job_id=self._config.job_id,
            accelerator=self._config.accelerator,
            generation=self._fence.newest,
            state=self._vitals.state,
            committed_steps=self._vitals.committed_steps,
            progress=self._stopwatch.laps,
            pid=os.getpid(),
            data_address=self._vitals.data_address,
            store_address=self._vitals.store_address,
        )

    def _answer_prepare(self, result: DirectiveResult) -> None:
        if self._config.prepare_directive_id:
            result.directive_id = self._config.prepare_directive_id
            with self._lock:
                self._prepared = result
                self._answer(result)

    def _repeat_prepared(self) -> None:
        """Says again what an agent may have died with; while the engine prepares, it is to come."""
        with self._lock:
            prepared = self._prepared
        if prepared is not None:
            self._control.post(EngineEvent(result=prepared))

    def _answer(self, result: DirectiveResult) -> None:
        result.job_id = self._config.job_id
        self._control.post(EngineEvent(result=result))

    def _stop(self) -> None:
        """Ends the process once everything was said; the control thread, which says it, goes on."""
        threading.Thread(target=self._exit, args=(0,), name="exit").start()

    def _exit(self, code: int) -> None:
        self._control.take_leave(_LEAVE_SECONDS)
        drain_logs(_LOG_SECONDS)
        os._exit(code)  # nothing to save, and a thread may be stuck in a library

    def _lease_expired(self, is_over: bool) -> float:
        """Fences the engine when its agent is away for too long; ends it when nobody comes at all.

        Returns for how long its layers are kept.
        """
        _log.warning("lease_expired", is_over=is_over)
        keep_seconds = self._config.unreachable_timeout_seconds
        has_layers = self._engine is not None and self._engine.fence_itself()
        if has_layers and keep_seconds and not is_over:
            return keep_seconds
        drain_logs(_LOG_SECONDS)
        os._exit(EXIT_LEASE_EXPIRED)


def _failure(error: Exception) -> Failure:
    """Why the engine could not be prepared."""
    reason, metadata = ErrorReason.ENGINE_FAILED, {}
    if isinstance(error, PlanariaError):
        reason, metadata = error.reason, error.metadata
    elif type(error).__name__ == "DataError":  # its module imports numpy
        reason = ErrorReason.DATA_UNUSABLE
    return Failure(
        reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}"),
        message=str(error).partition("\n")[0] or type(error).__name__,
        metadata=metadata,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs an engine until it ends."""
    parser = argparse.ArgumentParser(prog="planaria-engine", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (EngineConfig)")
    options = parser.parse_args(arguments)
    try:
        config = EngineConfig.load(options.config)
        configure_logging(component="engine", level=config.log_level, log_format=config.log_format)
        process = EngineProcess(config)
    except (PlanariaError, OSError) as error:
        sys.stderr.write(f"planaria-engine: {error}\n")
        sys.exit(2)
    process.run()
