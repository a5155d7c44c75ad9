"""Engines that do what protocol/*.md promises of them: directives, and a step with its commit."""

from collections.abc import Iterator
from dataclasses import asdict

from planaria_coordinator.domain.engines.directive import (
    Activate,
    Command,
    Commit,
    CommitRecord,
    Copy,
    Prepare,
    Quiesce,
    QuiesceMode,
    Stop,
    Switch,
)
from planaria_coordinator.domain.engines.outcome import (
    Activated,
    Committed,
    Copied,
    FenceReport,
    Stopped,
)
from planaria_worker.engine.step.commit_record import CommitRecord as WorkersRecord
from planaria_worker.engine.step.commit_record import KeptSums, RollForward, roll_forward
from unit.coordinator.protocol_handover import Handover
from unit.coordinator.protocol_state import (
    NOON,
    NUM_MICROBATCHES,
    Lack,
    Member,
    Place,
    Start,
    State,
    ViolationError,
    held,
    put,
    without_staged,
)


class Engines(Handover):
    """What engines may do next."""

    def _hear(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """A directive arrives, or one that is superseded never does."""
        queue = state.to_engines[index]
        for number in range(len(queue) if self.reorders else min(1, len(queue))):
            generation, command = queue[number]
            rest = (*queue[:number], *queue[number + 1 :])
            taken = state._replace(to_engines=put(state.to_engines, index, rest))
            what = f"{command.kind} of generation {generation}"
            yield (
                f"{self.nodes[index]} hears {what}",
                self._hears(taken, index, generation, command),
            )
            if isinstance(command, Activate) and not command.at_commit and state.num_lacks:
                lacking = taken._replace(num_lacks=state.num_lacks - 1)
                yield (
                    f"{self.nodes[index]} cannot make the groups of {what}",
                    self._hears(lacking, index, generation, command, has_groups=False),
                )
            superseded = generation < self.runs[state.run].generation
            if superseded and not isinstance(command, Prepare | Stop):
                yield f"{self.nodes[index]} never hears {what}", taken

    def _hears(
        self,
        state: State,
        index: int,
        generation: int,
        command: Command,
        *,
        has_groups: bool = True,
    ) -> State:
        if isinstance(command, Prepare):
            return self._start(state, index, generation)
        member = state.members[index]
        assert member is not None
        if isinstance(command, Stop):
            return self._remove(self._answer(state, index, "stop", generation, Stopped()), index)
        if generation < member.generation and self.rules.refuse_stale:
            return state  # refused: nobody waits for the answer any more [4]
        newest = max(generation, member.generation)
        state = self._put_member(state, index, member._replace(generation=newest))
        match command:
            case Quiesce():
                return self._quiesce(state, index, generation, command)
            case Commit(record=record):
                return self._apply_record(state, index, generation, record)
            case Copy():
                return self._copy(state, index, generation, command)
            case Activate(at_commit=True):
                return self._stage(state, index, generation, command)
            case Activate():
                return self._activate(state, index, generation, command, has_groups=has_groups)
            case Switch():
                return self._switch(state, index, generation)
            case _:
                return state  # the end of the job is not part of this model

    def _start(self, state: State, index: int, generation: int) -> State:
        """Have the engine ready; that is heard at once, since nobody can tell when it was ready."""
        state = self._put_member(state, index, Member(generation=generation, is_parked=True))
        state = self._answer(state, index, "prepare", generation, Start.READY)
        return self._coordinator_hears(state, index)

    def _quiesce(self, state: State, index: int, generation: int, command: Quiesce) -> State:
        member = state.members[index]
        assert member is not None
        trains = self._may_train(member) and member.steps < self.num_steps
        if member.staged >= 0 and self.places[member.staged].generation == generation:
            raise ViolationError(f"{self.nodes[index]} is to stand still where it has a place")
        member = without_staged(member)
        if command.mode is QuiesceMode.AT_COMMIT and trains:
            return self._put_member(state, index, member._replace(mark=generation))
        whole = trains and command.mode is QuiesceMode.FENCE
        if whole:
            chain, _ = self._chain(member, index)
            whole = bool(chain) and not set(chain) & set(command.lost_engine_ids)
        parked = member._replace(
            is_fenced=self.rules.fence, is_parked=member.is_parked or not whole
        )
        state = self._put_member(state, index, parked)
        kept = self._assigned(member, index) if whole else frozenset()
        report = self._report(parked, kept, parked=not whole)
        return self._answer(state, index, "quiesce", generation, report)

    def _report(self, member: Member, kept: frozenset[int], *, parked: bool) -> FenceReport:
        record = None
        if member.record is not None:
            step, generation, next_generation = member.record
            record = CommitRecord(
                step=step,
                generation=generation,
                gradient_norm=1.0,
                loss=1.0,
                num_tokens=1,
                next_generation=next_generation,
            )
        return FenceReport(
            committed_steps=member.steps,
            last_commit=record,
            layers=held(member),
            finished_microbatches=(),
            step_compute_seconds=0.0,
            fence_time=NOON,
            park_time=NOON if parked else None,
            applied_generation=0 if parked else self.places[member.place].generation,
            kept_microbatches=tuple(sorted(kept)),
        )

    def _apply_record(
        self, state: State, index: int, generation: int, record: CommitRecord
    ) -> State:
        """Do what the worker's own code says of a record and the sums that an engine has."""
        member = state.members[index]
        assert member is not None
        kept = KeptSums(step=member.steps, generation=member.sums) if member.sums else None
        theirs = WorkersRecord(**asdict(record))
        try:
            todo = roll_forward(theirs, committed_steps=member.steps, kept=kept)
        except ValueError as error:
            raise ViolationError(f"{self.nodes[index]} is told of {error} [2]") from error
        if todo is RollForward.APPLY:
            member = self._committed(member, index, record.next_generation)
            member = member._replace(is_parked=member.is_parked or record.next_generation > 0)
        elif todo is RollForward.STALE:
            member = member._replace(
                is_parked=True,
                steps=record.step + 1,
                gradients=frozenset(),
                sums=0,
                record=(record.step, record.generation, record.next_generation),
            )
        state = self._put_member(state, index, member)
        stale = tuple(h.layer for h in held(member) if h.version != member.steps)
        answer = Committed(committed_steps=member.steps, stale_layers=stale)
        return self._answer(state, index, "commit", generation, answer)

    def _copy(self, state: State, index: int, generation: int, command: Copy) -> State:
        member = state.members[index]
        assert member is not None
        layers = list(member.layers)
        for source in command.layers:
            if not source.addresses:  # made from the seed, before the first step
                layers[source.layer] = ()
                continue
            found = next(
                (
                    made_by
                    for address in source.addresses
                    if (holder := state.members[self.index[address]]) is not None
                    and (made_by := holder.layers[source.layer]) is not None
                    and len(made_by) == command.version
                ),
                None,
            )
            if found is None:
                return self._answer(state, index, "copy", generation, Lack.SOURCE)
            layers[source.layer] = found
        member = member._replace(layers=tuple(layers))
        copied = Copied(num_bytes=1, layers=held(member), start_time=NOON, end_time=NOON)
        state = self._put_member(state, index, member)
        return self._answer(state, index, "copy", generation, copied)

    def _activate(
        self, state: State, index: int, generation: int, command: Activate, *, has_groups: bool
    ) -> State:
        """Take a place; without groups a pipeline that keeps its step has it all the same."""
        before = state.members[index]
        assert before is not None
        number = self._number_of_place(generation, command)
        place = self.places[number]
        needed = dict(place.layers)[self.ids[index]]
        if command.committed_steps < before.steps:
            raise ViolationError(f"{self.nodes[index]} is taken back [2]")
        for layer in needed:
            made_by = before.layers[layer]
            if made_by is None or len(made_by) != command.committed_steps:
                raise ViolationError(f"{self.nodes[index]} lacks layer {layer} [2]")
        member = Member(
            generation=generation,
            place=number,
            steps=command.committed_steps,
            sums=0 if self.rules.void_sums else before.sums,
            layers=tuple(h if k in needed else None for k, h in enumerate(before.layers)),
            record=before.record,
        )
        chain, _ = self._chain(member, index)
        if chain and place.keeps[place.chains.index(chain)]:
            if before.is_parked or self._chain(before, index)[0] != chain:
                raise ViolationError(f"{self.nodes[index]} is to keep a step it does not run [1]")
            member = member._replace(gradients=before.gradients, num_kept=before.num_kept + 1)
            if not self._assigned(before, index) <= self._assigned(member, index):
                raise ViolationError(f"{self.nodes[index]} computes what is not counted [1]")
        elif not has_groups:
            member = before._replace(generation=generation, is_parked=True, sums=0)
        elif not self.rules.clear_broken:
            member = member._replace(gradients=before.gradients)
        if not has_groups:
            state = self._put_member(state, index, member._replace(is_fenced=True))
            return self._answer(state, index, "activate", generation, Lack.GROUPS)
        state = self._join(self._put_member(state, index, member), index)
        answer = Activated(rebuild_start_time=NOON, resume_time=NOON, num_communicators=1)
        return self._answer(state, index, "activate", generation, answer)

    def _advance(self, state: State, index: int, member: Member) -> Iterator[tuple[str, State]]:
        """Compute, adopt a sum, or learn that all have theirs."""
        if member.steps >= self.num_steps:
            return
        chain, position = self._chain(member, index)
        if position == 0 and not member.gradients >= self._assigned(member, index):
            computed = self._compute(state, chain, member)
            if computed is not None:
                yield f"the pipeline of {self.nodes[index]} computes", computed
        if member.is_fenced:
            return
        place = self.places[member.place]
        if member.sums == 0 and self._sum_is_complete(state, index, member, place):
            yield f"{self.nodes[index]} has its sums", self._adopt(state, index, member, place)
        elif member.sums and self._all_have_claimed(state, member, place):
            yield f"{self.nodes[index]} commits", self._pass_exchange(state, index, member)

    def _compute(self, state: State, chain: tuple[str, ...], first: Member) -> State | None:
        """A pipeline computes together, or waits for those of it that are elsewhere."""
        indices = [self.index[other] for other in chain]
        for index in indices:
            other = state.members[index]
            together = other is not None and (other.place, other.steps, other.gradients) == (
                first.place,
                first.steps,
                first.gradients,
            )
            if other is None or not together or other.is_parked:
                return None
        for index in indices:
            other = state.members[index]
            assert other is not None
            done = other._replace(gradients=other.gradients | self._assigned(other, index))
            state = self._join(self._put_member(state, index, done), index)
        return state

    def _sum_is_complete(self, state: State, index: int, member: Member, place: Place) -> bool:
        mine = dict(place.layers)[self.ids[index]]
        owners = {self.index[e] for e, layers in place.layers if layers & mine}
        if not self.rules.followers_sum:
            owners &= {self.index[e] for chain in place.chains for e in chain} | {index}
        joined = {j[2] for j in state.joined if j[:2] == (member.place, member.steps)}
        return owners <= joined

    def _adopt(self, state: State, index: int, member: Member, place: Place) -> State:
        for layer in dict(place.layers)[self.ids[index]]:
            owners = {self.index[e] for e, layers in place.layers if layer in layers}
            summed = sorted(
                m
                for number, step, other, gradients in state.joined
                if (number, step) == (member.place, member.steps) and other in owners
                for m in gradients
            )
            if summed != list(range(NUM_MICROBATCHES)):
                raise ViolationError(f"layer {layer} sums microbatches {summed} [1]")
        claim = (member.place, member.steps, index, member.mark)
        state = state._replace(claimed=state.claimed | {claim})
        return self._put_member(state, index, member._replace(sums=place.generation))

    def _claims(self, state: State, member: Member) -> dict[int, int]:
        here = (member.place, member.steps)
        return {claim[2]: claim[3] for claim in state.claimed if claim[:2] == here}

    def _all_have_claimed(self, state: State, member: Member, place: Place) -> bool:
        wanted = {self.index[e] for e, _ in place.layers}
        if not self.rules.followers_sum:
            wanted = {self.index[e] for chain in place.chains for e in chain}
        return wanted <= self._claims(state, member).keys()

    def _pass_exchange(self, state: State, index: int, member: Member) -> State:
        marks = set(self._claims(state, member).values())
        next_generation = marks.pop() if len(marks) == 1 else 0
        if not self.rules.all_hold_the_mark:
            next_generation = member.mark
        committed = self._committed(member, index, next_generation)
        is_last = committed.steps >= self.num_steps
        state = self._put_member(state, index, committed)
        if member.mark and not member.switches and (next_generation or is_last):
            parked = committed._replace(is_parked=True, mark=0)
            report = self._report(parked, frozenset(), parked=True)
            state = self._put_member(state, index, parked)
            return self._answer(state, index, "quiesce", member.mark, report)
        if is_last:
            return state
        if not next_generation:
            return self._join(state, index)
        state = self._put_member(state, index, committed._replace(place=-1))
        keeps = self._keeps(member.staged, index)
        return self._take_place(state, index) if keeps else state
