"""An engine that keeps the protocol's promises, and notes what must never be asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planaria_common.clock import FakeClock
from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import (
    Activate,
    Commit,
    CommitRecord,
    Copy,
    DigestLayers,
    Directive,
    DiscardCheckpoint,
    Export,
    PipelineAssignment,
    Quiesce,
    QuiesceMode,
    SealCheckpoint,
    Stop,
    Switch,
    WriteCheckpoint,
)
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState
from planaria_coordinator.domain.engines.outcome import (
    Activated,
    CheckpointDiscarded,
    CheckpointSealed,
    CheckpointTaken,
    Committed,
    Copied,
    Digested,
    Exported,
    Failure,
    FenceReport,
    HeldLayer,
    Outcome,
    Staged,
    Stopped,
)


@dataclass(slots=True)
class SimEngine:
    """An engine; `violations` collects what must never happen."""

    id: str
    job_id: str
    clock: FakeClock
    steps: int
    num_commits: int
    violations: list[str]
    generation: int
    peers: "Callable[[], Mapping[str, SimEngine]]" = dict
    """All engines that live."""
    state: EngineState = EngineState.STARTING
    committed_steps: int = 0
    progress: int = 0
    layers: dict[int, int] = field(default_factory=dict)
    """Version by layer."""
    place: Activate | None = None
    place_generation: int = 0
    at_commit: Directive | None = None
    """A Quiesce or a Switch that waits for the next commit."""
    staged: Activate | None = None
    """The place that is ready to be taken behind a commit."""
    staged_generation: int = 0
    followed: dict[int, str] = field(default_factory=dict)
    """By layer that the staged place lacks: whom it follows."""
    last_commit: CommitRecord | None = None
    has_sums: bool = False
    """Whether every sum of the step in flight is complete here."""
    gradients: frozenset[int] = frozenset()
    """The microbatches of the step in flight in its local gradients."""
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
            case Quiesce() as quiesce:
                return self._quiesce(directive, quiesce)
            case Commit(record=record):
                return self._commit_from_record(record)
            case Copy(layers=sources, version=version):
                fetched = [source for source in sources if source.addresses]
                self.layers.update({source.layer: version for source in sources})
                return Copied(
                    num_bytes=100 * len(fetched), layers=self.held(), start_time=now, end_time=now
                )
            case Activate(at_commit=True) as activate:
                return self._stage(activate, directive.generation)
            case Activate() as activate:
                return self._activate(activate, directive.generation)
            case Switch():
                if self.staged is None or self.staged_generation != directive.generation:
                    self.violations.append(f"{self.id} has no place of {directive.generation}")
                self.at_commit = directive
                return None
            case DigestLayers(layers=layers):
                versions = {self.layers.get(layer) for layer in layers}
                if versions != {self.committed_steps}:
                    self.violations.append(f"{self.id} digests layers of versions {versions}")
                digests = {layer: f"{layer:064x}" for layer in layers}
                return Digested(digests=digests, version=self.committed_steps)
            case Export(path=path):
                return Exported(path=path, num_bytes=1000)
            case WriteCheckpoint(version=version, layers=layers):
                if any(min(self.layers.get(x, -1), self.steps) != version for x in layers):
                    return Failure(reason=ErrorReason.WRONG_STATE, message="not held any more")
                return CheckpointTaken(layers=layers)
            case SealCheckpoint(version=version, layers=written):
                if [layer.layer for layer in written] != list(range(len(written))):
                    self.violations.append(f"{self.id} seals layers {written}")
                return CheckpointSealed(path=f"runs/step-{version:08d}", num_bytes=1, removed=())
            case DiscardCheckpoint():
                return CheckpointDiscarded()
            case Stop():
                return Stopped()
        raise AssertionError(directive)

    def _quiesce(self, directive: Directive, quiesce: Quiesce) -> Outcome | None:
        trains = self.state is EngineState.TRAINING
        if quiesce.mode is QuiesceMode.AT_COMMIT and trains:
            if self.staged is not None and self.staged_generation == directive.generation:
                self.violations.append(f"{self.id} is to stand still where it has a place")
            self.at_commit = directive
            return None
        lost = quiesce.lost_engine_ids
        if quiesce.mode is QuiesceMode.FENCE and trains and self._pipeline_is_whole(lost):
            self._drop_staged()
            return self._report(kept=self.assigned())
        return self.park()

    def park(self) -> FenceReport:
        """Stand still, and promise to join no sum of an older generation."""
        if self.state is not EngineState.FINISHED:
            self.state = EngineState.PARKED
        self._drop_staged()
        return self._report()

    def _drop_staged(self) -> None:
        self.at_commit = None
        self.staged, self.staged_generation, self.followed = None, 0, {}

    def _report(self, *, kept: frozenset[int] | None = None) -> FenceReport:
        now = self.clock.now()
        return FenceReport(
            committed_steps=self.committed_steps,
            last_commit=self.last_commit,
            layers=self.held(),
            finished_microbatches=tuple(sorted(self.gradients)),
            step_compute_seconds=self.compute_seconds,
            fence_time=now,
            park_time=now if kept is None else None,
            applied_generation=self.place_generation,
            kept_microbatches=tuple(sorted(kept or ())),
        )

    def _pipeline(self, activate: Activate) -> PipelineAssignment | None:
        """Its pipeline, by an Activate; None for a follower."""
        mine = [p for p in activate.pipelines if self.id in {s.engine_id for s in p.stages}]
        return mine[0] if mine else None

    def _pipeline_is_whole(self, lost: tuple[str, ...]) -> bool:
        pipeline = self._pipeline(self.place) if self.place is not None else None
        return pipeline is not None and not {s.engine_id for s in pipeline.stages} & set(lost)

    def assigned(self) -> frozenset[int]:
        """The microbatches that its pipeline computes of the step in flight."""
        pipeline = self._pipeline(self.place) if self.place is not None else None
        if self.place is None or pipeline is None:
            return frozenset()
        if pipeline.step_microbatches and self.committed_steps == self.place.committed_steps:
            return frozenset(pipeline.step_microbatches)
        return frozenset(pipeline.microbatches)

    def held(self) -> tuple[HeldLayer, ...]:
        return tuple(HeldLayer(layer=k, version=v) for k, v in sorted(self.layers.items()))

    def _commit_from_record(self, record: CommitRecord) -> Outcome:
        if not self.has_sums or record.step != self.committed_steps:
            return Committed(
                committed_steps=self.committed_steps, stale_layers=tuple(sorted(self.layers))
            )
        self.apply(record)
        if record.next_generation and self.state is EngineState.TRAINING:
            self.state = EngineState.PARKED
        return Committed(committed_steps=self.committed_steps, stale_layers=())

    def apply(self, record: CommitRecord) -> None:
        """Commit a step: the only thing that changes parameters [3]."""
        if record.step != self.committed_steps:
            self.violations.append(f"{self.id} commits {record.step} at {self.committed_steps}")
        owned = self.owned()
        self.layers = {  # those of the place before this one are of no use any more
            layer: version + 1 if version == self.committed_steps else version
            for layer, version in self.layers.items()
            if layer in owned
        }
        self.committed_steps += 1
        self.last_commit = record
        self.has_sums = False
        self.gradients = frozenset()
        self.compute_seconds = 0.0
        self.progress += 1
        if self.committed_steps == self.num_commits:
            self.state = EngineState.FINISHED

    def _activate(self, activate: Activate, generation: int) -> Outcome:
        if activate.committed_steps < self.committed_steps:
            self.violations.append(f"{self.id} is taken back from {self.committed_steps} [2]")
        needed = self._layers_needed(activate)
        for layer in needed:
            if self.layers.get(layer) != activate.committed_steps:
                self.violations.append(
                    f"{self.id} has layer {layer} in version {self.layers.get(layer)}, not "
                    f"{activate.committed_steps} [2]"
                )
        self.layers = dict.fromkeys(needed, activate.committed_steps)
        pipeline = self._pipeline(activate)
        if pipeline is not None and pipeline.keeps_step:
            self._keep_step(pipeline)
        else:
            self.gradients = frozenset()
            self.compute_seconds = 0.0
        self._drop_staged()
        self.place, self.place_generation = activate, generation
        self.committed_steps = activate.committed_steps
        self.state = EngineState.TRAINING
        self.has_sums = False
        now = self.clock.now()
        return Activated(
            rebuild_start_time=now,
            resume_time=now,
            num_communicators=1,
            committed_steps=self.committed_steps,
        )

    # -- changing behind a commit ------------------------------------------------------------------

    def _stage(self, activate: Activate, generation: int) -> Outcome:
        now = self.clock.now()
        held = self.owned() if self.state is EngineState.TRAINING else ()
        lacking = [k for k in self._layers_needed(activate) if k not in held]
        if [source.layer for source in activate.layers] != lacking:
            self.violations.append(f"{self.id} lacks {lacking} and is sent {activate.layers}")
        followed = {s.layer: self._source(s.layer, s.addresses) for s in activate.layers}
        if None in followed.values():
            return Failure(reason=ErrorReason.COPY_FAILED, message=f"nobody serves {self.id}")
        pipeline = self._pipeline(activate)
        if pipeline is not None and pipeline.keeps_step:
            before = self._pipeline(self.place) if self.place is not None else None
            if before is None or before.stages != pipeline.stages:
                self.violations.append(f"{self.id} is to keep another pipeline")
        self._drop_staged()
        self.staged, self.staged_generation = activate, generation
        self.followed = {layer: source for layer, source in followed.items() if source}
        return Staged(
            num_bytes=100 * len(followed),
            start_time=now,
            rebuild_end_time=now,
            copy_end_time=now if followed else None,
            num_communicators=1,
        )

    def _source(self, layer: int, addresses: tuple[str, ...]) -> str | None:
        """Whom it follows: an engine that trains with the layer."""
        peers = self.peers()
        for address in addresses:
            source = peers.get(address.removeprefix("data:"))
            if source is not None and layer in source.owned():
                return source.id
        return None

    def leave_place(self, generation: int) -> None:
        """It has passed the commit, and has promised nothing for what comes behind it."""
        if self.staged_generation == generation and self.state is EngineState.TRAINING:
            self.state = EngineState.REBUILDING
            self.place, self.place_generation = None, 0

    def take_place(self) -> Outcome | None:
        """Take the staged place, when all the layers that it lacked have come to the commit."""
        activate = self.staged
        if activate is None or not self._may_take_place():
            return None
        peers = self.peers()
        steps = self.committed_steps
        for layer, source_id in self.followed.items():
            source = peers[source_id]
            steps, self.last_commit = source.committed_steps, source.last_commit
            self.layers[layer] = steps
        self.place, self.place_generation = activate, self.staged_generation
        self.committed_steps = steps
        self.state = EngineState.TRAINING
        self.staged, self.staged_generation, self.followed = None, 0, {}
        now = self.clock.now()
        return Activated(
            rebuild_start_time=now, resume_time=now, num_communicators=0, committed_steps=steps
        )

    def _may_take_place(self) -> bool:
        peers = self.peers()
        sources = [peers.get(source_id) for source_id in self.followed.values()]
        if self.state is EngineState.REBUILDING:
            return all(s is not None and s.committed_steps == self.committed_steps for s in sources)
        told = [s is not None and s.has_passed(self.staged_generation) for s in sources]
        return self.state is EngineState.PARKED and bool(told) and all(told)

    def has_passed(self, generation: int) -> bool:
        """Whether its last commit was the one behind which a generation takes its places."""
        return self.last_commit is not None and self.last_commit.next_generation == generation

    def owned(self) -> tuple[int, ...]:
        """The layers of its place."""
        return self._layers_needed(self.place) if self.place is not None else tuple(self.layers)

    def _layers_needed(self, activate: Activate) -> tuple[int, ...]:
        for follower in activate.followers:
            if follower.engine_id == self.id:
                return follower.layers
        mine = [s for p in activate.pipelines for s in p.stages if s.engine_id == self.id]
        return tuple(range(mine[0].first_layer, mine[0].first_layer + mine[0].num_layers))

    def _keep_step(self, pipeline: PipelineAssignment) -> None:
        """Its gradients stay, and so must its pipeline, and what it has been told to compute."""
        before = self._pipeline(self.place) if self.place is not None else None
        if self.state is not EngineState.TRAINING or before is None:
            self.violations.append(f"{self.id} stands still and is to keep a step")
        elif before.stages != pipeline.stages:
            self.violations.append(f"{self.id} is to keep a step of another pipeline")
        elif not self.assigned() <= set(pipeline.step_microbatches):
            self.violations.append(f"{self.id} computes what is not counted [1]")
