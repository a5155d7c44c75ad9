"""All that engines may do next in the search: hear directives, compute, sum, vote, switch.

What one engine does is engine_model.py's; here are the sums and votes in which they meet.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from planaria_coordinator.domain.engines.directive import Activate, Command, Prepare, Stop
from planaria_coordinator.domain.engines.outcome import Copied, FenceReport, Staged, Stopped
from planaria_coordinator.domain.job.job_run import JobRun
from unit.coordinator.protocol.cluster import Cluster
from unit.coordinator.protocol.engine_model import EngineModel
from unit.coordinator.protocol.engine_state import (
    NOON,
    EnginePlan,
    Lack,
    Member,
    Plans,
    Rules,
    Said,
    Start,
    ViolationError,
)
from unit.coordinator.protocol.state import NUM_LAYERS, NUM_MICROBATCHES, State, put

STAGED = Staged(num_bytes=0, start_time=NOON, rebuild_end_time=NOON, copy_end_time=None)


class Engines(ABC):
    """What engines may do next."""

    def __init__(self, cluster: Cluster, num_steps: int, *, reorders: bool) -> None:
        self.reorders = reorders
        self.num_steps = num_steps
        self.nodes = tuple(cluster.engine_ids)
        self.ids = tuple(cluster.engine_ids.values())
        self.index = {engine_id: n for n, engine_id in enumerate(self.ids)}
        self.runs: list[JobRun] = []
        """What the coordinator knew, by number."""
        self.plans = Plans()
        self.models = [EngineModel(each, self.plans, num_steps) for each in self.ids]

    @abstractmethod
    def _coordinator_hears(self, state: State, index: int) -> State:
        """Let the coordinator hear the first answer of an engine."""

    # -- directives --------------------------------------------------------------------------------

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
            if isinstance(command, Activate) and state.num_lacks:
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
        if generation < member.generation and Rules.refuse_stale:
            return state  # refused: nobody waits for the answer any more [4]
        member, answer = self.models[index].carry_out(
            member,
            generation,
            command,
            lambda address: state.members[self.index[address]],
            has_groups=has_groups,
        )
        state = self._put_member(state, index, member)
        if isinstance(command, Activate) and has_groups:
            state = self._join(state, index)
        if answer is not None:
            state = self._answer(state, index, command.kind, generation, answer)
        return state

    def _start(self, state: State, index: int, generation: int) -> State:
        """Have the engine ready; that is heard at once, since nobody can tell when it was ready."""
        member = Member(layers=(None,) * NUM_LAYERS, generation=generation, is_parked=True)
        state = self._put_member(state, index, member)
        state = self._answer(state, index, "prepare", generation, Start.READY)
        return self._coordinator_hears(state, index)

    def _answer(self, state: State, index: int, kind: str, generation: int, outcome: Said) -> State:
        if isinstance(outcome, FenceReport):  # what is only counted makes no other state
            outcome = replace(outcome, finished_microbatches=(), step_compute_seconds=0.0)
        elif isinstance(outcome, Copied):
            outcome = replace(outcome, num_bytes=1)
        queue = (*state.to_coordinator[index], (kind, generation, outcome))
        return state._replace(to_coordinator=put(state.to_coordinator, index, queue))

    # -- the step ----------------------------------------------------------------------------------

    def _advance(self, state: State, index: int, member: Member) -> Iterator[tuple[str, State]]:
        """Compute, adopt a sum, or learn that all have theirs."""
        if member.steps >= self.num_steps:
            return
        chain = self.models[index].chain(member.plan)
        is_first = chain[:1] == (self.ids[index],)
        if is_first and not member.gradients >= self.models[index].assigned(member):
            computed = self._compute(state, chain, member)
            if computed is not None:
                yield f"the pipeline of {self.nodes[index]} computes", computed
        if member.is_fenced:
            return
        plan = self.plans[member.plan]
        if member.sums == 0 and self._sum_is_complete(state, index, member, plan):
            yield f"{self.nodes[index]} has its sums", self._adopt(state, index, member, plan)
        elif member.sums and self._all_have_voted(state, member, plan):
            yield f"{self.nodes[index]} commits", self._commit(state, index, member)

    def _compute(self, state: State, chain: tuple[str, ...], first: Member) -> State | None:
        """A pipeline computes together, or waits for those of it that are elsewhere."""
        indices = [self.index[other] for other in chain]
        for index in indices:
            other = state.members[index]
            together = other is not None and (other.plan, other.steps, other.gradients) == (
                first.plan,
                first.steps,
                first.gradients,
            )
            if other is None or not together or other.is_parked:
                return None
        for index in indices:
            other = state.members[index]
            assert other is not None
            gradients = other.gradients | self.models[index].assigned(other)
            done = other._replace(gradients=gradients)
            state = self._join(self._put_member(state, index, done), index)
        return state

    def _join(self, state: State, index: int) -> State:
        """Give gradients to the sums as soon as they are complete."""
        member = state.members[index]
        assert member is not None
        ready = member.gradients >= self.models[index].assigned(member)
        if member.is_fenced or member.is_parked or not ready or member.steps >= self.num_steps:
            return state
        given = (member.plan, member.steps, index, member.gradients)
        state = state._replace(joined=state.joined | {given})
        if member.sums:  # of an older attempt, where they are not void
            state = self._vote(state, index, member)
        return state

    def _sum_is_complete(self, state: State, index: int, member: Member, plan: EnginePlan) -> bool:
        mine = dict(plan.layers)[self.ids[index]]
        owners = {self.index[e] for e, layers in plan.layers if layers & mine}
        if not Rules.followers_sum:
            owners &= {self.index[e] for chain in plan.chains for e in chain} | {index}
        joined = {j[2] for j in state.joined if j[:2] == (member.plan, member.steps)}
        return owners <= joined

    def _adopt(self, state: State, index: int, member: Member, plan: EnginePlan) -> State:
        for layer in dict(plan.layers)[self.ids[index]]:
            owners = {self.index[e] for e, layers in plan.layers if layer in layers}
            summed = sorted(
                m
                for number, step, other, gradients in state.joined
                if (number, step) == (member.plan, member.steps) and other in owners
                for m in gradients
            )
            if summed != list(range(NUM_MICROBATCHES)):
                raise ViolationError(f"layer {layer} sums microbatches {summed} [1]")
        state = self._vote(state, index, member)
        return self._put_member(state, index, member._replace(sums=plan.generation))

    def _vote(self, state: State, index: int, member: Member) -> State:
        vote = (member.plan, member.steps, index, member.mark)
        return state._replace(votes=state.votes | {vote})

    def _votes(self, state: State, member: Member) -> dict[int, int]:
        here = (member.plan, member.steps)
        return {vote[2]: vote[3] for vote in state.votes if vote[:2] == here}

    def _all_have_voted(self, state: State, member: Member, plan: EnginePlan) -> bool:
        wanted = {self.index[e] for e, _ in plan.layers}
        if not Rules.followers_sum:
            wanted = {self.index[e] for chain in plan.chains for e in chain}
        return wanted <= self._votes(state, member).keys()

    def _commit(self, state: State, index: int, member: Member) -> State:
        marks = set(self._votes(state, member).values())
        next_generation = marks.pop() if len(marks) == 1 else 0
        if not Rules.all_hold_the_mark:
            next_generation = member.mark
        committed, report = self.models[index].commit(member, next_generation)
        state = self._put_member(state, index, committed)
        if report is not None:
            return self._answer(state, index, "quiesce", member.mark, report)
        if committed.steps >= self.num_steps:
            return state
        if committed.plan >= 0:
            return self._join(state, index)
        return self._switch(state, index) if self.models[index].keeps(member.staged) else state

    # -- an online change --------------------------------------------------------------------------

    def _make_ready(self, state: State, index: int, member: Member) -> Iterator[tuple[str, State]]:
        """Follow a layer, report that staging is done, or switch after the commit.

        The report is heard at once: when it is heard later, staging might as well have ended later,
        since nobody else can tell.
        """
        name = self.nodes[index]
        model = self.models[index]
        ahead = [
            model.follow(followed, lambda address: state.members[self.index[address]])
            for followed in member.followed
        ]
        for number, further in enumerate(ahead):
            if further is not None:
                followed = put(member.followed, number, further)
                moved = self._put_member(state, index, member._replace(followed=followed))
                yield f"{name} follows layer {further.layer}", moved
        if not member.has_told and state.num_failures:
            failing = state._replace(num_failures=state.num_failures - 1)
            yield f"{name} cannot stage", self._report_staged(failing, index, Lack.SOURCE)
        if not member.has_told and not any(ahead) and self._all_stage(state, member):
            yield f"{name} has staged", self._report_staged(state, index, STAGED)
        if model.may_switch(member):
            yield f"{name} switches", self._switch(state, index)

    def _report_staged(self, state: State, index: int, outcome: Staged | Lack) -> State:
        member = state.members[index]
        assert member is not None
        state = self._put_member(state, index, member._replace(has_told=True))
        generation = self.plans[member.staged].generation
        state = self._answer(state, index, "stage_plan", generation, outcome)
        first = len(state.to_coordinator[index]) == 1
        return self._coordinator_hears(state, index) if first else state

    def _all_stage(self, state: State, member: Member) -> bool:
        everyone = (state.members[self.index[e]] for e, _ in self.plans[member.staged].layers)
        return all(other is not None and other.staged == member.staged for other in everyone)

    def _switch(self, state: State, index: int) -> State:
        before = state.members[index]
        assert before is not None
        model = self.models[index]
        member = model.switch(before)
        state = self._join(self._put_member(state, index, member), index)
        if not before.switches:
            return state
        generation = self.plans[member.plan].generation
        return self._answer(state, index, "switch", generation, model.switched(member))

    # -- lives and deaths --------------------------------------------------------------------------

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

    def _cut_off(self, state: State, index: int, member: Member) -> State:
        """Let nobody reach an engine, nor it anybody: what it did before, it has done."""
        state = self._remove(state, index)
        return state._replace(
            to_coordinator=put(state.to_coordinator, index, ()),
            away=put(state.away, index, member),
            cut_off=state.cut_off | {index},
            num_absences=state.num_absences - 1,
        )

    def _remove(self, state: State, index: int) -> State:
        state = state._replace(to_engines=put(state.to_engines, index, ()))
        return self._put_member(state, index, None)

    def _forget(self, state: State) -> State:
        """Forget sums and votes that nobody can finish any more."""
        open_steps = {
            (m.plan, m.steps)
            for m in state.members
            if m is not None and not m.is_fenced and not m.is_parked
        }
        joined = frozenset(entry for entry in state.joined if entry[:2] in open_steps)
        votes = frozenset(entry for entry in state.votes if entry[:2] in open_steps)
        return state._replace(joined=joined, votes=votes)

    # -- what must never be ------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Raise ViolationError if replicas differ, or neighbours are out of step."""
        self._check_replicas(state)
        self._check_votes(state)

    def _check_votes(self, state: State) -> None:
        """Neighbours vote equally often, or they would take one vote for another."""
        for index, member in enumerate(state.members):
            if member is None or member.is_parked:
                continue
            for other_id in self.models[index].chain(member.plan):
                other = state.members[self.index[other_id]]
                same = other is not None and not other.is_parked and other.plan == member.plan
                if same and other is not None and other.num_kept != member.num_kept:
                    raise ViolationError(f"{self.nodes[index]} and {other_id} are out of step")

    def _check_replicas(self, state: State) -> None:
        """Replicas of a layer were made by the same sums, as far as each has come [2].

        Engines that were stopped do not count; nor do those that came back, until they train.
        """
        counted = self.runs[state.run].engines
        histories = {
            made_by
            for engine_id, member in zip(self.ids, state.members, strict=True)
            if member is not None and engine_id in counted and not member.is_back
            for made_by in (*member.layers, *(followed.history for followed in member.followed))
            if made_by is not None
        }
        longest = max(histories, key=len, default=())
        for made_by in histories:
            if longest[: len(made_by)] != made_by:
                raise ViolationError(f"replicas went apart: {made_by} and {longest} [2]")
