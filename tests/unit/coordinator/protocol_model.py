"""Every run of a small job under faults: the coordinator's own code and a pure model of engines.

Two pipelines of two stages train two microbatches a step. In every state reached, each message that
is under way may arrive next, each engine may do what it may do next, an engine may die, and the
coordinator may crash: all orders are gone through, none is sampled (ALGORITHMS.md 7). Messages of
one sender to one receiver keep their order, as on the streams that carry them.

Engines do what docs/design.md promises of them, sums and exchanges as unreliable as can be: an
engine learns of what was agreed on at any later moment, or never. The state of a layer is the list
of generations whose sums made it, so replicas that went apart are seen at once. Layers that a next
place lacks are followed beside the store: they arrive, fall behind and catch up at any moments.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeVar

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.actions import AskPlanner, Send
from planaria_coordinator.domain.directive import (
    Activate,
    Activated,
    Command,
    Commit,
    CommitRecord,
    Committed,
    Copied,
    Copy,
    DirectiveResult,
    Failure,
    FenceReport,
    HeldLayer,
    Outcome,
    PipelineAssignment,
    Quiesce,
    QuiesceMode,
    StageAssignment,
    Staged,
    Stop,
    Stopped,
    Switch,
)
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.ledger import Activity, Ledger
from planaria_coordinator.domain.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.planning import LayerProfile, PlanAnswer, PlanQuery
from planaria_coordinator.domain.replicas import assign_places
from planaria_coordinator.domain.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.run import Engine, JobRun, Limits, Moment, Phase, Placement
from planaria_coordinator.domain.signals import (
    DrainWanted,
    NodeLost,
    PlanArrived,
    Restarted,
    ResultArrived,
    Signal,
)
from planaria_coordinator.domain.transition import decide

T = TypeVar("T")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = Moment(seconds=0.0, time=NOON)
NUM_LAYERS = 2
NUM_MICROBATCHES = 2
_STAGED = Staged(
    num_bytes=0,
    start_time=NOON,
    rebuild_end_time=NOON,
    copy_end_time=None,
    num_communicators=1,
)
_FAILED_COPY = Failure(reason=ErrorReason.COPY_FAILED, message="no source has the layer")


class ViolationError(AssertionError):
    """The protocol allowed what must never happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What engines keep to; each is taken away in turn to see that it is needed."""

    void_sums: bool = True
    """An Activate voids the sums of attempts that did not commit."""
    fence: bool = True
    """A report is a promise: no sum and no exchange until the next Activate."""
    clear_broken: bool = True
    """Gradients are cleared by an Activate that does not keep the step."""
    followers_sum: bool = True
    """Followers take part in the exchange, and so commit with everybody."""
    refuse_stale: bool = True
    """A directive of an older generation than the newest seen has no effect."""
    all_hold_the_mark: bool = True
    """A commit has a next generation only when everybody held its mark at the exchange."""
    follow_to_the_commit: bool = True
    """A place is taken when the layers followed have the commit behind which that happens."""
    keep_old_layers: bool = True
    """Layers of the place before are held until the first commit in the new one."""
    joiner_is_witness: bool = True
    """Who takes its first place behind a commit has that commit's record."""


class Place(NamedTuple):
    """What an Activate says, made ready for use."""

    generation: int
    committed_steps: int
    chains: tuple[tuple[str, ...], ...]
    shares: tuple[frozenset[int], ...]
    step_shares: tuple[frozenset[int], ...]
    keeps: tuple[bool, ...]
    """Of each chain: whether its engines run it already."""
    layers: tuple[tuple[str, frozenset[int]], ...]
    """Of every engine in it, followers included."""


History = tuple[tuple[int, int], ...]
"""Of each step: the generation whose sums it committed, and the next generation it named."""


class Followed(NamedTuple):
    """A layer that an engine receives with every commit."""

    layer: int
    source: int
    history: History


