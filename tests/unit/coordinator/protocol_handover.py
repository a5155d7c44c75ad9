"""Engines that make their next place ready, and take it behind a commit."""

from collections.abc import Iterator

from planaria_coordinator.domain.engines.directive import Activate
from planaria_coordinator.domain.engines.outcome import Activated, Staged
from unit.coordinator.protocol_base import Base
from unit.coordinator.protocol_state import (
    NOON,
    NUM_LAYERS,
    Followed,
    Lack,
    Member,
    State,
    ViolationError,
    put,
    without_staged,
)

STAGED = Staged(
    num_bytes=0,
    start_time=NOON,
    rebuild_end_time=NOON,
    copy_end_time=None,
    num_communicators=1,
)


class Handover(Base):
    """The next place of an engine: staged, followed, taken."""

    def _stage(self, state: State, index: int, generation: int, command: Activate) -> State:
        member = state.members[index]
        assert member is not None
        number = self._number_of_place(generation, command)
        needed = self._owned(number, index)
        held = self._owned(member.place, index) if self._may_train(member) else frozenset()
        if {source.layer for source in command.layers} != needed - held:
            raise ViolationError(f"{self.nodes[index]} is not sent what its place lacks")
        if self._keeps(number, index):
            chain, _ = self._chain(member, index)
            if chain != self._chain(member._replace(place=number), index)[0]:
                raise ViolationError(f"{self.nodes[index]} is to keep another pipeline")
        member = without_staged(member)._replace(staged=number)
        for source in command.layers:
            serves = [
                Followed(source.layer, self.index[address], history)
                for address in source.addresses
                if (holder := state.members[self.index[address]]) is not None
                and source.layer in self._owned(holder.place, self.index[address])
                and (history := holder.layers[source.layer]) is not None
            ]
            if not serves:
                return self._answer(state, index, "activate", generation, Lack.SOURCE)
            member = member._replace(followed=(*member.followed, serves[0]))
        return self._put_member(state, index, member)

    def _make_ready(self, state: State, index: int, member: Member) -> Iterator[tuple[str, State]]:
        """Follow a layer, say that the place is ready, or take it behind the commit.

        That the place is ready is heard at once: when it is heard later, it might as well have
        become ready later, since nobody else can tell.
        """
        name = self.nodes[index]
        ahead = [self._ahead(state, followed) for followed in member.followed]
        for number, further in enumerate(ahead):
            if further is not None:
                followed = put(member.followed, number, further)
                moved = self._put_member(state, index, member._replace(followed=followed))
                yield f"{name} follows layer {further.layer}", moved
        if not member.has_told and state.num_failures:
            failing = state._replace(num_failures=state.num_failures - 1)
            yield f"{name} cannot make its place ready", self._tell(failing, index, Lack.SOURCE)
        if not member.has_told and not any(ahead) and self._groups_stand(state, member):
            yield f"{name} has its place ready", self._tell(state, index, STAGED)
        if self._may_take_place(member):
            yield f"{name} takes its place", self._take_place(state, index)

    def _tell(self, state: State, index: int, outcome: Staged | Lack) -> State:
        member = state.members[index]
        assert member is not None
        state = self._put_member(state, index, member._replace(has_told=True))
        generation = self.places[member.staged].generation
        state = self._answer(state, index, "activate", generation, outcome)
        first = len(state.to_coordinator[index]) == 1
        return self._coordinator_hears(state, index) if first else state

    def _ahead(self, state: State, followed: Followed) -> Followed | None:
        """The layer with one commit more of its source, when that has one."""
        source = state.members[followed.source]
        history = source.layers[followed.layer] if source is not None else None
        if history is None or len(history) <= len(followed.history):
            return None
        return followed._replace(history=history[: len(followed.history) + 1])

    def _groups_stand(self, state: State, member: Member) -> bool:
        everyone = (state.members[self.index[e]] for e, _ in self.places[member.staged].layers)
        return all(other is not None and other.staged == member.staged for other in everyone)

    def _switch(self, state: State, index: int, generation: int) -> State:
        member = state.members[index]
        assert member is not None
        if member.place >= 0 and self.places[member.place].generation == generation:
            return self._answer_switch(state, index)  # it knew from the layer it follows
        if member.staged < 0 or self.places[member.staged].generation != generation:
            raise ViolationError(f"{self.nodes[index]} has no place of generation {generation}")
        marked = member._replace(mark=generation, switches=True)
        return self._put_member(state, index, marked)

    def _answer_switch(self, state: State, index: int) -> State:
        member = state.members[index]
        assert member is not None
        outcome = Activated(
            rebuild_start_time=NOON,
            resume_time=NOON,
            num_communicators=0,
            committed_steps=member.steps,
        )
        generation = self.places[member.place].generation
        return self._answer(state, index, "switch", generation, outcome)

    def _may_take_place(self, member: Member) -> bool:
        if member.steps >= self.num_steps:
            return False
        histories = [followed.history for followed in member.followed]
        if member.place < 0 and not member.is_parked:  # it has passed the commit itself
            has_all = all(len(history) == member.steps for history in histories)
            return has_all or not self.rules.follow_to_the_commit
        if not member.is_parked or not all(histories):
            return False
        generation = self.places[member.staged].generation
        told = [history[-1][1] == generation for history in histories]
        has_all = all(told) if self.rules.follow_to_the_commit else any(told)
        return has_all and len(histories[0]) < self.num_steps

    def _take_place(self, state: State, index: int) -> State:
        before = state.members[index]
        assert before is not None
        owned = self._owned(before.staged, index)
        steps, record, layers = before.steps, before.record, before.layers
        if before.is_parked:  # a joiner
            longest = max((followed.history for followed in before.followed), key=len)
            steps, layers = len(longest), (None,) * NUM_LAYERS
            record = (steps - 1, *longest[-1]) if self.rules.joiner_is_witness else None
        if not self.rules.keep_old_layers:
            layers = tuple(h if layer in owned else None for layer, h in enumerate(layers))
        for layer, _, history in before.followed:
            layers = put(layers, layer, history)
        member = Member(
            generation=before.generation,
            place=before.staged,
            steps=steps,
            layers=layers,
            record=record,
            num_kept=before.num_kept if self._keeps(before.staged, index) else 0,
        )
        state = self._join(self._put_member(state, index, member), index)
        return self._answer_switch(state, index) if before.switches else state
