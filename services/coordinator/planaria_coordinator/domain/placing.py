"""From a plan to training: choose the plan, copy what is missing, give everyone a place."""

from collections.abc import Mapping
from dataclasses import replace

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.directive import (
    Activate,
    Activated,
    Copied,
    Copy,
    Failure,
    FollowerAssignment,
    PipelineAssignment,
    StageAssignment,
)
from planaria_coordinator.domain.ending import fail, stand_still
from planaria_coordinator.domain.job import JobState
from planaria_coordinator.domain.ledger import Activity
from planaria_coordinator.domain.plan import plan_problem
from planaria_coordinator.domain.planning import PlanAnswer, PlanQuery
from planaria_coordinator.domain.profile import plan_nodes, planning_problem
from planaria_coordinator.domain.replicas import (
    Holdings,
    assign_places,
    choose_sources,
    holdings_by_node,
    layers_of_version,
    missing_layers,
)
from planaria_coordinator.domain.run import Engine, JobRun, Pending, Phase, Placement
from planaria_coordinator.domain.signals import PlanRefused
from planaria_coordinator.domain.turn import Turn


def nodes_to_plan_on(run: JobRun) -> tuple[str, ...]:
    """Return the nodes that may have a place: draining ones only when it does not go without."""
    staying = tuple(n for n in run.usable_nodes if n not in run.draining)
    return staying if len(staying) >= run.nodes_per_replica else run.usable_nodes


def plan_query(run: JobRun, holdings: Holdings) -> PlanQuery:
    """Return the question to the planner about the transition under way."""
    transition = run.transition
    if transition is None:
        raise AssertionError("a plan is asked for within a transition")
    node_ids = nodes_to_plan_on(run)
    problem = planning_problem(
        run.requirements,
        {node_id: run.nodes[node_id] for node_id in node_ids},
        run.prepared_engines.values(),
        fault_tolerance=transition.fault_tolerance,
    )
    return PlanQuery(
        problem=problem,
        nodes=plan_nodes(run.nodes, node_ids),
        current=(run.placement.plan_before or run.placement.plan) if run.placement else None,
        holdings=holdings_by_node(holdings, run.engines),
        horizon_seconds=transition.horizon_seconds if run.placement else 0.0,
    )


def choose_plan(turn: Turn) -> None:
    """Enter PLANNING, and go on at once when the answer was there before the reports."""
    run = turn.run
    num_nodes = len(nodes_to_plan_on(run))
    if num_nodes < run.nodes_per_replica:
        state = JobState.WAITING if run.has_trained else JobState.PENDING
        stand_still(
            turn,
            state,
            f"{num_nodes} nodes are left and the model needs {run.nodes_per_replica}: "
            "the job waits for nodes",
        )
        return
    if turn.transition.phase is not Phase.PLANNING:
        turn.enter(Phase.PLANNING, f"a plan is needed for {num_nodes} nodes")
        _account(turn, Activity.PLAN)
    turn.ask(plan_query(turn.run, turn.transition.holdings))
    if turn.transition.answer is not None:
        _adopt(turn, turn.transition.answer)


def plan_arrived(turn: Turn, query: PlanQuery, answer: PlanAnswer) -> None:
    """Take the planner's answer; it may come before the reports that it was asked for."""
    if turn.run.transition is None or turn.transition.query != query:
        return
    turn.note(answer=answer, answered_time=turn.now.time)
    if turn.transition.phase is Phase.PLANNING and not turn.transition.is_ahead:
        _adopt(turn, answer)


def plan_refused(turn: Turn, signal: PlanRefused) -> None:
    """Ask for less, wait for nodes, or give up."""
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
        stand_still(turn, state, f"{message}: the job waits for nodes")
    else:
        fail(turn, reason, message, signal.metadata)


def wants_less(turn: Turn, signal: PlanRefused) -> bool:
    """Be content with surviving one loss less, where that is what the plan failed for."""
    wanted = signal.query.problem.fault_tolerance
    if signal.reason is not ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE or wanted == 0:
        return False
    turn.note(fault_tolerance=wanted - 1)
    return True


