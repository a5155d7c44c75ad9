"""One engine, as a pure function of what it knows and what it receives.

It guarantees what docs/explanation/protocol says of engines, and raises ViolationError for a
directive that must never reach it. The search of the protocol (model.py) goes through
all orders of events with it; the simulation (simulation/world.py) puts it in reach of a real
coordinator.
"""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from planaria_coordinator.domain.engines.directive import (
    Activate,
    Command,
    CommitRecord,
    Copy,
    Quiesce,
    QuiesceMode,
    RollForward,
    StagePlan,
    Switch,
)
from planaria_coordinator.domain.engines.outcome import (
    Activated,
    Copied,
    FenceReport,
    RolledForward,
)
from planaria_worker.engine.commit_record import CommitRecord as WorkersRecord
from planaria_worker.engine.recovery.roll_forward import (
    RollForwardDecision,
    SumsKey,
    decide_roll_forward,
)
from unit.coordinator.protocol.engine_state import (
    NOON,
    Followed,
    History,
    Lack,
    Member,
    Plans,
    Rules,
    Said,
    ViolationError,
)

Peers = Callable[[str], Member | None]
"""Finds a living engine by its address."""
After = tuple[Member, Said | None]
"""What an engine knows then, and its answer, if it answers now."""
BYTES_PER_LAYER = 100


def plain_record(step: int, generation: int, next_generation: int) -> CommitRecord:
    return CommitRecord(
        step=step,
        generation=generation,
        gradient_norm=1.0,
        loss=1.0,
        num_tokens=1,
        next_generation=next_generation,
    )


