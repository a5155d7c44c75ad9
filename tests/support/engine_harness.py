"""Real engine processes with a test as their agent and coordinator.

    with EngineCluster(folder, job, zygote) as cluster:
        cluster.prepare("a", "b", "c")
        cluster.train([Pipeline(["a", 3], ["b", 4], microbatches=[0, 1])])
        cluster.wait_until_finished()
        assert cluster.digest() == train(reference).digest

Nothing here sleeps: every wait is for something that an engine says, or for its end.
"""

import json
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.duration_pb2 import Duration

from planaria.api.worker.v1.directive_pb2 import (
    Activate,
    Commit,
    Copy,
    DigestLayers,
    Directive,
    Export,
    FollowerAssignment,
    LayerSource,
    PipelineAssignment,
    Quiesce,
    StageAssignment,
    Stop,
)
from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent, Lease
from planaria.api.worker.v1.report_pb2 import (
    CommitRecord,
    DirectiveResult,
    EngineFault,
    EngineSnapshot,
    EngineState,
    FenceReport,
    StepReport,
)
from planaria_worker.engine.failpoints import ENVIRONMENT_VARIABLE
from planaria_worker.engine.numerics.digest import final_digest
from planaria_worker.engine_config import EngineConfig, Transport
from planaria_worker.link import receive_message, send_message, socket_address
from support.engine_zygote import EngineProcess, Zygote

TIMEOUT_SECONDS = 120.0
"""Only a broken engine comes near it, but the machine may be busy with something else."""
LEASE = Lease(duration=Duration(seconds=600))
JOB_ID = "job-1"
T = TypeVar("T")


class EngineDiedError(AssertionError):
    """An engine that was asked for something has died."""


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """A job as engines are given it."""

    spec: Mapping[str, Any]
    data_path: Path
    num_layers: int
    evaluation_data_path: Path | None = None

    @property
    def num_steps(self) -> int:
        return int(self.spec["training"]["steps"])


@dataclass(frozen=True)
class Pipeline:
    """Stages as (engine name, number of layers), and the microbatches of the pipeline.

    `in_flight` are those of the step in flight, for a pipeline that keeps it; `keeps` is for one
    that keeps its place behind a commit.
    """

    stages: Sequence[tuple[str, int]]
    microbatches: Sequence[int]
    in_flight: Sequence[int] = ()
    keeps: bool = False


@dataclass(kw_only=True)
class TestEngine:
    """One engine process and everything it has said."""

    __test__ = False

    name: str
    engine_id: str
    process: EngineProcess
    folder: Path
    changed: threading.Condition
    snapshot: EngineSnapshot = field(default_factory=EngineSnapshot)
    states: list["EngineState.ValueType"] = field(default_factory=list)
    events: list[EngineEvent] = field(default_factory=list)
    connection: socket.socket | None = None

    def connect(self) -> None:
        """Becomes the engine's agent; the socket is there a moment after the process."""
        path = self.folder / "engine.sock"
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                with socket_address(path) as address:
                    connection.connect(address)
                break
            except OSError:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{self.name} did not start:\n{self.log()}") from None
                threading.Event().wait(0.01)
        self.connection = connection
        send_message(connection, EngineCommand(lease=LEASE))
        threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def send(self, directive: Directive) -> None:
        assert self.connection is not None
        try:
            send_message(self.connection, EngineCommand(directive=directive))
        except OSError:
            raise EngineDiedError(f"{self.name} died\n{self.log()}") from None

    def result(self, directive_id: str) -> DirectiveResult | None:
        for event in self.events:
            if event.HasField("result") and event.result.directive_id == directive_id:
                return event.result
        return None

    def log(self) -> str:
        return (self.folder / "engine.log").read_text()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.connection is not None:
            self.connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            while (event := receive_message(connection, EngineEvent)) is not None:
                with self.changed:
                    if event.HasField("snapshot"):
                        self.snapshot = event.snapshot
                        self.states.append(event.snapshot.state)
                    else:
                        self.events.append(event)
                        if event.result.HasField("activated"):  # older snapshots are out of date
                            self.snapshot.state = EngineState.ENGINE_STATE_TRAINING
                    self.changed.notify_all()
        except OSError:
            pass
        with self.changed:
            self.changed.notify_all()