def _adopt(turn: Turn, answer: PlanAnswer) -> None:
    run, transition = turn.run, turn.transition
    problem = plan_problem(
        answer.plan,
        num_layers=run.requirements.num_layers,
        num_microbatches=run.requirements.num_microbatches,
        node_ids=frozenset(run.usable_nodes),
    )
    if problem is not None:
        fail(turn, ErrorReason.INTERNAL, f"the planner is wrong: {problem}", {"part": "planner"})
        return
    target = Placement(
        generation=transition.generation,
        plan=answer.plan,
        places=assign_places(answer.plan, run.engines.values()),
        reason=answer.reason,
    )
    turn.note(target=target)
    turn.change(nodes_per_replica=answer.min_nodes or run.nodes_per_replica)
    before = sizes_in_words(transition.story.sizes_before)
    after = sizes_in_words(answer.plan.sizes)
    turn.emit(
        "plan_chosen",
        f"pipelines of {before} -> {after} nodes: {answer.reason}"
        if transition.story.sizes_before
        else f"pipelines of {after} nodes: {answer.reason}",
        pipeline_sizes_before=list(transition.story.sizes_before),
        pipeline_sizes_after=list(answer.plan.sizes),
        iteration_seconds=answer.plan.iteration_seconds,
    )
    missing = missing_layers(answer.plan, target.places, transition.holdings, run.requirements)
    if missing:
        _begin_copying(turn, missing)
    else:
        begin_activating(turn)


def sizes_in_words(sizes: tuple[int, ...]) -> str:
    """Return pipeline sizes for people: 3+2."""
    return "+".join(str(size) for size in sizes) or "no"


def _account(turn: Turn, activity: Activity) -> None:
    """Name the time of a phase; all that precedes the first step is starting."""
    first = turn.run.start_time is None
    turn.account(Activity.STARTING if first else activity)


# -- copying -----------------------------------------------------------------------------------


def _begin_copying(turn: Turn, missing: dict[str, tuple[int, ...]]) -> None:
    num_layers = sum(len(layers) for layers in missing.values())
    turn.enter(Phase.COPYING, f"{len(missing)} engines obtain {num_layers} layers")
    _account(turn, Activity.COPY)
    _send_copies(turn, missing, attempt=1)


def _send_copies(turn: Turn, missing: dict[str, tuple[int, ...]], *, attempt: int) -> None:
    transition = turn.transition
    sources = choose_sources(
        missing,
        transition.holdings,
        turn.run.engines,
        transition.answer.copies if transition.answer else (),
        skip=attempt - 1,
    )
    for engine_id, layers in sources.items():
        turn.send(
            turn.run.engines[engine_id],
            Copy(layers=layers, version=transition.target_steps),
            allow_seconds=seconds_for_layers(turn, missing[engine_id]),
            attempt=attempt,
        )


def seconds_for_layers(turn: Turn, layers: tuple[int, ...]) -> float:
    """Return how long moving the state of layers may take before it counts as hanging."""
    num_bytes = sum(turn.run.requirements.layers[layer].state_bytes for layer in layers)
    return turn.limits.directive_seconds + num_bytes / turn.limits.copy_bytes_per_second


def copied(turn: Turn, pending: Pending, outcome: Copied) -> None:
    """An engine has its layers; when all have theirs, places can be taken."""
    transition = turn.transition
    version = transition.target_steps
    held = layers_of_version(outcome.layers, version)
    turn.note(
        holdings={**transition.holdings, pending.engine_id: held},
        copied={**transition.copied, pending.engine_id: outcome},
    )
    if _still_missing(turn, pending.engine_id):
        copy_failed(turn, pending, f"layers of version {version} are still missing")
    elif not turn.is_awaiting("copy"):
        _tell_of_copies(turn)
        begin_activating(turn)


def _still_missing(turn: Turn, engine_id: str) -> tuple[int, ...]:
    target = turn.transition.target
    if target is None:
        return ()
    missing = missing_layers(
        target.plan, target.places, turn.transition.holdings, turn.run.requirements
    )
    return missing.get(engine_id, ())


def copy_failed(turn: Turn, pending: Pending, message: str) -> None:
    """Try again from another source; an engine that cannot copy at all is given up."""
    missing = _still_missing(turn, pending.engine_id)
    if pending.num_attempt < turn.limits.num_attempts and missing:
        turn.because(f"{pending.engine_id} copies again: {message}")
        _send_copies(turn, {pending.engine_id: missing}, attempt=pending.num_attempt + 1)
    else:
        turn.silent_engines[pending.engine_id] = f"it could not obtain its layers: {message}"


