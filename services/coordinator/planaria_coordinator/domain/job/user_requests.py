"""What users and the scheduler want: nodes granted, pause, resume, cancel, drain."""

from dataclasses import replace

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.preparing import await_nodes, check_prepared
from planaria_coordinator.domain.job.ending import end, pause_waiting
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import NodesGranted
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.ask_planner import nodes_to_plan_on
from planaria_coordinator.domain.recovery.opening import (
    new_history,
    open_online_change,
    open_transition,
)
from planaria_coordinator.domain.recovery.transition import Cause, Phase


def nodes_granted(turn: Turn, signal: NodesGranted) -> None:
    """Start on nodes, or let them join. In the middle of a transition nobody new is let in."""
    run = turn.run
    granted = tuple(
        facts for facts in signal.nodes if facts.node_id not in {**run.refused, **run.left_out}
    )
    node_ids = tuple(facts.node_id for facts in granted)
    preparing = run.transition is not None and run.transition.phase is Phase.PREPARING
    # Nobody new can train without the state that the job waits for.
    standing = run.state is JobState.PAUSED or run.pause_wanted or run.awaited_state is not None
    if not granted or standing or (run.transition is not None and not preparing):
        turn.because("nodes are not let in now")
        return
    nodes = {**run.nodes, **{facts.node_id: facts for facts in granted}}
    nodes_per_replica = max(run.nodes_per_replica, signal.nodes_per_replica)
    turn.change(nodes=nodes, nodes_per_replica=nodes_per_replica)
    if preparing:
        await_nodes(turn, node_ids)
        check_prepared(turn)
    elif not run.has_trained:
        history = new_history(turn, Cause.START)
        reason = f"starts on {', '.join(node_ids)}"
        open_transition(turn, history, reason, awaited_nodes=node_ids)
    else:
        waiting = run.state is JobState.WAITING
        history = replace(new_history(turn, Cause.NODE_JOINED), nodes_joined=node_ids)
        open_transition(
            turn,
            history,
            f"{', '.join(node_ids)} join{'s' if len(node_ids) == 1 else ''}: {signal.reason}",
            mode=QuiesceMode.IMMEDIATE if waiting else QuiesceMode.AT_COMMIT,
            awaited_nodes=node_ids,
        )


def pause_wanted(turn: Turn) -> None:
    """Pause after a commit; a change under way reaches one version first."""
    run = turn.run
    if run.pause_wanted or run.state is JobState.PAUSED:
        return
    turn.change(pause_wanted=True)
    if run.waits and run.transition is None:
        pause_waiting(turn)
    else:
        follow_up(turn)


def resume_wanted(turn: Turn) -> None:
    """Go on after a pause, or do not pause after all."""
    turn.change(pause_wanted=False)
    run = turn.run
    if run.state is not JobState.PAUSED:
        return
    if run.awaited_state is not None:
        open_transition(turn, new_history(turn, Cause.RESUMED), "resumed")
        return
    usable = nodes_to_plan_on(run)
    if len(usable) >= run.nodes_per_replica:
        awaited = () if run.has_trained else usable
        cause = Cause.RESUMED if run.has_trained else Cause.START
        open_transition(turn, new_history(turn, cause), "resumed", awaited_nodes=awaited)
        return
    turn.set_state(JobState.WAITING if run.has_trained else JobState.PENDING)
    turn.account(Activity.WAITING)
    turn.emit("job_waiting", "resumed: the job waits for nodes")


def cancel_wanted(turn: Turn) -> None:
    """End the job in whatever it is doing."""
    end(turn, JobState.CANCELLED)


def drain_wanted(turn: Turn, node_id: str) -> None:
    """Free a node: at once when it has no place, else by a transition after the next commit.

    One on which engines only have yet to stop is being freed already.
    """
    run = turn.run
    if node_id not in run.nodes or node_id in run.draining:
        return
    turn.change(draining=(*run.draining, node_id))
    follow_up(turn)


def drain_ended(turn: Turn, node_id: str) -> None:
    """Keep a node after all."""
    turn.change(draining=tuple(n for n in turn.run.draining if n != node_id))


def follow_up(turn: Turn) -> None:
    """Begin what was wanted while another transition was under way."""
    if not _may_open(turn):
        return
    _free_drained_nodes(turn)
    run = turn.run
    if not _may_open(turn) or not run.has_trained or run.state is not JobState.RUNNING:
        return
    if run.committed_steps >= run.requirements.num_commits:
        history = new_history(turn, Cause.FINISHED)
        open_transition(turn, history, "the last step is committed")
    elif run.pause_wanted:
        history = new_history(turn, Cause.PAUSED)
        open_transition(turn, history, "pause is wanted", mode=QuiesceMode.AT_COMMIT)
    elif not run.rests and (leaving := _leaving_nodes(turn)):
        history = new_history(turn, Cause.NODE_DRAINED)
        open_online_change(turn, history, f"{', '.join(leaving)} is to be freed")


def _may_open(turn: Turn) -> bool:
    """Whether nothing is under way, or only engines that start while training continues."""
    transition = turn.run.transition
    trains_on = transition is None or transition.phase is Phase.PREPARING
    return trains_on and not turn.run.state.is_terminal


def _leaving_nodes(turn: Turn) -> tuple[str, ...]:
    """Draining nodes with a place, when the job can go on without them."""
    run = turn.run
    placed = run.placement.plan.node_ids if run.placement else ()
    leaving = tuple(node_id for node_id in run.draining if node_id in placed)
    can_go = not set(nodes_to_plan_on(run)) & set(run.draining)
    return leaving if can_go else ()


def _free_drained_nodes(turn: Turn) -> None:
    """Stop engines on draining nodes that have no place in the plan that runs.

    What they have copied for a checkpoint is in their memory alone: they write it first.
    """
    run = turn.run
    if run.state not in (JobState.RUNNING, JobState.PENDING):
        return
    placed = run.placement.engine_ids if run.placement else frozenset()
    idle = [
        engine.id
        for engine in run.engines.values()
        if engine.node_id in run.draining
        and engine.id not in placed
        and not any(c.layers_of(engine.id) for c in run.checkpoints.values())
    ]
    if idle:
        turn.stop_engines(idle, "its node is to be freed")
        turn.release_empty_nodes()
        check_prepared(turn)
