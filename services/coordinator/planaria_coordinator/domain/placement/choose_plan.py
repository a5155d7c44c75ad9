"""Choose a plan: ask the planner, check its answer, make it the target of the transition."""

from collections import Counter
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_common.words import counted
from planaria_coordinator.domain.job.cordons import lift_cordons
from planaria_coordinator.domain.job.ending import fail, park
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.signals import PlanRefused
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.job.waiting import announce_waiting, rest, set_back, too_few_nodes
from planaria_coordinator.domain.placement.ask_planner import nodes_to_plan_on, plan_query
from planaria_coordinator.domain.placement.check_plan import plan_problem
from planaria_coordinator.domain.placement.placement import Placement, peak_of
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from planaria_coordinator.domain.placement.replicas import (
    assign_engines,
    missing_layers,
)
from planaria_coordinator.domain.recovery.activation import begin_activation
from planaria_coordinator.domain.recovery.copy_layers import begin_copying
from planaria_coordinator.domain.recovery.transition import Phase, TransitionHistory

_REFUSES_THE_JOB = (
    ErrorReason.MODEL_DOES_NOT_FIT,
    ErrorReason.NOT_ENOUGH_MICROBATCHES,
    ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
    ErrorReason.INVALID_ARGUMENT,
    ErrorReason.INVALID_PROFILE,
)
"""What the planner says of a job that is wrong by itself."""


def choose_plan(turn: Turn) -> None:
    """Enter PLANNING, and go on at once when the answer was there before the reports."""
    run = turn.run
    if run.rests:
        rest(turn)
        return
    num_nodes = len(nodes_to_plan_on(run))
    if num_nodes < run.nodes_per_replica:
        _wait_for_nodes(turn, num_nodes)
        return
    if turn.transition.phase is not Phase.PLANNING:
        turn.enter(Phase.PLANNING, f"a plan is needed for {counted(num_nodes, 'node')}")
        turn.account_phase(Activity.PLAN)
    turn.ask(plan_query(turn.run, turn.transition.holdings))
    if turn.transition.answer is not None:
        _adopt(turn, turn.transition.answer)


def _wait_for_nodes(turn: Turn, num_nodes: int) -> None:
    """Too few are left for one replica; how many it takes to start the scheduler says."""
    lift_cordons(turn)
    needed = turn.run.nodes_per_replica
    message = f"{counted(num_nodes, 'node')} left, and the model needs {needed}"
    if turn.run.has_trained:
        park(turn, JobState.WAITING, message)
        announce_waiting(turn, too_few_nodes(num_nodes, needed, nodes_per_replica=needed))
    else:
        park(turn, JobState.PENDING, message)


def plan_arrived(turn: Turn, query: PlanQuery, answer: PlanAnswer) -> None:
    """Take the planner's answer; it may come before the reports that it was asked for."""
    if turn.run.transition is None or turn.transition.query != query:
        return
    turn.note(answer=answer, answered_time=turn.now.time)
    if turn.transition.phase is Phase.PLANNING and not turn.transition.plans_online:
        _adopt(turn, answer)


def plan_refused(turn: Turn, signal: PlanRefused) -> None:
    """Ask for less, or wait; before the first step a job that no nodes could run fails."""
    query, reason, message = signal.query, signal.reason, signal.message
    if turn.run.transition is None or turn.transition.query != query:
        return
    if turn.transition.phase is not Phase.PLANNING:
        turn.note(query=None)  # asked too early: it is asked again with what engines report
        return
    if wants_less(turn, signal):
        choose_plan(turn)
    elif reason is ErrorReason.NOT_ENOUGH_NODES:
        more = len(query.nodes) + 1
        turn.change(nodes_per_replica=max(turn.run.nodes_per_replica, more))
        state = JobState.WAITING if turn.run.has_trained else JobState.PENDING
        lift_cordons(turn)
        park(turn, state, message)
        announce_waiting(turn, message)
    elif reason in _REFUSES_THE_JOB and not (turn.run.has_trained or turn.run.was_restored):
        fail(turn, reason, message, signal.metadata)
    else:
        set_back(turn, message)
        rest(turn)


def wants_less(turn: Turn, signal: PlanRefused) -> bool:
    """Be content with surviving one loss less, where that is what the plan failed for."""
    wanted = signal.query.problem.fault_tolerance
    if signal.reason is not ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE or wanted == 0:
        return False
    turn.note(fault_tolerance=wanted - 1)
    return True


def adopt_plan(turn: Turn, answer: PlanAnswer) -> bool:
    """Make the planner's answer the target of the transition; False when it makes no sense.

    Then the job has been set back: the planner is asked again later.
    """
    run, transition = turn.run, turn.transition
    if transition.query is None:
        raise AssertionError("an answer has its question")
    problem = plan_problem(
        answer.plan,
        transition.query,
        fault_tolerance=answer.plan.fault_tolerance,
        node_ids=run.usable_nodes,
    )
    if problem is not None:
        set_back(turn, f"the planner is wrong: {problem}")
        return False
    stage_engines = assign_engines(answer.plan, run.engines.values())
    target = Placement(
        generation=transition.generation,
        plan=answer.plan,
        stage_engines=stage_engines,
        reason=answer.reason,
        peak_flops_per_second=peak_of(stage_engines, run.engines),
    )
    turn.note(target=target, history=_with_joiners(run, transition.history, answer.plan))
    turn.change(nodes_per_replica=answer.min_nodes or run.nodes_per_replica)
    before = transition.history.sizes_before
    turn.emit(
        "plan_chosen",
        f"next: {change_in_words(before, answer.plan.sizes)}, "
        f"{answer.plan.iteration_seconds:.3g} s a step as predicted",
        pipeline_sizes_before=list(before),
        pipeline_sizes_after=list(answer.plan.sizes),
        iteration_seconds=answer.plan.iteration_seconds,
        reason=answer.reason,
    )
    return True


def _with_joiners(run: JobRun, history: TransitionHistory, plan: Plan) -> TransitionHistory:
    """Nodes that were ready to join when something else happened join with its plan."""
    if run.in_force is None:
        return history
    before = run.in_force.plan_to_change.node_ids
    new = (node_id for node_id in plan.node_ids if node_id not in before)
    return replace(history, nodes_joined=tuple(dict.fromkeys((*history.nodes_joined, *new))))


def _adopt(turn: Turn, answer: PlanAnswer) -> None:
    if not adopt_plan(turn, answer):
        turn.note(query=None, answer=None)
        rest(turn)
        return
    transition = turn.transition
    target = turn.target
    missing = missing_layers(
        answer.plan, target.stage_engines, transition.holdings, turn.run.requirements
    )
    if missing:
        begin_copying(turn, missing)
    else:
        begin_activation(turn)


def change_in_words(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """Return the pipelines after a change, and those before it where they differ."""
    if not before or sorted(before) == sorted(after):
        return pipelines_in_words(after)
    return f"{pipelines_in_words(after)} instead of {pipelines_in_words(before)}"


def pipelines_in_words(sizes: tuple[int, ...]) -> str:
    """Return pipelines by their numbers of nodes, for people: "2 pipelines of 3 nodes, 1 of 2"."""
    if not sizes:
        return "no pipeline"
    counts = list(Counter(sizes).items())
    (size, count), *others = counts
    first = f"{counted(count, 'pipeline')} of {counted(size, 'node')}"
    return ", ".join((first, *(f"{count} of {size}" for size, count in others)))