class Member(NamedTuple):
    """A living engine."""

    generation: int
    place: int = -1
    """Number of the Activate applied last."""
    is_fenced: bool = False
    is_parked: bool = False
    steps: int = 0
    gradients: frozenset[int] = frozenset()
    mark: int = 0
    """Generation of the Quiesce or Switch that waits for a commit; 0: none."""
    switches: bool = False
    """The mark is that of a Switch."""
    staged: int = -1
    """Number of the Activate whose place is made ready."""
    has_told: bool = False
    """It has answered that Activate."""
    sums: int = 0
    """Generation of the complete sums of the step in flight; 0: none."""
    layers: tuple["History | None", ...] = (None,) * NUM_LAYERS
    """What made each layer; None: not held."""
    followed: tuple["Followed", ...] = ()
    """The layers that the staged place lacks, beside those it holds."""
    record: tuple[int, int, int] | None = None
    """Step, generation and next generation of the last commit."""
    num_kept: int = 0
    """How often its pipeline's communicators were kept: each time it does one exchange more."""


class State(NamedTuple):
    """Everything, at one moment."""

    run: int
    stored: int
    members: tuple[Member | None, ...]
    to_engines: tuple[tuple[tuple[int, Command], ...], ...]
    to_coordinator: tuple[tuple[tuple[str, int, Outcome | None], ...], ...]
    joined: frozenset[tuple[int, int, int, frozenset[int]]]
    """(place, step, engine, gradients): what was given to sums."""
    claimed: frozenset[tuple[int, int, int, int]]
    """(place, step, engine, mark): what was sent into the exchange."""
    unnoticed: frozenset[int]
    """The dead that nobody has told the coordinator of."""
    question: int
    """Number of the question that the planner has; -1: none."""
    num_faults: int
    num_crashes: int
    num_failures: int
    """How often somebody may yet be unable to make its place ready."""


Cut = Callable[[list[str]], list[tuple[str, ...]]]
"""Makes nodes, in order, into pipelines."""


def pairs(node_ids: list[str]) -> list[tuple[str, ...]]:
    """Pair nodes in order; who has no partner is idle."""
    return list(zip(node_ids[::2], node_ids[1::2], strict=False))


def families(node_ids: list[str]) -> list[tuple[str, ...]]:
    """Pair nodes of one letter; who has no partner holds the whole model."""
    found: list[tuple[str, ...]] = []
    for _, family in groupby(node_ids, key=lambda node_id: node_id[0]):
        found.extend(batched(family))
    return found[:NUM_MICROBATCHES]


def batched(items: Iterable[str]) -> Iterator[tuple[str, ...]]:
    iterator = iter(items)
    while batch := tuple(islice(iterator, 2)):
        yield batch


