"""An engine that keeps the protocol's promises, and notes what must never be asked of it."""

from dataclasses import dataclass, field

from planaria_common.clock import FakeClock
from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.directive import (
    Activate,
    Activated,
    Commit,
    CommitRecord,
    Committed,
    Copied,
    Copy,
    Digested,
    DigestLayers,
    Directive,
    Export,
    Exported,
    Failure,
    FenceReport,
    HeldLayer,
    Outcome,
    Quiesce,
    QuiesceMode,
    Stop,
    Stopped,
)
from planaria_coordinator.domain.node import EngineSnapshot, EngineState


@dataclass(slots=True)
class SimEngine:
    """An engine; `violations` collects what must never happen."""

    id: str
    job_id: str
    clock: FakeClock
    steps: int
    violations: list[str]
    generation: int
    state: EngineState = EngineState.STARTING
    committed_steps: int = 0
    progress: int = 0
    layers: dict[int, int] = field(default_factory=dict)
    """Version by layer."""
    place: Activate | None = None
    place_generation: int = 0
    at_commit: Directive | None = None
    """A Quiesce that waits for the next commit."""
    last_commit: CommitRecord | None = None
    has_sums: bool = False
    """Whether every sum of the step in flight is complete here."""
    compute_seconds: float = 0.0
    results: dict[str, Outcome] = field(default_factory=dict)

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            engine_id=self.id,
            job_id=self.job_id,
            accelerator=0,
            generation=self.generation,
            state=self.state,
            committed_steps=self.committed_steps,
            progress=self.progress,
            data_address=f"data:{self.id}",
            store_address=f"store:{self.id}",
        )

    def handle(self, directive: Directive) -> Outcome | None:
        """Carry out a directive once; None when the answer comes later."""
        if directive.id in self.results:
            return self.results[directive.id]
        if directive.generation < self.generation and not isinstance(directive.command, Stop):
            return Failure(reason=ErrorReason.STALE_GENERATION, message="stale", metadata={})
        self.generation = max(self.generation, directive.generation)
        outcome = self._carry_out(directive)
        if outcome is not None:
            self.results[directive.id] = outcome
        return outcome

    def _carry_out(self, directive: Directive) -> Outcome | None:
        now = self.clock.now()
        match directive.command:
            case Quiesce(mode=mode):
                if mode is QuiesceMode.AT_COMMIT and self.state is EngineState.TRAINING:
                    self.at_commit = directive
                    return None
                return self.park()
            case Commit(record=record):
                return self._commit_from_record(record)
            case Copy(layers=sources, version=version):
                fetched = [source for source in sources if source.addresses]
                self.layers.update({source.layer: version for source in sources})
                return Copied(
                    num_bytes=100 * len(fetched), layers=self.held(), start_time=now, end_time=now
                )
            case Activate() as activate:
                return self._activate(activate, directive.generation)
            case DigestLayers(layers=layers):
                versions = {self.layers.get(layer) for layer in layers}
                if versions != {self.committed_steps}:
                    self.violations.append(f"{self.id} digests layers of versions {versions}")
                digests = {layer: f"{layer:064x}" for layer in layers}
                return Digested(digests=digests, version=self.committed_steps)
            case Export(path=path):
                return Exported(path=path, num_bytes=1000)
            case Stop():
                return Stopped()
        raise AssertionError(directive)

    def park(self) -> FenceReport:
        """Stand still, and promise to join no sum of an older generation."""
        if self.state is not EngineState.FINISHED:
            self.state = EngineState.PARKED
        self.at_commit = None
        now = self.clock.now()
        return FenceReport(
            committed_steps=self.committed_steps,
            last_commit=self.last_commit,
            layers=self.held(),
            finished_microbatches=(0,) if self.compute_seconds else (),
            step_compute_seconds=self.compute_seconds,
            fence_time=now,
            park_time=now,
        )

    def held(self) -> tuple[HeldLayer, ...]:
        return tuple(HeldLayer(layer=k, version=v) for k, v in sorted(self.layers.items()))

    def _commit_from_record(self, record: CommitRecord) -> Outcome:
        if not self.has_sums or record.step != self.committed_steps:
            return Committed(
                committed_steps=self.committed_steps, stale_layers=tuple(sorted(self.layers))
            )
        self.apply(record)
        return Committed(committed_steps=self.committed_steps, stale_layers=())

    def apply(self, record: CommitRecord) -> None:
        """Commit a step: the only thing that changes parameters [3]."""
        if record.step != self.committed_steps:
            self.violations.append(f"{self.id} commits {record.step} at {self.committed_steps}")
        for layer, version in self.layers.items():
            if version == self.committed_steps:
                self.layers[layer] = version + 1
        self.committed_steps += 1
        self.last_commit = record
        self.has_sums = False
        self.compute_seconds = 0.0
        self.progress += 1
        if self.committed_steps == self.steps:
            self.state = EngineState.FINISHED

    def _activate(self, activate: Activate, generation: int) -> Outcome:
        if activate.committed_steps < self.committed_steps:
            self.violations.append(f"{self.id} is taken back from {self.committed_steps} [2]")
        mine = [s for p in activate.pipelines for s in p.stages if s.engine_id == self.id]
        for layer in range(mine[0].first_layer, mine[0].first_layer + mine[0].num_layers):
            if self.layers.get(layer) != activate.committed_steps:
                self.violations.append(
                    f"{self.id} has layer {layer} in version {self.layers.get(layer)}, not "
                    f"{activate.committed_steps} [2]"
                )
        needed = range(mine[0].first_layer, mine[0].first_layer + mine[0].num_layers)
        self.layers = dict.fromkeys(needed, activate.committed_steps)
        self.place, self.place_generation = activate, generation
        self.committed_steps = activate.committed_steps
        self.state = EngineState.TRAINING
        self.has_sums = False
        self.compute_seconds = 0.0
        now = self.clock.now()
        return Activated(rebuild_start_time=now, resume_time=now, num_communicators=1)
