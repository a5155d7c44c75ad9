"""What engines of the model have in common with what looks at them."""

from abc import ABC, abstractmethod
from dataclasses import replace

from planaria_coordinator.domain.engines.directive import Activate
from planaria_coordinator.domain.job.job_run import JobRun
from unit.coordinator.protocol_cluster import Cluster
from unit.coordinator.protocol_state import (
    Member,
    Place,
    Rules,
    Said,
    State,
    ViolationError,
    make_place,
    put,
)


class Base(ABC):
    """Engines and their places, by number."""

    def __init__(self, cluster: Cluster, rules: Rules, num_steps: int, *, reorders: bool) -> None:
        self.rules = rules
        self.reorders = reorders
        self.num_steps = num_steps
        self.nodes = tuple(cluster.engine_ids)
        self.ids = tuple(cluster.engine_ids.values())
        self.index = {engine_id: n for n, engine_id in enumerate(self.ids)}
        self.runs: list[JobRun] = []
        """What the coordinator knew, by number."""
        self.places: list[Place] = []
        self._place_numbers: dict[tuple[int, Activate], int] = {}

    @abstractmethod
    def _coordinator_hears(self, state: State, index: int) -> State:
        """Let the coordinator hear the first answer of an engine."""

    def _number_of_place(self, generation: int, activate: Activate) -> int:
        activate = replace(activate, layers=())  # what each lacks is its own affair
        key = (generation, activate)
        number = self._place_numbers.setdefault(key, len(self.places))
        if number == len(self.places):
            self.places.append(make_place(generation, activate))
        return number

    def _may_train(self, member: Member) -> bool:
        return not member.is_parked and member.place >= 0

    def _chain(self, member: Member, index: int) -> tuple[tuple[str, ...], int]:
        """Return the engine's pipeline and its position in it; nothing for a follower."""
        if member.place >= 0:
            for chain in self.places[member.place].chains:
                if self.ids[index] in chain:
                    return chain, chain.index(self.ids[index])
        return (), -1

    def _assigned(self, member: Member, index: int) -> frozenset[int]:
        place = self.places[member.place]
        for number, chain in enumerate(place.chains):
            if self.ids[index] in chain:
                in_flight = member.steps == place.committed_steps
                return place.step_shares[number] if in_flight else place.shares[number]
        return frozenset()

    def _owned(self, place: int, index: int) -> frozenset[int]:
        """The layers of its place in a plan."""
        layers = dict(self.places[place].layers) if place >= 0 else {}
        return layers.get(self.ids[index], frozenset())

    def _keeps(self, place: int, index: int) -> bool:
        """Whether a plan leaves its pipeline as it is."""
        chains = zip(self.places[place].chains, self.places[place].keeps, strict=True)
        return any(keeps and self.ids[index] in chain for chain, keeps in chains)

    def _committed(self, member: Member, index: int, next_generation: int) -> Member:
        """Apply the sums, the only thing that changes a layer [3]; old places are over."""
        owned = self._owned(member.place, index)
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

    def _answer(self, state: State, index: int, kind: str, generation: int, outcome: Said) -> State:
        queue = (*state.to_coordinator[index], (kind, generation, outcome))
        return state._replace(to_coordinator=put(state.to_coordinator, index, queue))

    def _put_member(self, state: State, index: int, member: Member | None) -> State:
        state = state._replace(members=put(state.members, index, member))
        return self._forget(state)

    def _die(self, state: State, index: int) -> State:
        state = self._remove(state, index)
        return state._replace(
            to_coordinator=put(state.to_coordinator, index, ()),
            unnoticed=state.unnoticed | {index},
            num_faults=state.num_faults - 1,
        )

    def _remove(self, state: State, index: int) -> State:
        state = state._replace(to_engines=put(state.to_engines, index, ()))
        return self._put_member(state, index, None)

    def _forget(self, state: State) -> State:
        """Forget what was given to sums and exchanges that nobody can finish any more."""
        open_steps = {
            (m.place, m.steps)
            for m in state.members
            if m is not None and not m.is_fenced and not m.is_parked
        }
        joined = frozenset(entry for entry in state.joined if entry[:2] in open_steps)
        claimed = frozenset(entry for entry in state.claimed if entry[:2] in open_steps)
        return state._replace(joined=joined, claimed=claimed)

    def check(self, state: State) -> None:
        """Look for what must never be seen, in whatever order things happened."""
        self._check_replicas(state)
        self._check_exchanges(state)

    def _check_exchanges(self, state: State) -> None:
        """Neighbours do equally many exchanges, or they would take one for another."""
        for index, member in enumerate(state.members):
            if member is None or member.is_parked:
                continue
            for other_id in self._chain(member, index)[0]:
                other = state.members[self.index[other_id]]
                same = other is not None and not other.is_parked and other.place == member.place
                if same and other is not None and other.num_kept != member.num_kept:
                    raise ViolationError(f"{self.nodes[index]} and {other_id} are out of step")

    def _check_replicas(self, state: State) -> None:
        """Replicas of a layer were made by the same sums, as far as each has come [2].

        Engines that have been told to stop are none any more.
        """
        counted = self.runs[state.run].engines
        histories = {
            made_by
            for engine_id, member in zip(self.ids, state.members, strict=True)
            if member is not None and engine_id in counted
            for made_by in (*member.layers, *(followed.history for followed in member.followed))
            if made_by is not None
        }
        longest = max(histories, key=len, default=())
        for made_by in histories:
            if longest[: len(made_by)] != made_by:
                raise ViolationError(f"replicas went apart: {made_by} and {longest} [2]")

    def _join(self, state: State, index: int) -> State:
        """Give gradients to the sums as soon as they are complete."""
        member = state.members[index]
        assert member is not None
        ready = member.gradients >= self._assigned(member, index)
        if member.is_fenced or member.is_parked or not ready or member.steps >= self.num_steps:
            return state
        given = (member.place, member.steps, index, member.gradients)
        state = state._replace(joined=state.joined | {given})
        if member.sums:  # of an older attempt, where they are not void
            claim = (member.place, member.steps, index, member.mark)
            state = state._replace(claimed=state.claimed | {claim})
        return state