def make_plan(
    pipelines_of: Callable[[list[str]], list[tuple[str, ...]]], node_ids: list[str]
) -> Plan:
    """Cut the layers evenly, and deal the microbatches round."""
    found = pipelines_of(node_ids)
    pipelines = tuple(
        Pipeline(
            stages=tuple(
                Stage(
                    first_layer=k * NUM_LAYERS // len(nodes),
                    num_layers=NUM_LAYERS // len(nodes),
                    node_index=k,
                    node_id=node,
                    accelerators=(0,),
                )
                for k, node in enumerate(nodes)
            ),
            microbatches=tuple(range(index, NUM_MICROBATCHES, len(found))),
            iteration_seconds=1.0,
        )
        for index, nodes in enumerate(found)
    )
    return Plan(pipelines=pipelines, iteration_seconds=1.0, fault_tolerance=len(found) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Which nodes there are, and how they are made into pipelines."""

    training: tuple[str, ...]
    """Those that train at first."""
    spare: tuple[str, ...] = ()
    pipelines_of: Cut = pairs
    min_nodes: int = 2

    @property
    def engine_ids(self) -> dict[str, str]:
        nodes = (*self.training, *self.spare)
        return {node: f"job/{node}/0/{number}" for number, node in enumerate(nodes, 1)}


EVEN = Cluster(training=("a0", "a1", "b0", "b1"))
"""Two pipelines of two stages."""
UNEVEN = Cluster(training=("a0", "a1", "b0"), pipelines_of=families, min_nodes=1)
"""A pipeline of two stages and one of a single stage."""


def first_run(num_steps: int, cluster: Cluster = EVEN) -> JobRun:
    """A job that trains."""
    layer = LayerProfile(
        name="layer",
        forward_seconds=1.0,
        backward_seconds=1.0,
        parameter_bytes=1,
        state_bytes=1,
        activation_bytes=1,
        output_bytes=1,
    )
    requirements = Requirements(
        job_spec="",
        job_secret="",
        steps=num_steps,
        num_microbatches=NUM_MICROBATCHES,
        microbatch_size=1,
        fault_tolerance=1,
        min_nodes=cluster.min_nodes,
        max_nodes=None,
        min_nodes_per_pipeline=cluster.min_nodes,
        reproducible=True,
        data_path="",
        output_path="",
        output_format="",
        ties_embeddings=False,
        layers=(layer,) * NUM_LAYERS,
    )
    engine_ids = cluster.engine_ids
    engines = {
        engine_id: Engine(
            id=engine_id, node_id=node_id, accelerator=0, prepared=True, data_address=engine_id
        )
        for node_id, engine_id in engine_ids.items()
    }
    facts = {
        node_id: NodeFacts(
            node_id=node_id, num_accelerators=1, accelerator_kind="cpu", accelerator_memory_bytes=1
        )
        for node_id in engine_ids
    }
    plan = make_plan(cluster.pipelines_of, list(cluster.training))
    return JobRun(
        job_id="job",
        requirements=requirements,
        state=JobState.RUNNING,
        ledger=Ledger(current=Activity.PRODUCTIVE, since=NOON),
        create_time=NOON,
        start_time=NOON,
        nodes_per_replica=cluster.min_nodes,
        generation=1,
        nodes=facts,
        engines=engines,
        placement=Placement(
            generation=1, plan=plan, places=assign_places(plan, engines.values()), reason=""
        ),
        num_engines=len(engines),
        announced_fault_tolerance=1,
    )


def _key(value: Any) -> Any:
    """Return something hashable that is equal for values that mean the same from here on."""
    if isinstance(value, dict):
        return frozenset((k, _key(v)) for k, v in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        try:
            hash(value)
        except TypeError:
            return tuple(_key(getattr(value, f.name)) for f in fields(value))
    return value


_BOOKKEEPING = frozenset(
    ("job_id", "requirements", "create_time", "ledger", "num_directives", "pending", "num_losses")
)


def run_key(run: JobRun) -> Any:
    """Leave out what only counts or tells, and the numbers of directives."""
    waits = frozenset(
        (p.engine_id, p.kind, p.num_attempt, int(p.directive_id.split("/")[1]))
        for p in run.pending.values()
    )
    told = tuple(_key(getattr(run, f.name)) for f in fields(run) if f.name not in _BOOKKEEPING)
    return (waits, told)


class Model:
    """What may happen next, from any state."""

    def __init__(
        self,
        *,
        num_faults: int,
        num_crashes: int,
        num_steps: int = 2,
        rules: Rules | None = None,
        stores: bool = True,
        reorders: bool = False,
        cluster: Cluster = EVEN,
        drains: bool = False,
        num_failures: int = 0,
    ) -> None:
        """Make a model.

        Args:
            num_faults: how many nodes may die.
            num_crashes: how often the coordinator may crash.
            num_steps: of the job.
            rules: what engines keep to.
            stores: whether the coordinator's decisions outlive it.
            reorders: whether directives of one engine may overtake one another.
            cluster: the nodes.
            drains: whether the first node is to be freed.
            num_failures: how often an engine may be unable to make its place ready.
        """
        self.rules = rules or Rules()
        self.cluster = cluster
        self.nodes = tuple(cluster.engine_ids)
        self.ids = tuple(cluster.engine_ids.values())
        self.index = {engine_id: n for n, engine_id in enumerate(self.ids)}
        self.num_faults = num_faults
        self.num_steps = num_steps
        self.reorders = reorders
        self.keeps_stored = num_crashes > 0 and stores
        self.runs: list[JobRun] = []
        self.places: list[Place] = []
        self.questions: list[PlanQuery] = []
        self._run_numbers: dict[Any, int] = {}
        self._place_numbers: dict[tuple[int, Activate], int] = {}
        self._question_numbers: dict[PlanQuery, int] = {}
        self._decided: dict[Any, tuple[int, bool, tuple[Any, ...]]] = {}
        self.first = self._first_state(num_faults, num_crashes, num_failures)
        if drains:
            self.first = self._decide(self.first, DrainWanted(node_id=self.nodes[0]), "drain")

    def _first_state(self, num_faults: int, num_crashes: int, num_failures: int) -> State:
        run = self._number_of_run(first_run(self.num_steps, self.cluster))
        place = self.runs[run].placement
        assert place is not None
        number = self._number_of_place(1, _activate_of(place))
        owned = [self._owned(number, index) for index in range(len(self.nodes))]
        return State(
            run=run,
            stored=run,
            members=tuple(
                Member(
                    generation=1,
                    place=number if layers else -1,
                    is_parked=not layers,
                    layers=tuple(() if k in layers else None for k in range(NUM_LAYERS)),
                )
                for layers in owned
            ),
            to_engines=((),) * len(self.nodes),
            to_coordinator=((),) * len(self.nodes),
            joined=frozenset(),
            claimed=frozenset(),
            unnoticed=frozenset(),
            question=-1,
            num_faults=num_faults,
            num_crashes=num_crashes,
            num_failures=num_failures,
        )

    # -- numbers for what is large -----------------------------------------------------------------

    def _number_of_run(self, run: JobRun) -> int:
        key = run_key(run)
        number = self._run_numbers.setdefault(key, len(self.runs))
        if number == len(self.runs):
            self.runs.append(run)
        return number

    def _number_of_place(self, generation: int, activate: Activate) -> int:
        activate = replace(activate, layers=())  # what each lacks is its own affair
        key = (generation, activate)
        number = self._place_numbers.setdefault(key, len(self.places))
        if number == len(self.places):
            self.places.append(_place(generation, activate))
        return number

    def _number_of_question(self, query: PlanQuery) -> int:
        number = self._question_numbers.setdefault(query, len(self.questions))
        if number == len(self.questions):
            self.questions.append(query)
        return number

    def begin_switching(self) -> "Model":
        """Let everybody make its place ready before anything else happens."""
        state = self.first
        while (transition := self.runs[state.run].transition) is not None:
            if transition.phase is Phase.SWITCHING:
                break
            state = next(
                successor
                for event, successor in self.steps(state)
                if not event.endswith(("computes", "sums", "commits"))
            )
        self.first = state
        return self

    # -- what may happen ---------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield all that may happen next; faults apart."""
        for index, member in enumerate(state.members):
            yield from self._hear(state, index)
            if state.to_coordinator[index]:
                yield f"{self.nodes[index]} is heard", self._coordinator_hears(state, index)
            if member is not None and not member.is_parked and member.place >= 0:
                yield from self._advance(state, index, member)
            if member is not None and member.staged >= 0:
                yield from self._make_ready(state, index, member)
        for index in state.unnoticed:
            told = state._replace(unnoticed=state.unnoticed - {index})
            signal = NodeLost(node_id=self.nodes[index], fault_time=NOON, reason="dead")
            yield f"{self.nodes[index]} is known to be dead", self._decide(told, signal, index)
        if state.question >= 0:
            query = self.questions[state.question]
            nodes = sorted(node.node_id for node in query.nodes)
            plan = make_plan(self.cluster.pipelines_of, nodes)
            answer = PlanAnswer(plan=plan, reason="", min_nodes=self.cluster.min_nodes)
            asked = state._replace(question=-1)
            signal_of_plan = PlanArrived(query=query, answer=answer)
            yield "the planner answers", self._decide(asked, signal_of_plan, "plan", query)

    def faults(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may go wrong next."""
        if state.num_faults:
            for index, member in enumerate(state.members):
                if member is not None:
                    yield f"{self.nodes[index]} dies", self._die(state, index)
        if state.num_crashes:
            crashed = state._replace(
                run=state.stored, question=-1, num_crashes=state.num_crashes - 1
            )
            yield "the coordinator crashes", self._decide(crashed, Restarted(), "restarted")

    def is_over(self, state: State) -> bool:
        """Whether the job has ended, or every engine of the newest plan has done all steps."""
        run = self.runs[state.run]
        if run.state.is_terminal:
            return True
        if run.transition is not None and run.transition.phase is Phase.DIGESTING:
            return True
        placed = [m for m in state.members if m is not None and m.place >= 0]
        newest = max((self.places[m.place].generation for m in placed), default=0)
        living = [m for m in placed if self.places[m.place].generation == newest]
        place = self.places[living[0].place] if living else None
        complete = place is not None and len(living) == len(place.layers)
        return complete and all(m.steps >= self.num_steps for m in living)

    def _may_train(self, member: Member) -> bool:
        return not member.is_parked and member.place >= 0

    # -- the coordinator ---------------------------------------------------------------------------

    def _coordinator_hears(self, state: State, index: int) -> State:
        (kind, generation, outcome), *rest = state.to_coordinator[index]
        state = state._replace(to_coordinator=_put(state.to_coordinator, index, tuple(rest)))
        for pending in self.runs[state.run].pending.values():
            same_generation = int(pending.directive_id.split("/")[1]) == generation
            if pending.engine_id == self.ids[index] and pending.kind == kind and same_generation:
                result = DirectiveResult(
                    directive_id=pending.directive_id,
                    job_id="job",
                    engine_id=pending.engine_id,
                    generation=generation,
                    outcome=outcome if outcome is not None else _FAILED_COPY,
                )
                signal = ResultArrived(result=result)
                return self._decide(state, signal, kind, index, generation, outcome)
        return state  # it answers what nobody waits for any more

    def _decide(self, state: State, signal: Signal, *key: Any) -> State:
        memory = (state.run, key)
        if memory not in self._decided:
            decision = decide(NOW, self.runs[state.run], signal, Limits())
            actions = tuple(a for a in decision.actions if isinstance(a, Send | AskPlanner))
            number = self._number_of_run(decision.run)
            self._decided[memory] = (number, decision.durable, actions)
            self._check_end(state, decision.run)
        number, durable, actions = self._decided[memory]
        stored = number if durable and self.keeps_stored else state.stored
        state = state._replace(run=number, stored=stored)
        for action in actions:
            if isinstance(action, AskPlanner):
                state = state._replace(question=self._number_of_question(action.query))
            else:
                directive = action.directive
                index = self.index[directive.engine_id]
                if state.members[index] is not None:
                    queue = (*state.to_engines[index], (directive.generation, directive.command))
                    state = state._replace(to_engines=_put(state.to_engines, index, queue))
        return state

    def _check_end(self, state: State, run: JobRun) -> None:
        """A job fails only when more died than it survives, and a layer is gone with them [5]."""
        if run.state is not JobState.FAILED:
            return
        if self.num_faults - state.num_faults <= run.requirements.fault_tolerance:
            raise ViolationError(f"the job does not survive the loss of one node: {run.error} [5]")
        living = [m for m in state.members if m is not None]
        newest = max((m.steps for m in living), default=0)
        held = {
            layer
            for m in living
            for layer, made_by in enumerate(m.layers)
            if made_by is not None and len(made_by) == newest
        }
        lost_state = run.error is not None and run.error.reason is ErrorReason.STATE_LOST
        if not lost_state or len(held) == NUM_LAYERS:
            raise ViolationError(f"the job fails without need: {run.error} [5]")

    # -- engines: directives -----------------------------------------------------------------------

    def _hear(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """A directive arrives, or one that is superseded never does."""
        queue = state.to_engines[index]
        for number in range(len(queue) if self.reorders else min(1, len(queue))):
            generation, command = queue[number]
            rest = (*queue[:number], *queue[number + 1 :])
            taken = state._replace(to_engines=_put(state.to_engines, index, rest))
            what = f"{command.kind} of generation {generation}"
            yield (
                f"{self.nodes[index]} hears {what}",
                self._hears(taken, index, generation, command),
            )
            superseded = generation < self.runs[state.run].generation
            if superseded and not isinstance(command, Stop):
                yield f"{self.nodes[index]} never hears {what}", taken

    def _hears(self, state: State, index: int, generation: int, command: Command) -> State:
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
                return self._activate(state, index, generation, command)
            case Switch():
                return self._switch(state, index, generation)
            case _:
                return state  # the end of the job is not part of this model

    def _quiesce(self, state: State, index: int, generation: int, command: Quiesce) -> State:
        member = state.members[index]
        assert member is not None
        trains = self._may_train(member) and member.steps < self.num_steps
        if member.staged >= 0 and self.places[member.staged].generation == generation:
            raise ViolationError(f"{self.nodes[index]} is to stand still where it has a place")
        member = _without_staged(member)
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
            layers=_held(member),
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
        member = state.members[index]
        assert member is not None
        if member.steps == record.step and member.sums == record.generation:
            member = self._committed(member, index, record.next_generation)
            member = member._replace(is_parked=member.is_parked or record.next_generation > 0)
            state = self._put_member(state, index, member)
            stale: tuple[int, ...] = ()
        else:
            stale = tuple(k for k, made_by in enumerate(member.layers) if made_by is not None)
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
                return self._answer(state, index, "copy", generation, None)
            layers[source.layer] = found
        member = member._replace(layers=tuple(layers))
        copied = Copied(num_bytes=1, layers=_held(member), start_time=NOON, end_time=NOON)
        state = self._put_member(state, index, member)
        return self._answer(state, index, "copy", generation, copied)

    def _activate(self, state: State, index: int, generation: int, command: Activate) -> State:
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
        elif not self.rules.clear_broken:
            member = member._replace(gradients=before.gradients)
        state = self._join(self._put_member(state, index, member), index)
        answer = Activated(rebuild_start_time=NOON, resume_time=NOON, num_communicators=1)
        return self._answer(state, index, "activate", generation, answer)

    # -- engines: a step ---------------------------------------------------------------------------

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

    # -- engines: changing behind a commit ---------------------------------------------------------

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
        member = _without_staged(member)._replace(staged=number)
        for source in command.layers:
            serves = [
                Followed(source.layer, self.index[address], history)
                for address in source.addresses
                if (holder := state.members[self.index[address]]) is not None
                and source.layer in self._owned(holder.place, self.index[address])
                and (history := holder.layers[source.layer]) is not None
            ]
            if not serves:
                return self._answer(state, index, "activate", generation, None)
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
                followed = _put(member.followed, number, further)
                moved = self._put_member(state, index, member._replace(followed=followed))
                yield f"{name} follows layer {further.layer}", moved
        if not member.has_told and state.num_failures:
            failing = state._replace(num_failures=state.num_failures - 1)
            yield f"{name} cannot make its place ready", self._tell(failing, index, None)
        if not member.has_told and not any(ahead) and self._groups_stand(state, member):
            yield f"{name} has its place ready", self._tell(state, index, _STAGED)
        if self._may_take_place(member):
            yield f"{name} takes its place", self._take_place(state, index)

    def _tell(self, state: State, index: int, outcome: Staged | None) -> State:
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
            layers = _put(layers, layer, history)
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

    # -- changes -----------------------------------------------------------------------------------

    def _answer(
        self, state: State, index: int, kind: str, generation: int, outcome: Outcome | None
    ) -> State:
        queue = (*state.to_coordinator[index], (kind, generation, outcome))
        return state._replace(to_coordinator=_put(state.to_coordinator, index, queue))

    def _put_member(self, state: State, index: int, member: Member | None) -> State:
        state = state._replace(members=_put(state.members, index, member))
        return self._forget(state)

    def _die(self, state: State, index: int) -> State:
        state = self._remove(state, index)
        return state._replace(
            to_coordinator=_put(state.to_coordinator, index, ()),
            unnoticed=state.unnoticed | {index},
            num_faults=state.num_faults - 1,
        )

    def _remove(self, state: State, index: int) -> State:
        state = state._replace(to_engines=_put(state.to_engines, index, ()))
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
        """Replicas of a layer were made by the same sums, as far as each has come [2]."""
        histories = {
            made_by
            for member in state.members
            if member is not None
            for made_by in (*member.layers, *(followed.history for followed in member.followed))
            if made_by is not None
        }
        longest = max(histories, key=len, default=())
        for made_by in histories:
            if longest[: len(made_by)] != made_by:
                raise ViolationError(f"replicas went apart: {made_by} and {longest} [2]")


def _activate_of(placement: Placement) -> Activate:
    return Activate(
        pipelines=tuple(
            PipelineAssignment(
                stages=tuple(
                    StageAssignment(
                        engine_id=e,
                        data_address=e,
                        first_layer=stage.first_layer,
                        num_layers=stage.num_layers,
                    )
                    for stage, e in zip(pipeline.stages, engine_ids, strict=True)
                ),
                microbatches=pipeline.microbatches,
            )
            for pipeline, engine_ids in zip(placement.plan.pipelines, placement.places, strict=True)
        ),
        committed_steps=0,
        store_address="",
        rebuild_timeout_seconds=1.0,
    )


def _place(generation: int, activate: Activate) -> Place:
    stages = {
        s.engine_id: frozenset(range(s.first_layer, s.first_layer + s.num_layers))
        for p in activate.pipelines
        for s in p.stages
    }
    stages.update({f.engine_id: frozenset(f.layers) for f in activate.followers})
    return Place(
        generation=generation,
        committed_steps=activate.committed_steps,
        chains=tuple(tuple(s.engine_id for s in p.stages) for p in activate.pipelines),
        shares=tuple(frozenset(p.microbatches) for p in activate.pipelines),
        step_shares=tuple(
            frozenset(p.step_microbatches or p.microbatches) for p in activate.pipelines
        ),
        keeps=tuple(p.keeps_step for p in activate.pipelines),
        layers=tuple(sorted(stages.items())),
    )


def _without_staged(member: Member) -> Member:
    """A newer generation has come: what an older one has made ready is dropped."""
    return member._replace(mark=0, switches=False, staged=-1, has_told=False, followed=())


def _held(member: Member) -> tuple[HeldLayer, ...]:
    return tuple(
        HeldLayer(layer=layer, version=len(made_by))
        for layer, made_by in enumerate(member.layers)
        if made_by is not None
    )


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search went through."""

    num_states: int
    num_ends: int


def search(model: Model, *, max_states: int | None = None) -> Found:
    """Go through every state.

    Raises:
        ViolationError: with the events that lead to what must never happen.
    """
    parents: dict[State, tuple[State, str] | None] = {model.first: None}
    waiting = [model.first]
    num_ends = 0
    while waiting:
        state = waiting.pop()
        try:
            if model.is_over(state):
                num_ends += 1
                continue
            next_states = list(model.steps(state))
            if not next_states:
                raise ViolationError("nothing can happen any more, and the job is not done")
            for event, successor in (*next_states, *model.faults(state)):
                if successor not in parents:
                    parents[successor] = (state, event)
                    model.check(successor)
                    waiting.append(successor)
        except ViolationError as error:
            raise ViolationError(f"{error}, after: {'; '.join(_path(parents, state))}") from error
        if max_states is not None and len(parents) > max_states:
            break
    return Found(num_states=len(parents), num_ends=num_ends)


def _path(parents: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    events: list[str] = []
    while (step := parents[state]) is not None:
        state, event = step
        events.append(event)
    return events[::-1]
