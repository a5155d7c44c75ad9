"""Engine processes with a test as their agent: to start them, tell them and wait for them.

Nothing here sleeps: every wait is for something that an engine says, or for its end.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import pytest

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.report_pb2 import DirectiveResult, EngineFault, EngineState, StepReport
from planaria_common.version import PROTOCOL_VERSION
from planaria_worker.engine.failpoints import ENVIRONMENT_VARIABLE
from planaria_worker.engine_config import EngineConfig, Transport
from support.engines.one_engine import TIMEOUT_SECONDS, EngineDiedError, TestEngine
from support.engines.small_plans import JobFiles
from support.engines.zygote import Zygote

JOB_ID = "job-1"
T = TypeVar("T")

Remove = Callable[[pytest.MonkeyPatch], None]
"""What an engine does to itself before it starts: it removes a guard."""


class Engines:
    """The engine processes of one job.

    Attributes:
        generation: of the directives that say no other.
        base_steps: what the engines that were prepared last begin at.
        without: what all engines lack that no test says anything else of.
    """

    without: ClassVar[Remove | None] = None

    def __init__(
        self,
        folder: Path,
        job: JobFiles,
        zygote: Zygote,
        *,
        without: Remove | None = None,
        transport: Transport = "gloo",
    ) -> None:
        self.job = job
        self._transport = transport
        self._zygote = zygote
        self._without = without or Engines.without
        self.engines: dict[str, TestEngine] = {}
        self.generation = 1
        self.base_steps = 0
        self._folder = folder
        self._changed = threading.Condition()
        self._num_started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for engine in self.engines.values():
            engine.close()

    # --- processes

    def prepare(
        self,
        *names: str,
        failpoints: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    ) -> None:
        """Starts engines that are not there yet, or have a failpoint, and waits until they are."""
        failpoints = failpoints or {}
        new = [name for name in names if name in failpoints or not self.is_alive(name)]
        for name in new:
            self._start(name, failpoints.get(name, ()))
        for name in new:
            self.engines[name].connect()
        for name in new:
            result = self._wait_for_preparation(name)
            assert result.HasField("prepared"), result

    def start(self, name: str) -> DirectiveResult:
        """Starts an engine, ending any of its name; returns what it says to Prepare."""
        self._start(name, ())
        self.engines[name].connect()
        return self._wait_for_preparation(name)

    def is_alive(self, name: str) -> bool:
        return name in self.engines and self.engines[name].process.poll() is None

    @property
    def survivors(self) -> list[str]:
        return [name for name in self.engines if self.is_alive(name)]

    def wait_until_dead(self, name: str) -> None:
        self.engines[name].process.wait(TIMEOUT_SECONDS)

    # --- directives

    def direct(self, name: str, generation: int | None = None, **command: Any) -> str:
        """Sends a directive; returns its id."""
        directive = Directive(
            directive_id=uuid.uuid4().hex,
            job_id=JOB_ID,
            generation=self.generation if generation is None else generation,
            engine_id=self.engines[name].engine_id,
            **command,
        )
        self.engines[name].send(directive)
        return directive.directive_id

    def ask(self, name: str, generation: int | None = None, **command: Any) -> DirectiveResult:
        """Sends a directive and waits for its result."""
        return self.wait_for_result(name, self.direct(name, generation, **command))

    def ask_all(self, commands: Mapping[str, Mapping[str, Any]]) -> dict[str, DirectiveResult]:
        """Sends a directive to each of several engines, then waits for all results.

        Raises:
            EngineDiedError: one of them died without an answer; others may wait for it.
        """
        ids = {name: self.direct(name, **command) for name, command in commands.items()}

        def found() -> bool:
            results = [self._result(name, id_) for name, id_ in ids.items()]
            return None not in results

        self.wait_for(f"results of {', '.join(ids)}", found)
        return {name: self.wait_for_result(name, id_) for name, id_ in ids.items()}

    # --- waiting

    def wait_for(self, what: str, found: Callable[[], T | None]) -> T:
        """Waits for what an engine says; `found` returns something true when it is there."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with self._changed:
            while not (value := found()):
                left = deadline - time.monotonic()
                assert left > 0, f"no {what} within {TIMEOUT_SECONDS} s\n{self._logs()}"
                self._changed.wait(min(left, 1.0))
            return value

    def wait_for_result(self, name: str, directive_id: str) -> DirectiveResult:
        return self.wait_for(f"result of {name}", lambda: self._result(name, directive_id))

    def wait_for_state(self, state: "EngineState.ValueType", *names: str) -> None:
        for name in names:
            engine = self.engines[name]
            self.wait_for(
                f"{EngineState.Name(state)} of {name}",
                lambda engine=engine: engine.snapshot.state == state,  # type: ignore[misc]
            )

    def wait_until_finished(self, *names: str) -> None:
        self.wait_for_state(EngineState.ENGINE_STATE_FINISHED, *(names or self.survivors))

    def wait_for_step(self, name: str, step: int) -> StepReport:
        """Waits until an engine has reported the commit of a step in this generation or later."""
        return self.wait_for(
            f"step {step} of {name}",
            lambda: next((r for r in self.step_reports(name) if r.record.step == step), None),
        )

    def wait_for_fault(self, name: str) -> EngineFault:
        engine = self.engines[name]
        return self.wait_for(
            f"fault of {name}",
            lambda: next((e.fault for e in engine.events if e.HasField("fault")), None),
        )

    def step_reports(self, *names: str) -> list[StepReport]:
        return [
            event.step_report
            for name in names or self.engines
            for event in self.engines[name].events
            if event.HasField("step_report")
        ]

    # --- inside

    def _result(self, name: str, directive_id: str) -> DirectiveResult | None:
        engine = self.engines[name]
        result = engine.result(directive_id)
        if result is None and engine.process.poll() is not None:
            raise EngineDiedError(f"{name} died without an answer\n{engine.log()}")
        return result

    def _forget_events(self) -> None:
        with self._changed:
            for engine in self.engines.values():
                engine.events.clear()

    def _wait_for_preparation(self, name: str) -> DirectiveResult:
        engine = self.engines[name]
        result = self.wait_for_result(name, f"prepare-{engine.engine_id}")
        if result.HasField("prepared"):
            engine.snapshot = result.prepared.engine
            self.base_steps = result.prepared.initial_state.step
        return result

    def _start(self, name: str, failpoints: Sequence[Mapping[str, object]]) -> None:
        if name in self.engines:
            self.engines[name].close()
        self._num_started += 1
        engine_id = f"{JOB_ID}/{name}/0/{self._num_started}"
        folder = self._folder / f"{name}-{self._num_started}"
        folder.mkdir(parents=True)
        config = EngineConfig(
            protocol_version=PROTOCOL_VERSION,
            engine_id=engine_id,
            job_id=JOB_ID,
            generation=self.generation,
            prepare_directive_id=f"prepare-{engine_id}",
            job_spec=json.dumps(self.job.spec),
            job_secret="secret",
            socket_path=str(folder / "engine.sock"),
            data_path=str(self.job.data_path),
            evaluation_data_path=str(self.job.evaluation_data_path or ""),
            lease_seconds=600.0,
            unreachable_timeout_seconds=600.0,
            transport=self._transport,
        )
        config.dump(folder / "config.json")
        (folder / "engine.log").touch()
        process = self._zygote.start_engine(
            folder / "config.json",
            folder / "engine.log",
            environment={ENVIRONMENT_VARIABLE: json.dumps(failpoints)} if failpoints else {},
            without=self._without,
        )
        self.engines[name] = TestEngine(
            name=name,
            engine_id=engine_id,
            process=process,
            folder=folder,
            changed=self._changed,
        )

    def _logs(self) -> str:
        return "\n".join(
            f"--- {engine.name} ({engine.process.poll()})\n{engine.log()[-3000:]}"
            for engine in self.engines.values()
        )
