"""Every run of a small job under faults: the coordinator's own code and a pure model of engines.

Two pipelines of two stages train two microbatches a step. In every state reached, each message that
is under way may arrive next, each engine may do what it may do next, an engine may die, and the
coordinator may crash: all orders are gone through, none is sampled (protocol/recovery.md). Messages
of one sender to one receiver keep their order, as on the streams that carry them.

Engines do what protocol/*.md promises of them, sums and exchanges as unreliable as can be: an
engine learns of what was agreed on at any later moment, or never. The state of a layer is the list
of generations whose sums made it, so replicas that went apart are seen at once. Layers that a next
place lacks are followed outside the store: they arrive, fall behind and catch up at any moments.

A node is given to the job at any moment. Its engine is started by Prepare, and is ready at any
later one, or dies before.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import Command, Prepare, Stop
from planaria_coordinator.domain.engines.outcome import DirectiveResult, Outcome
from planaria_coordinator.domain.job.actions import AskPlanner, Send
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.signals import (
    DrainWanted,
    HoldersReturned,
    NodeLost,
    NodesGranted,
    PlanArrived,
    Restarted,
    ResultArrived,
    Signal,
)
from planaria_coordinator.domain.job.turn import Decision
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery.transition import Phase, TransitionHistory
from unit.coordinator.protocol.cluster import (
    EVEN,
    Cluster,
    activate_of,
    facts_of,
    first_run,
    make_plan,
    prepared,
)
from unit.coordinator.protocol.engine_state import (
    FAILURES,
    NOON,
    Lack,
    Member,
    Said,
    Start,
    ViolationError,
)
from unit.coordinator.protocol.engines import Engines
from unit.coordinator.protocol.state import NUM_LAYERS, State, put

NOW = Moment(seconds=0.0, time=NOON)


def _in_full(said: Said, engine_id: str) -> Outcome:
    match said:
        case Lack():
            return FAILURES[said]
        case Start():
            return prepared(engine_id)
        case _:
            return said


def _key(value: Any) -> Any:
    """Return something hashable that is equal for values that mean the same from here on."""
    if isinstance(value, dict):
        return frozenset((k, _key(v)) for k, v in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        try:
            hash(value)
        except TypeError:
            names = (f.name for f in fields(value) if f.name not in _FIGURES)
            return tuple(_key(getattr(value, name)) for name in names)
    return value


_BOOKKEEPING = frozenset(
    (
        *("job_id", "requirements", "time_account", "num_directives", "pending"),
        *("num_faults", "last_fault", "error"),
    )
)
_FIGURES = frozenset(("fence_time", "has_activated", "hit_step", "idle_seconds"))
"""Of a recovery: they decide nothing."""
assert {field.name for field in fields(JobRun)} >= _BOOKKEEPING
assert {field.name for field in fields(TransitionHistory)} >= _FIGURES


assert {field.name for field in fields(JobRun)} >= _BOOKKEEPING


def run_key(run: JobRun) -> Any:
    """Leave out what only counts or tells, and the numbers of directives."""
    waits = frozenset(
        (p.engine_id, p.kind, p.num_attempt, int(p.directive_id.split("/")[1]))
        for p in run.pending.values()
    )
    told = tuple(_key(getattr(run, f.name)) for f in fields(run) if f.name not in _BOOKKEEPING)
    return (waits, told, None if run.error is None else run.error.reason)


class Model(Engines):
    """What may happen next, from any state."""

    def __init__(
        self,
        *,
        num_faults: int,
        num_crashes: int,
        num_steps: int = 2,
        reorders: bool = False,
        cluster: Cluster = EVEN,
        drains: bool = False,
        num_failures: int = 0,
        num_lacks: int = 0,
        num_takeovers: int = 0,
        num_absences: int = 0,
    ) -> None:
        """Make a model.

        Args:
            num_faults: how many nodes may die.
            num_crashes: how often the coordinator may crash.
            num_steps: of the job.
            reorders: whether directives of one engine may overtake one another.
            cluster: the nodes.
            drains: whether the first node is to be freed.
            num_failures: how often an engine may be unable to make its place ready.
            num_lacks: how often one may be unable to make its groups, whoever lives.
            num_takeovers: how often another coordinator may take over.
            num_absences: how often one may be cut off until the others have noticed, or longer.
        """
        super().__init__(cluster, num_steps, reorders=reorders)
        self.cluster = cluster
        self.num_faults = num_faults
        self.num_absences = num_absences
        self.keeps_stored = num_crashes + num_takeovers > 0
        self.questions: list[PlanQuery] = []
        self._run_numbers: dict[Any, int] = {}
        self._question_numbers: dict[PlanQuery, int] = {}
        self._decided: dict[Any, tuple[int, bool, tuple[Any, ...]]] = {}
        self.first = self._first_state(num_faults, num_crashes)._replace(
            num_failures=num_failures,
            num_lacks=num_lacks,
            num_takeovers=num_takeovers,
            num_absences=num_absences,
        )
        if drains:
            self.first = self._decide(self.first, DrainWanted(node_id=self.nodes[0]), "drain")

    def _first_state(self, num_faults: int, num_crashes: int) -> State:
        run = self._number_of_run(first_run(self.num_steps, self.cluster))
        place = self.runs[run].placement
        assert place is not None
        number = self.plans.number(1, activate_of(place))
        owned = [model.owned(number) for model in self.models]
        return State(
            run=run,
            stored=run,
            members=tuple(
                None
                if node in self.cluster.joiners
                else Member(
                    generation=1,
                    plan=number if layers else -1,
                    is_parked=not layers,
                    layers=tuple(() if k in layers else None for k in range(NUM_LAYERS)),
                )
                for node, layers in zip(self.nodes, owned, strict=True)
            ),
            to_engines=((),) * len(self.nodes),
            to_coordinator=((),) * len(self.nodes),
            joined=frozenset(),
            votes=frozenset(),
            unnoticed=frozenset(),
            question=-1,
            num_faults=num_faults,
            num_crashes=num_crashes,
            num_failures=0,
            num_lacks=0,
            away=(None,) * len(self.nodes),
            cut_off=frozenset(),
            num_absences=0,
        )

    def _number_of_run(self, run: JobRun) -> int:
        key = run_key(run)
        number = self._run_numbers.setdefault(key, len(self.runs))
        if number == len(self.runs):
            self.runs.append(run)
        return number

    def _number_of_question(self, query: PlanQuery) -> int:
        number = self._question_numbers.setdefault(query, len(self.questions))
        if number == len(self.questions):
            self.questions.append(query)
        return number

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield all that may happen next; faults and requests apart."""
        for index, member in enumerate(state.members):
            yield from self._hear(state, index)
            if member is not None and member.is_training:
                yield from self._advance(state, index, member)
            if member is not None and member.staged >= 0:
                yield from self._make_ready(state, index, member)
        yield from self.decisions(state)

    def decisions(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what the coordinator may learn next, and what it makes of it."""
        for index, said in enumerate(state.to_coordinator):
            if said:
                yield f"{self.nodes[index]} is heard", self._coordinator_hears(state, index)
        for index in state.unnoticed:
            told = state._replace(unnoticed=state.unnoticed - {index})
            signal = NodeLost(node_id=self.nodes[index], fault_time=NOON, reason="dead", gone=True)
            yield f"{self.nodes[index]} is known to be dead", self._decide(told, signal, index)
        yield from self._absences(state)
        if state.question >= 0:
            query = self.questions[state.question]
            nodes = sorted(node.node_id for node in query.nodes)
            plan = make_plan(self.cluster.pipelines_of, nodes)
            answer = PlanAnswer(plan=plan, reason="", min_nodes=self.cluster.min_nodes)
            asked = state._replace(question=-1)
            signal_of_plan = PlanArrived(query=query, answer=answer)
            yield "the planner answers", self._decide(asked, signal_of_plan, "plan", query)

    def _absences(self, state: State) -> Iterator[tuple[str, State]]:
        """Those that are cut off are missed, and come back at any later moment."""
        for index in state.cut_off:
            told = state._replace(cut_off=state.cut_off - {index})
            node = self.nodes[index]
            signal = NodeLost(node_id=node, fault_time=NOON, reason="silent", gone=False)
            yield f"{node} is known to be out of reach", self._decide(told, signal, "cut", index)
        for index, member in enumerate(state.away):
            if member is not None and index not in state.cut_off:
                yield f"{self.nodes[index]} is back", self._come_back(state, index, member)

    def _come_back(self, state: State, index: int, member: Member) -> State:
        """Say so; an engine that no job may need is stopped at once."""
        state = state._replace(away=put(state.away, index, None))
        if self.ids[index] not in self.runs[state.run].absent:
            return state
        state = self._put_member(state, index, member._replace(is_back=True))
        back = HoldersReturned(node=facts_of(self.nodes[index]), engine_ids=(self.ids[index],))
        return self._decide(state, back, "back", index)

    def after(self, *events: str) -> State:
        """Return the state that some events lead to."""
        state = self.first
        for event in events:
            following = (*self.steps(state), *self.faults(state))
            state = next(successor for name, successor in following if name == event)
        return state

    def requests(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what the scheduler may do next; nobody counts on it."""
        if joiners := self._joiners(self.runs[state.run]):
            granted = tuple(map(facts_of, joiners))
            signal = NodesGranted(nodes=granted, nodes_per_replica=0, reason="there is room")
            name = " and ".join(joiners)
            yield f"{name} may join", self._decide(state, signal, "joiners", joiners)

    def faults(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may go wrong next."""
        if state.num_faults:
            for index, member in enumerate(state.members):
                if member is not None or state.to_engines[index]:
                    yield f"{self.nodes[index]} dies", self._die(state, index)
        if state.num_absences:
            for index, member in enumerate(state.members):
                if member is not None:
                    yield f"{self.nodes[index]} is cut off", self._cut_off(state, index, member)
        if state.num_crashes:
            crashed = state._replace(
                run=state.stored, question=-1, num_crashes=state.num_crashes - 1
            )
            yield "the coordinator crashes", self._decide(crashed, Restarted(), "restarted")

    def _joiners(self, run: JobRun) -> tuple[str, ...]:
        """Return the nodes that the scheduler has for the job: see application/scheduling/.

        Those that it was not given yet, which may happen in the middle of anything, and idle ones.
        """
        return tuple(
            node
            for number, node in enumerate(self.nodes)
            if node in self.cluster.joiners
            and (number >= run.num_engines or self._is_idle(run, self.ids[number]))
        )

    def _is_idle(self, run: JobRun, engine_id: str) -> bool:
        """Whether nothing is under way, and an engine has no place and was not left without one."""
        has_place = run.placement is not None and engine_id in run.placement.engine_ids
        is_offered = engine_id in run.engines and engine_id not in run.left_idle
        return is_offered and not has_place and run.transition is None

    def newest(self, state: State) -> dict[str, Member]:
        """Return who lives of the newest plan that somebody has a place in, by node."""
        placed = {
            node: member
            for node, member in zip(self.nodes, state.members, strict=True)
            if member is not None and member.plan >= 0
        }
        newest = max((self.plans[m.plan].generation for m in placed.values()), default=0)
        return {n: m for n, m in placed.items() if self.plans[m.plan].generation == newest}

    def is_over(self, state: State) -> bool:
        """Whether the job has ended, or every engine of the newest plan has done all steps."""
        run = self.runs[state.run]
        if run.state.is_terminal:
            return True
        if run.transition is not None and run.transition.phase is Phase.DIGESTING:
            return True
        living = tuple(self.newest(state).values())
        plan = self.plans[living[0].plan] if living else None
        complete = plan is not None and len(living) == len(plan.layers)
        return complete and all(m.steps >= self.num_steps for m in living)

    def _coordinator_hears(self, state: State, index: int) -> State:
        (kind, generation, outcome), *rest = state.to_coordinator[index]
        state = state._replace(to_coordinator=put(state.to_coordinator, index, tuple(rest)))
        for pending in self.runs[state.run].pending.values():
            same_generation = int(pending.directive_id.split("/")[1]) == generation
            if pending.engine_id == self.ids[index] and pending.kind == kind and same_generation:
                result = DirectiveResult(
                    directive_id=pending.directive_id,
                    job_id="job",
                    outcome=_in_full(outcome, pending.engine_id),
                )
                signal = ResultArrived(result=result)
                return self._decide(state, signal, kind, index, generation, outcome)
        return state  # it answers what nobody waits for any more

    def _decide(self, state: State, signal: Signal, *key: Any) -> State:
        memory = (state.run, key)
        if memory not in self._decided:
            decision = self._decision(state, signal)
            actions = tuple(a for a in decision.actions if isinstance(a, Send | AskPlanner))
            number = self._number_of_run(decision.run)
            self._decided[memory] = (number, decision.durable, actions)
        number, durable, actions = self._decided[memory]
        self._check_end(state, self.runs[number])
        stored = number if durable and self.keeps_stored else state.stored
        state = state._replace(run=number, stored=stored)
        for action in actions:
            if isinstance(action, AskPlanner):
                state = state._replace(question=self._number_of_question(action.query))
            else:
                directive = action.directive
                index = self.index[directive.engine_id]
                command = directive.command
                if isinstance(command, Stop):
                    command = Stop(reason="")  # whatever it says, the engine ends
                state = self._send(state, index, (directive.generation, command))
        return state

    def _send(self, state: State, index: int, directive: tuple[int, Command]) -> State:
        if state.members[index] is None and not isinstance(directive[1], Prepare):
            return state
        queue = (*state.to_engines[index], directive)
        return state._replace(to_engines=put(state.to_engines, index, queue))

    def _decision(self, state: State, signal: Signal) -> Decision:
        try:
            return decide(NOW, self.runs[state.run], signal, Limits())
        except (AssertionError, KeyError) as error:
            raise ViolationError(f"the coordinator has a defect: {error!r}") from error

    def _check_end(self, state: State, run: JobRun) -> None:
        """A job fails only when more died than it survives, and a layer is gone with them [5]."""
        before = self.runs[state.run]
        if run.state is not JobState.FAILED or before.state.is_terminal:
            return
        num_lost = self.num_faults - state.num_faults + (self.num_absences - state.num_absences)
        if num_lost <= run.requirements.fault_tolerance:
            raise ViolationError(f"the job does not survive the loss of one node: {run.error} [5]")
        counted = before.engines.keys() | before.absent.keys()  # the others were told to stop
        living = [
            member
            for engine_id, member in zip(self.ids, state.members, strict=True)
            if member is not None and engine_id in counted
        ]
        living += [member for member in state.away if member is not None]  # they may come back
        newest = max((m.steps for m in living), default=0)
        histories = [h for m in living for h in m.layers if h is not None and len(h) == newest]
        # The same step of another generation has other bits: the newest is the job's.
        truth = max(histories, default=())
        held = {layer for m in living for layer, h in enumerate(m.layers) if h == truth}
        lost_state = run.error is not None and run.error.reason is ErrorReason.STATE_LOST
        if not lost_state or len(held) == NUM_LAYERS:
            raise ViolationError(f"the job fails without need: {run.error} [5]")