def _tell_of_copies(turn: Turn) -> None:
    outcomes = turn.transition.copied.values()
    num_bytes = sum(outcome.num_bytes for outcome in outcomes)
    if not num_bytes:
        return
    seconds = (
        max(outcome.end_time for outcome in outcomes)
        - min(outcome.start_time for outcome in outcomes)
    ).total_seconds()
    nodes = sorted({turn.run.engines[e].node_id for e in turn.transition.copied})
    turn.emit(
        "layers_copied",
        f"{num_bytes} bytes of parameters and optimizer state copied to {', '.join(nodes)} "
        f"in {seconds:.3f} s",
        bytes=num_bytes,
        seconds=seconds,
        nodes=nodes,
    )


# -- activating --------------------------------------------------------------------------------


def begin_activating(turn: Turn) -> None:
    """Tell every engine of the plan, and every follower, to take its place."""
    transition = turn.transition
    target = transition.target
    if target is None:
        raise AssertionError("places are given by a plan")
    turn.enter(Phase.ACTIVATING, f"{len(target.engine_ids)} engines take their places")
    _account(turn, Activity.REBUILD)
    turn.change(placement=target)
    turn.save_generation(transition.story.cause, plan=target.plan, reason=target.reason)
    engines = turn.run.engines
    rebuild_seconds = _rebuild_seconds(turn, target)
    command = Activate(
        pipelines=_assignments(target, engines),
        committed_steps=transition.target_steps,
        store_address=engines[target.places[0][0]].store_address,
        rebuild_timeout_seconds=rebuild_seconds,
        followers=tuple(
            FollowerAssignment(
                engine_id=engine_id, data_address=engines[engine_id].data_address, layers=layers
            )
            for engine_id, layers in sorted(target.followers.items())
        ),
    )
    for engine_id in sorted(target.engine_ids):
        # An engine that waits in vain for others says so after the rebuild's timeout: only one
        # that is silent for longer than that is itself at fault.
        turn.send(engines[engine_id], command, allow_seconds=2 * rebuild_seconds)


def _rebuild_seconds(turn: Turn, target: Placement) -> float:
    """Return how long communicators may take; those who compute meet when they have done so."""
    step_seconds = max(turn.run.last_step_seconds, target.plan.iteration_seconds)
    return turn.limits.directive_seconds + (2 * step_seconds if target.step_microbatches else 0.0)


def _assignments(
    target: Placement, engines: Mapping[str, Engine]
) -> tuple[PipelineAssignment, ...]:
    pipelines = zip(target.plan.pipelines, target.places, strict=True)
    return tuple(
        PipelineAssignment(
            stages=tuple(
                StageAssignment(
                    engine_id=engine_id,
                    data_address=engines[engine_id].data_address,
                    first_layer=stage.first_layer,
                    num_layers=stage.num_layers,
                )
                for stage, engine_id in zip(pipeline.stages, engine_ids, strict=True)
            ),
            microbatches=pipeline.microbatches,
            step_microbatches=target.step_microbatches[index] if target.step_microbatches else (),
            keeps_step=bool(target.step_microbatches),
        )
        for index, (pipeline, engine_ids) in enumerate(pipelines)
    )


def activated(turn: Turn, pending: Pending, outcome: Activated) -> bool:
    """An engine has its place. Return whether everyone has."""
    story = turn.transition.story
    others = tuple(engine_id for engine_id in story.redone_by if engine_id != pending.engine_id)
    turn.note(
        activated={**turn.transition.activated, pending.engine_id: outcome},
        story=replace(story, redone_by=others),  # what it computes from now on is new work
    )
    return _all_answered(turn)


def activation_failed(turn: Turn, failure: Failure) -> None:
    """Some engine could not take its place: begin anew when all have answered."""
    turn.note(failure=failure.message)
    _all_answered(turn)


def _all_answered(turn: Turn) -> bool:
    if turn.is_awaiting("activate"):
        return False
    turn.retry_reason = turn.transition.failure
    return not turn.transition.failure