class EngineCluster:
    """Engines of one job and a coordinator that does what a test says.

    Attributes:
        members: engines of the newest plan, dead or alive.
    """

    def __init__(
        self,
        folder: Path,
        job: JobFiles,
        zygote: Zygote,
        *,
        mutant: str = "",
        transport: Transport = "gloo",
    ) -> None:
        self.job = job
        self._transport = transport
        self._zygote = zygote
        self._mutant = mutant
        self.engines: dict[str, TestEngine] = {}
        self.generation = 1
        self.base_steps = 0
        self.committed_steps = 0
        self._folder = folder
        self._changed = threading.Condition()
        self._num_started = 0
        self.members: list[str] = []

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
            self.engines[name].snapshot = result.prepared.engine
            self.base_steps = result.prepared.base.step

    def start(self, name: str) -> DirectiveResult:
        """Starts one engine; returns what it says to Prepare."""
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
        """Sends a directive to each of several engines, then waits for all results."""
        ids = {name: self.direct(name, **command) for name, command in commands.items()}
        return {name: self.wait_for_result(name, id_) for name, id_ in ids.items()}

    def copy_initial(self, plan: Sequence[Pipeline]) -> None:
        """Loads every layer of the job's base, wherever the plan puts it."""
        sources = dict.fromkeys(range(self.job.num_layers), ())
        self._copy(dict.fromkeys(_names(plan), sources), self.base_steps)
        self.committed_steps = self.base_steps

    def activate(self, plan: Sequence[Pipeline], **fields: Any) -> dict[str, DirectiveResult]:
        """Gives every engine of a plan its place; returns their answers."""
        command = self.activation(plan, **fields)
        return self.ask_all({name: {"activate": command} for name in self.members})

    def activation(
        self,
        plan: Sequence[Pipeline],
        rebuild_seconds: int = 60,
        followers: Mapping[str, Sequence[int]] | None = None,
    ) -> Activate:
        followers = followers or {}
        names = self.members = [*_names(plan), *followers]
        return Activate(
            pipelines=[self._assignment(pipeline) for pipeline in plan],
            followers=[
                FollowerAssignment(
                    engine_id=self.engines[name].engine_id,
                    data_address=self.engines[name].snapshot.data_address,
                    layers=layers,
                )
                for name, layers in followers.items()
            ],
            committed_steps=self.committed_steps,
            store_address=self.engines[names[0]].snapshot.store_address,
            rebuild_timeout=Duration(seconds=rebuild_seconds),
        )

    def train(self, plan: Sequence[Pipeline]) -> None:
        """Begins the job anew in a new generation, whatever the engines did before."""
        self.quiesce(dict.fromkeys([*_alive(self, self.members), *_names(plan)]))
        with self._changed:
            for engine in self.engines.values():
                engine.events.clear()
        self.copy_initial(plan)
        for name, result in self.activate(plan).items():
            assert result.HasField("activated"), (name, result)

    def quiesce(
        self,
        names: Iterable[str] | None = None,
        mode: "Quiesce.Mode.ValueType" = Quiesce.MODE_IMMEDIATE,
    ) -> dict[str, FenceReport]:
        """Opens a new generation and collects what every survivor of the plan reports."""
        self.generation += 1
        chosen = _alive(self, self.members) if names is None else list(names)
        results = self.ask_all({name: {"quiesce": Quiesce(mode=mode)} for name in chosen})
        for name, result in results.items():
            assert result.HasField("fence_report"), (name, result)
        return {name: result.fence_report for name, result in results.items()}

    def fence(self, lost: Iterable[str] = ()) -> dict[str, FenceReport]:
        """Opens a new generation in which whole pipelines go on computing."""
        self.generation += 1
        lost_ids = [self.engines[name].engine_id for name in lost]
        command = Quiesce(mode=Quiesce.MODE_FENCE, lost_engine_ids=lost_ids)
        chosen = [name for name in _alive(self, self.members) if name not in lost]
        results = self.ask_all({name: {"quiesce": command} for name in chosen})
        for name, result in results.items():
            assert result.HasField("fence_report"), (name, result)
        return {name: result.fence_report for name, result in results.items()}

    def fence_until_computed(self, *names: str) -> dict[str, FenceReport]:
        """Fences again and again, until engines have computed all that they keep."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            reports = self.fence()
            if all(
                set(reports[name].finished_microbatches) == set(reports[name].kept_microbatches)
                for name in names
            ):
                return reports
            assert time.monotonic() < deadline, self._logs()

    def recover(self, plan: Sequence[Pipeline]) -> dict[str, FenceReport]:
        """What a coordinator does after a loss: quiesce, roll forward, copy, activate."""
        reports = self.quiesce()
        held = self.roll_forward(reports)
        self.copy_missing(plan, held)
        for name, result in self.activate(plan).items():
            assert result.HasField("activated"), (name, result)
        return reports

    def roll_forward(self, reports: Mapping[str, FenceReport]) -> dict[str, dict[int, int]]:
        """Commits the newest step everywhere; returns the layers that each engine holds."""
        newest = max(report.committed_steps for report in reports.values())
        record: CommitRecord | None = None
        for report in reports.values():
            if report.committed_steps == newest and report.HasField("last_commit"):
                record = report.last_commit
        held = {n: {h.layer: h.version for h in report.layers} for n, report in reports.items()}
        behind = [n for n, r in reports.items() if r.layers and r.committed_steps == newest - 1]
        for name in behind:
            assert record is not None
            result = self.ask(name, commit=Commit(record=record))
            assert result.committed.committed_steps == newest, result
            for layer in held[name].keys() - set(result.committed.stale_layers):
                held[name][layer] = newest
        self.committed_steps = newest
        return held

    def copy_missing(
        self, plan: Sequence[Pipeline], held: Mapping[str, Mapping[int, int]]
    ) -> dict[str, DirectiveResult]:
        version = self.committed_steps
        orders: dict[str, dict[int, Sequence[str]]] = {}
        for pipeline in plan:
            for name, needed in self.needs(pipeline).items():
                for layer in needed:
                    if held.get(name, {}).get(layer) != version:
                        orders.setdefault(name, {})[layer] = [
                            self.engines[other].snapshot.data_address
                            for other, layers in held.items()
                            if layers.get(layer) == version
                        ]
        return self._copy(orders, version)

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
        engine = self.engines[name]

        def found() -> DirectiveResult | None:
            result = engine.result(directive_id)
            if result is None and engine.process.poll() is not None:
                raise EngineDiedError(f"{name} died without an answer\n{engine.log()}")
            return result

        return self.wait_for(f"result of {name}", found)

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

    # --- results

    def losses(self) -> list[float]:
        """Loss of each step that trained; every report of a step must agree."""
        trained = [r.record for r in self.step_reports() if r.record.num_tokens]
        return [*_agreed((record.step, record.loss) for record in trained).values()]

    def evaluation_losses(self) -> dict[int, float]:
        """Evaluation loss by the number of steps in the parameters."""
        records = [report.record for report in self.step_reports()]
        return _agreed(
            (r.step, r.evaluation_loss) for r in records if r.HasField("evaluation_loss")
        )

    def digest(self, plan: Sequence[Pipeline]) -> str:
        """The job's digest; all replicas of a layer must have the same."""
        digests: dict[int, set[bytes]] = {}
        for pipeline in plan:
            for name, needed in self.needs(pipeline).items():
                result = self.ask(name, digest_layers=DigestLayers(layers=needed))
                assert result.HasField("digested"), result
                for layer in result.digested.layers:
                    digests.setdefault(layer.layer, set()).add(layer.sha256)
        assert all(len(found) == 1 for found in digests.values()), "replicas differ"
        return final_digest(digests[layer].pop() for layer in sorted(digests))

    def stop(self, name: str) -> DirectiveResult:
        return self.ask(name, stop=Stop(reason="test"))

    def export(
        self, name: str, path: Path, sources: Mapping[int, Sequence[str]]
    ) -> DirectiveResult:
        return self.ask(
            name,
            export=Export(path=str(path), format="huggingface", layers=_layer_sources(sources)),
        )

    # --- inside

    def _wait_for_preparation(self, name: str) -> DirectiveResult:
        return self.wait_for_result(name, f"prepare-{self.engines[name].engine_id}")

    def _start(self, name: str, failpoints: Sequence[Mapping[str, object]]) -> None:
        if name in self.engines:
            self.engines[name].close()
        self._num_started += 1
        engine_id = f"{JOB_ID}/{name}/0/{self._num_started}"
        folder = self._folder / f"{name}-{self._num_started}"
        folder.mkdir(parents=True)
        config = EngineConfig(
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
            transport=self._transport,
        )
        config.dump(folder / "config.json")
        (folder / "engine.log").touch()
        process = self._zygote.start(
            folder / "config.json",
            folder / "engine.log",
            environment={ENVIRONMENT_VARIABLE: json.dumps(failpoints)} if failpoints else {},
            mutant=self._mutant,
        )
        self.engines[name] = TestEngine(
            name=name,
            engine_id=engine_id,
            process=process,
            folder=folder,
            changed=self._changed,
        )

    def _copy(
        self, orders: Mapping[str, Mapping[int, Sequence[str]]], version: int
    ) -> dict[str, DirectiveResult]:
        results = self.ask_all(
            {
                name: {"copy": Copy(layers=_layer_sources(sources), version=version)}
                for name, sources in orders.items()
            }
        )
        for name, result in results.items():
            assert result.HasField("copied"), (name, result)
        return results

    def _assignment(self, pipeline: Pipeline) -> PipelineAssignment:
        first, stages = 0, []
        for name, num_layers in pipeline.stages:
            stages.append(
                StageAssignment(
                    engine_id=self.engines[name].engine_id,
                    data_address=self.engines[name].snapshot.data_address,
                    first_layer=first,
                    num_layers=num_layers,
                )
            )
            first += num_layers
        return PipelineAssignment(
            stages=stages,
            microbatches=pipeline.microbatches,
            step_microbatches=pipeline.in_flight,
            keeps_step=pipeline.keeps or bool(pipeline.in_flight),
        )

    def needs(self, pipeline: Pipeline) -> dict[str, list[int]]:
        """Layers that each engine of a pipeline hosts."""
        is_tied = bool(self.job.spec["model"].get("tie_word_embeddings"))
        needs, first = {}, 0
        for name, num_layers in pipeline.stages:
            layers = list(range(first, first + num_layers))
            first += num_layers
            if is_tied and first == self.job.num_layers and 0 not in layers:
                layers.insert(0, 0)
            needs[name] = layers
        return needs

    def _logs(self) -> str:
        return "\n".join(
            f"--- {engine.name} ({engine.process.poll()})\n{engine.log()[-3000:]}"
            for engine in self.engines.values()
        )


def _agreed(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """By step; every report of a step must say the same."""
    by_step: dict[int, set[float]] = {}
    for step, value in values:
        by_step.setdefault(step, set()).add(value)
    assert all(len(found) == 1 for found in by_step.values()), by_step
    return {step: by_step[step].pop() for step in sorted(by_step)}


def _names(plan: Sequence[Pipeline]) -> list[str]:
    return [name for pipeline in plan for name, _ in pipeline.stages]


def _alive(cluster: EngineCluster, names: Iterable[str]) -> list[str]:
    return [name for name in names if cluster.is_alive(name)]


def _layer_sources(sources: Mapping[int, Sequence[str]]) -> list[LayerSource]:
    return [LayerSource(layer=layer, addresses=addresses) for layer, addresses in sources.items()]