class EngineModel:
    """What one engine does."""

    def __init__(
        self,
        engine_id: str,
        plans: Plans,
        num_steps: int,
        *,
        now: Callable[[], datetime] = lambda: NOON,
        make_record: Callable[[int, int, int], CommitRecord] = plain_record,
    ) -> None:
        """Describe the engine.

        Args:
            engine_id: its name in plans.
            plans: those of its job.
            num_steps: commits of the job.
            now: its clock.
            make_record: the record of a step, its generation and the next one.
        """
        self.id = engine_id
        self.plans = plans
        self.num_steps = num_steps
        self._now = now
        self._make_record = make_record

    # -- what it knows -----------------------------------------------------------------------------

    def chain(self, number: int) -> tuple[str, ...]:
        """Return its pipeline in a plan; empty for a follower."""
        chains = self.plans[number].chains if number >= 0 else ()
        return next((chain for chain in chains if self.id in chain), ())

    def assigned(self, member: Member) -> frozenset[int]:
        """Return the microbatches that its pipeline computes of the step in flight."""
        if not (chain := self.chain(member.plan)):
            return frozenset()
        plan = self.plans[member.plan]
        in_flight = member.steps == plan.committed_steps
        return (plan.step_shares if in_flight else plan.shares)[plan.chains.index(chain)]

    def owned(self, number: int) -> frozenset[int]:
        """Return the layers of its assignment in a plan."""
        layers = dict(self.plans[number].layers) if number >= 0 else {}
        return layers.get(self.id, frozenset())

    def keeps(self, number: int) -> bool:
        """Tell whether a plan leaves its pipeline as it is."""
        plan = self.plans[number]
        return any(
            keeps and self.id in chain for chain, keeps in zip(plan.chains, plan.keeps, strict=True)
        )

    # -- directives --------------------------------------------------------------------------------

    def carry_out(
        self,
        member: Member,
        generation: int,
        command: Command,
        peers: Peers,
        *,
        has_groups: bool = True,
    ) -> After:
        """Carry out a directive that is not stale."""
        member = member._replace(generation=max(generation, member.generation))
        match command:
            case Quiesce():
                return self._quiesce(member, generation, command)
            case RollForward(record=record):
                return self._roll_forward(member, record)
            case Copy():
                return self._copy(member, command, peers)
            case Activate():
                return self._activate(member, generation, command, has_groups=has_groups)
            case StagePlan():
                return self._stage(member, generation, command, peers)
            case Switch():
                return self._switch(member, generation)
            case _:
                return member, None  # the end of the job is not part of this model

    def _quiesce(self, member: Member, generation: int, command: Quiesce) -> After:
        trains = member.is_training and member.steps < self.num_steps
        if member.staged >= 0 and self.plans[member.staged].generation == generation:
            raise ViolationError(f"{self.id} is to park where it has an assignment")
        member = member.without_staged()
        if command.mode is QuiesceMode.AT_COMMIT and trains:
            return member._replace(mark=generation), None
        chain = self.chain(member.plan)
        is_fence = command.mode is QuiesceMode.FENCE
        goes_on = (
            trains and is_fence and bool(chain) and not set(chain) & set(command.lost_engine_ids)
        )
        member = member._replace(is_fenced=Rules.fence, is_parked=member.is_parked or not goes_on)
        kept = self.assigned(member) if goes_on else frozenset()
        return member, self.report(member, kept, parked=not goes_on)

    def report(self, member: Member, kept: frozenset[int], *, parked: bool) -> FenceReport:
        now = self._now()
        return FenceReport(
            committed_steps=member.steps,
            last_commit=self._make_record(*member.record) if member.record else None,
            layers=member.held(),
            finished_microbatches=tuple(sorted(member.gradients)),
            step_compute_seconds=1.0 if member.gradients else 0.0,
            fence_time=now,
            park_time=now if parked else None,
            applied_generation=0 if parked else self.plans[member.plan].generation,
            kept_microbatches=tuple(sorted(kept)),
        )

    def _roll_forward(self, member: Member, record: CommitRecord) -> After:
        """Do what the worker's own code says of a record and the sums that an engine has."""
        kept = SumsKey(step=member.steps, generation=member.sums) if member.sums else None
        try:
            todo = decide_roll_forward(
                WorkersRecord(**asdict(record)), committed_steps=member.steps, kept=kept
            )
        except ValueError as error:
            raise ViolationError(f"{self.id} gets {error} [2]") from error
        if todo is RollForwardDecision.APPLY:
            member = self._committed(member, record.next_generation)
            member = member._replace(is_parked=member.is_parked or record.next_generation > 0)
        elif todo is RollForwardDecision.STALE:
            member = member._replace(
                is_parked=True,
                steps=record.step + 1,
                gradients=frozenset(),
                sums=0,
                record=(record.step, record.generation, record.next_generation),
            )
        stale = tuple(h.layer for h in member.held() if h.version != member.steps)
        return member, RolledForward(committed_steps=member.steps, stale_layers=stale)

    def _copy(self, member: Member, command: Copy, peers: Peers) -> After:
        layers = list(member.layers)
        for layer in command.initial_layers:
            layers[layer] = ((0, 0),) * command.version
        for source in command.layers:
            found = next(
                (
                    made_by
                    for address in source.addresses
                    if (holder := peers(address)) is not None
                    and (made_by := holder.layers[source.layer]) is not None
                    and len(made_by) == command.version
                ),
                None,
            )
            if found is None:
                return member, Lack.SOURCE
            layers[source.layer] = found
        member = member._replace(layers=tuple(layers))
        now = self._now()
        num_bytes = BYTES_PER_LAYER * len(command.layers)
        copied = Copied(num_bytes=num_bytes, layers=member.held(), start_time=now, end_time=now)
        return member, copied

    def _activate(
        self, before: Member, generation: int, command: Activate, *, has_groups: bool
    ) -> After:
        """Take an assignment; a pipeline that keeps its step does so even without groups."""
        number = self.plans.number(generation, command)
        plan = self.plans[number]
        needed = self.owned(number)
        if command.committed_steps < before.steps:
            raise ViolationError(f"{self.id} is taken back from {before.steps} [2]")
        for layer in needed:
            made_by = before.layers[layer]
            if made_by is None or len(made_by) != command.committed_steps:
                raise ViolationError(f"{self.id} lacks layer {layer} [2]")
        member = Member(
            generation=before.generation,
            plan=number,
            steps=command.committed_steps,
            sums=0 if Rules.void_sums else before.sums,
            layers=tuple(h if k in needed else None for k, h in enumerate(before.layers)),
            record=before.record,
        )
        chain = self.chain(number)
        if chain and plan.keeps[plan.chains.index(chain)]:
            if before.is_parked or self.chain(before.plan) != chain:
                raise ViolationError(f"{self.id} is to keep a step it does not run [1]")
            member = member._replace(gradients=before.gradients, num_kept=before.num_kept + 1)
            if not self.assigned(before) <= self.assigned(member):
                raise ViolationError(f"{self.id} computes what is not counted [1]")
        elif not has_groups:
            member = before._replace(is_parked=True, sums=0)
        elif not Rules.clear_broken:
            member = member._replace(gradients=before.gradients)
        if not has_groups:
            return member._replace(is_fenced=True), Lack.GROUPS
        return member, self._activated(member)

    def _activated(self, member: Member) -> Activated:
        now = self._now()
        return Activated(
            rebuild_start_time=now,
            resume_time=now,
            committed_steps=member.steps,
        )

    # -- the commit --------------------------------------------------------------------------------

    def commit(self, member: Member, next_generation: int) -> tuple[Member, FenceReport | None]:
        """Commit the step in flight; park, or leave the plan, if that is due at this commit."""
        committed = self._committed(member, next_generation)
        is_last = committed.steps >= self.num_steps
        if member.mark and not member.switches and (next_generation or is_last):
            parked = committed._replace(is_parked=True, mark=0)
            return parked, self.report(parked, frozenset(), parked=True)
        if next_generation and not is_last:
            committed = committed._replace(plan=-1)
        return committed, None

    def _committed(self, member: Member, next_generation: int) -> Member:
        """Apply the sums, the only thing that changes a layer [3]; drop layers of old plans."""
        owned = self.owned(member.plan)
        entry = (member.sums, next_generation)
        return member._replace(
            steps=member.steps + 1,
            gradients=frozenset(),
            sums=0,
            layers=tuple(
                None
                if made_by is None or layer not in owned
                else ((*made_by, entry) if len(made_by) == member.steps else made_by)
                for layer, made_by in enumerate(member.layers)
            ),
            record=(member.steps, *entry),
        )

    # -- an online change --------------------------------------------------------------------------

    def _stage(self, member: Member, generation: int, command: StagePlan, peers: Peers) -> After:
        """Begin to follow the layers that it lacks; the answer comes when it has them."""
        number = self.plans.number(generation, command)
        held = self.owned(member.plan) if member.is_training else frozenset()
        if {source.layer for source in command.layers} != self.owned(number) - held:
            raise ViolationError(f"{self.id} is not sent what its assignment lacks")
        if self.keeps(number) and self.chain(member.plan) != self.chain(number):
            raise ViolationError(f"{self.id} is to keep another pipeline")
        staged = member.without_staged()._replace(staged=number)
        for source in command.layers:
            serves = [
                Followed(source.layer, address, history)
                for address in source.addresses
                if (holder := peers(address)) is not None
                and self._owns(holder, address, source.layer)
                and (history := holder.layers[source.layer]) is not None
            ]
            if not serves:
                return member, Lack.SOURCE
            staged = staged._replace(followed=(*staged.followed, serves[0]))
        return staged, None

    def _owns(self, holder: Member, address: str, layer: int) -> bool:
        """Tell whether an engine trains with a layer: addresses end in engines' names."""
        layers = self.plans[holder.plan].layers if holder.plan >= 0 else ()
        return any(address.endswith(engine_id) and layer in own for engine_id, own in layers)

    def follow(self, followed: Followed, peers: Peers) -> Followed | None:
        """Return the layer after one more commit of its source, if there is one."""
        source = peers(followed.source)
        history = source.layers[followed.layer] if source is not None else None
        if history is None or len(history) <= len(followed.history):
            return None
        return followed._replace(history=history[: len(followed.history) + 1])

    def _switch(self, member: Member, generation: int) -> After:
        if member.plan >= 0 and self.plans[member.plan].generation == generation:
            return member, self.switched(member)  # it knew from the layer it follows
        if member.staged < 0 or self.plans[member.staged].generation != generation:
            raise ViolationError(f"{self.id} has no assignment of generation {generation}")
        return member._replace(mark=generation, switches=True), None

    def switched(self, member: Member) -> Activated:
        """Return the answer to a Switch."""
        return self._activated(member)

    def may_switch(self, member: Member) -> bool:
        """Tell whether it has left its old plan, and the layers it follows have the commit."""
        if member.staged < 0 or member.steps >= self.num_steps:
            return False
        histories: list[History] = [followed.history for followed in member.followed]
        if member.plan < 0 and not member.is_parked:  # it has passed the commit itself
            has_all = all(len(history) == member.steps for history in histories)
            return has_all or not Rules.follow_to_the_commit
        if not member.is_parked or not histories or not all(histories):
            return False
        generation = self.plans[member.staged].generation
        told = [history[-1][1] == generation for history in histories]
        has_all = all(told) if Rules.follow_to_the_commit else any(told)
        return has_all and len(histories[0]) < self.num_steps

    def switch(self, before: Member) -> Member:
        """Take the staged assignment."""
        owned = self.owned(before.staged)
        steps, record, layers = before.steps, before.record, before.layers
        if before.is_parked:  # a joiner
            longest = max((followed.history for followed in before.followed), key=len)
            steps, layers = len(longest), (None,) * len(layers)
            record = (steps - 1, *longest[-1]) if Rules.joiner_is_witness else None
        if not Rules.keep_old_layers:
            layers = tuple(h if layer in owned else None for layer, h in enumerate(layers))
        followed = {each.layer: each.history for each in before.followed}
        return Member(
            generation=before.generation,
            plan=before.staged,
            steps=steps,
            layers=tuple(followed.get(layer, h) for layer, h in enumerate(layers)),
            record=record,
            num_kept=before.num_kept if self.keeps(before.staged) else 0,
        )
