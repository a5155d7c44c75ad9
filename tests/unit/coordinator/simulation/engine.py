"""An engine of the simulation: the model of one engine, with directives by id and a clock."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import (
    Command,
    CommitRecord,
    DigestLayers,
    Directive,
    DiscardCheckpoint,
    Export,
    PlanCommand,
    SealCheckpoint,
    StagePlan,
    Stop,
    WriteCheckpoint,
)
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState
from planaria_coordinator.domain.engines.outcome import (
    CheckpointDiscarded,
    CheckpointSealed,
    CheckpointTaken,
    Digested,
    Exported,
    Failure,
    FenceReport,
    Outcome,
    Staged,
    Stopped,
)
from support.clock import FakeClock
from unit.coordinator.protocol.engine_model import BYTES_PER_LAYER, EngineModel, Peers
from unit.coordinator.protocol.engine_state import FAILURES, Lack, Member, Said, ViolationError


@dataclass(slots=True)
class SimEngine:
    """An engine; `violations` collects what must never happen."""

    job_id: str
    clock: FakeClock
    steps: int
    """Of training; one more commit may evaluate."""
    violations: list[str]
    model: EngineModel
    member: Member
    peers: Peers
    progress: int = 0
    pending: Directive | None = None
    """A Quiesce or a Switch that waits for the next commit."""
    plans: dict[int, PlanCommand] = field(default_factory=dict)
    """The commands that brought them, by number of the plan."""
    results: dict[str, Outcome] = field(default_factory=dict)
    compute_end_time: datetime | None = None

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def generation(self) -> int:
        return self.member.generation

    @property
    def committed_steps(self) -> int:
        return self.member.steps

    @property
    def gradients(self) -> frozenset[int]:
        return self.member.gradients

    @property
    def layers(self) -> dict[int, int]:
        """Version by layer."""
        return {held.layer: held.version for held in self.member.held()}

    @property
    def owned(self) -> frozenset[int]:
        """The layers of its assignment."""
        return self.model.owned(self.member.plan)

    @property
    def active(self) -> PlanCommand | None:
        """The command that brought the plan in force."""
        return self.plans.get(self.member.plan)

    @property
    def active_generation(self) -> int:
        return self.model.plans[self.member.plan].generation if self.member.plan >= 0 else 0

    @property
    def staged(self) -> PlanCommand | None:
        """The command that brought the plan to switch to at a commit."""
        return self.plans.get(self.member.staged)

    @property
    def state(self) -> EngineState:
        if self.member.steps == self.model.num_steps:
            return EngineState.FINISHED
        if self.member.is_parked:
            return EngineState.PARKED
        return EngineState.TRAINING if self.member.plan >= 0 else EngineState.REBUILDING

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

    # -- directives --------------------------------------------------------------------------------

    def handle(self, directive: Directive) -> Outcome | None:
        """Carry out a directive once; None when the answer comes later."""
        if directive.id in self.results:
            return self.results[directive.id]
        if directive.generation < self.generation and not isinstance(directive.command, Stop):
            return Failure(reason=ErrorReason.STALE_GENERATION, message="stale", metadata={})
        try:
            outcome = self._end_of_job(directive.command) or self._in_full(
                directive.command, self._carry_out(directive)
            )
        except ViolationError as violation:
            self.violations.append(str(violation))
            return Failure(reason=ErrorReason.ENGINE_FAILED, message=str(violation))
        if outcome is not None:
            self.results[directive.id] = outcome
        return outcome

    def _carry_out(self, directive: Directive) -> Said | None:
        generation, command = directive.generation, directive.command
        if isinstance(command, PlanCommand):
            self.plans[self.model.plans.number(generation, command)] = command
        self.member, said = self.model.carry_out(self.member, generation, command, self.peers)
        if not isinstance(command, PlanCommand):
            self.pending = directive if self.member.mark == generation and said is None else None
        return said

    def _in_full(self, command: Command, said: Said | None) -> Outcome | None:
        """Return the answer; staging ends at once here."""
        if isinstance(said, Lack):
            return FAILURES[said]
        if said is None and isinstance(command, StagePlan):
            now = self.clock.now()
            self.member = self.member._replace(has_told=True)
            return Staged(
                num_bytes=BYTES_PER_LAYER * len(command.layers),
                start_time=now,
                rebuild_end_time=now,
                copy_end_time=now if command.layers else None,
            )
        if isinstance(said, FenceReport):
            return replace(said, compute_end_time=self.compute_end_time)
        return said  # type: ignore[return-value]

    def _end_of_job(self, command: Command) -> Outcome | None:
        """Carry out what the protocol's model leaves out: digests, files, the end."""
        match command:
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
        return None

    # -- the step ----------------------------------------------------------------------------------

    @property
    def takes_part(self) -> bool:
        """Whether it computes, sums and votes."""
        return self.state is EngineState.TRAINING and not self.member.is_fenced

    @property
    def has_sums(self) -> bool:
        """Whether every sum of the step in flight is complete here."""
        return self.member.sums > 0

    def compute(self) -> None:
        """Compute its share of the step, and get all its sums."""
        self.member = self.member._replace(
            gradients=self.model.assigned(self.member), sums=self.active_generation
        )
        self.compute_end_time = self.clock.now()
        self.progress += 1

    def commit(self, record: CommitRecord) -> Outcome | None:
        """Commit the step; returns the answer to a Quiesce that waited for it."""
        if record.step != self.committed_steps:
            self.violations.append(f"{self.id} commits {record.step} at {self.committed_steps}")
        self.member, report = self.model.commit(self.member, record.next_generation)
        self.compute_end_time = self.clock.now()
        self.progress += 1
        if isinstance(report, FenceReport):
            report = replace(report, compute_end_time=self.compute_end_time)
        return report

    def switch(self) -> Outcome | None:
        """Follow its sources, and switch if all have reached the commit; return the answer."""
        while not self.model.may_switch(self.member):
            followed = self.member.followed
            further = [self.model.follow(each, self.peers) for each in followed]
            if not any(further):
                return None
            moved = tuple(new or old for new, old in zip(further, followed, strict=True))
            self.member = self.member._replace(followed=moved)
        self.member = self.model.switch(self.member)
        return self.model.switched(self.member)
