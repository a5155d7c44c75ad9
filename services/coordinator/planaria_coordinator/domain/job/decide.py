"""A job's reconfiguration as an explicit state machine: decide(now, run, signal) -> Decision.

The phases and rules are those of protocol/job.md, each in its module. In the order in which a job
and a recovery pass through them:

    engines/preparing          start engines on the job's nodes
    job/start_of_training      check that all see the same files, ask for the first plan
    placement/choose_plan      ask the planner, take its answer
    recovery/copy_layers       give every engine the layers of its stage
    recovery/activation        give every engine its assignment
    recovery/transition_completion   training goes on: record what the change took

    recovery/lost_engines      a node or an engine is lost: begin a recovery
    recovery/broken_links      engines say which links failed: whom to believe, and to leave out
    recovery/broken_communication    engines hang or cannot reach each other, nobody known lost
    recovery/opening           write generation g + 1 before anyone hears of it
    recovery/fencing           fence every engine, find T*
    recovery/roll_forward      late engines commit step T*-1: all have version T*
    recovery/version_reached   finish the step, choose a plan, park or fail
    recovery/unreachable_holders    wait for the last holders of layers, ask those that come back
    recovery/restore           go back to the newest checkpoint
    recovery/finish_step       healthy pipelines finish the step in flight
    recovery/regrowing         plan new pipelines for the engines of broken ones
    recovery/online_change     plan a change while training continues
    recovery/handover          stage it while training continues, switch at a commit

    job/user_requests          nodes granted, pause, resume, cancel, drain
    job/end_of_training        digest, last checkpoint, export
    job/own_faults             the coordinator was stopped, started again, or has a defect
    job/ending                 succeeded, failed, cancelled; parked without a plan
    checkpoint/checkpoint_protocol   in any phase: collect and seal what engines write

Nothing here reads a clock, waits or sends. A decision is the new state and the actions that the
application carries out: it persists first and sends second.
"""

from typing import assert_never

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.checkpoint import checkpoint_protocol
from planaria_coordinator.domain.engines.engine import Pending
from planaria_coordinator.domain.engines.outcome import (
    Activated,
    CheckpointDiscarded,
    CheckpointSealed,
    CheckpointTaken,
    Copied,
    Digested,
    DirectiveResult,
    Exported,
    Failure,
    FenceReport,
    Prepared,
    RolledForward,
    Staged,
)
from planaria_coordinator.domain.engines.preparing import on_prepared, prepare_failed
from planaria_coordinator.domain.job import user_requests
from planaria_coordinator.domain.job.commits import note_commit
from planaria_coordinator.domain.job.cordons import fault_found, forget_cordon
from planaria_coordinator.domain.job.end_of_training import (
    end_when_checkpointed,
    export_failed,
    on_digested,
    on_exported,
)
from planaria_coordinator.domain.job.ending import fail
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.own_faults import restart_deadlines, restarted, shift_deadlines
from planaria_coordinator.domain.job.signals import (
    AgentReturned,
    CancelWanted,
    CheckpointReported,
    DrainEnded,
    DrainWanted,
    EngineDisturbed,
    EngineFinished,
    EngineLost,
    EnginesStuck,
    HoldersReturned,
    JobFaulted,
    LinkFailed,
    NodeLost,
    NodesGranted,
    PauseWanted,
    PlanArrived,
    PlanRefused,
    Restarted,
    ResultArrived,
    ResumeWanted,
    SeenTogether,
    Signal,
    Stalled,
    StepCommitted,
    StillWaits,
    Tick,
    UserRequest,
)
from planaria_coordinator.domain.job.turn import Decision, Turn
from planaria_coordinator.domain.job.waiting import set_back, still_waits
from planaria_coordinator.domain.placement.choose_plan import plan_arrived, plan_refused
from planaria_coordinator.domain.recovery import lost_engines
from planaria_coordinator.domain.recovery.activation import activation_failed, on_activated
from planaria_coordinator.domain.recovery.broken_communication import (
    engine_disturbed,
    engines_stuck,
    fence_everybody,
    retry,
)
from planaria_coordinator.domain.recovery.broken_links import links_after_commit, links_failed
from planaria_coordinator.domain.recovery.copy_layers import (
    copy_failed,
    initial_state_failed,
    on_copied,
)
from planaria_coordinator.domain.recovery.fencing import fence_reported
from planaria_coordinator.domain.recovery.handover import (
    on_engine_left,
    on_staged,
    on_switched,
    staging_failed,
    switch_failed,
)
from planaria_coordinator.domain.recovery.online_change import (
    advance_online_change,
    online_plan_refused,
)
from planaria_coordinator.domain.recovery.opening import fence_returned
from planaria_coordinator.domain.recovery.overdue import overdue, refused
from planaria_coordinator.domain.recovery.regrowing import begin_regrowing
from planaria_coordinator.domain.recovery.roll_forward import on_rolled_forward
from planaria_coordinator.domain.recovery.transition import Phase
from planaria_coordinator.domain.recovery.transition_completion import complete
from planaria_coordinator.domain.recovery.unreachable_holders import (
    gone_on_without,
    holders_returned,
    judge_again,
)


def decide(now: Moment, run: JobRun, signal: Signal, limits: Limits) -> Decision:
    """Decide what follows from a signal. Pure: equal arguments give equal decisions."""
    turn = Turn(now=now, run=run, limits=limits)
    if run.state.is_terminal:
        _after_the_end(turn, signal)
        checkpoint_protocol.give_up_what_is_lost(turn)
    else:
        _dispatch(turn, signal)
        while turn.losses or turn.silent_engines or turn.retry_reason:
            lost_engines.lose_silent_engines(turn)
            lost_engines.recover_from_losses(turn)
            retry(turn)
        judge_again(turn)
        fence_returned(turn)
        advance_online_change(turn)
        checkpoint_protocol.give_up_what_is_lost(turn)
        end_when_checkpointed(turn)
        user_requests.follow_up(turn)
    return turn.decision


def _after_the_end(turn: Turn, signal: Signal) -> None:
    """Wait until the engines have stopped, and note what they finished until then."""
    match signal:
        case ResultArrived(result=DirectiveResult(outcome=CheckpointSealed() as outcome)):
            checkpoint_protocol.sealed_at_the_end(turn, outcome)
        case ResultArrived(result=result) if result.directive_id in turn.run.pending:
            turn.forget_stopping(turn.run.pending[result.directive_id].engine_id)
        case EngineLost(engine_id=engine_id) if engine_id in turn.run.stopping:
            turn.forget_stopping(engine_id)
        case NodeLost():
            lost_engines.node_lost(turn, signal)
        case SeenTogether(signals=signals):
            for each in signals:
                _after_the_end(turn, each)
        case Tick(absent_nodes=absent):
            overdue(turn, absent)
        case AgentReturned(node_id=node_id):
            restart_deadlines(turn, node_id)
        case Restarted():
            restart_deadlines(turn)
        case _:
            pass


def _dispatch(turn: Turn, signal: Signal) -> None:
    match signal:
        case ResultArrived(result=result):
            pending = turn.run.pending.get(result.directive_id)
            if pending is not None:  # else: late, repeated, or of a generation that is over
                turn.settle(pending.directive_id)
                _result(turn, pending, result.outcome)
        case StepCommitted():
            _step_committed(turn, signal)
        case EngineFinished(engine_id=engine_id):
            if engine_id in turn.run.required_engines:
                turn.note_run(committed_steps=turn.run.requirements.num_commits)
        case CheckpointReported():
            checkpoint_protocol.reported(turn, signal)
        case NodeLost(node_id=node_id, gone=gone):
            if gone:
                forget_cordon(turn, node_id)
            else:
                fault_found(turn, node_id)
            lost_engines.node_lost(turn, signal)
        case HoldersReturned():
            holders_returned(turn, signal)
        case EngineLost():
            lost_engines.engine_lost(turn, signal)
        case LinkFailed():
            links_failed(turn, (signal,))
        case SeenTogether(signals=signals):
            for each in signals:
                if not isinstance(each, LinkFailed):
                    _dispatch(turn, each)
            links_failed(turn, [each for each in signals if isinstance(each, LinkFailed)])
        case EnginesStuck():
            engines_stuck(turn, signal)
        case EngineDisturbed():
            engine_disturbed(turn, signal)
        case Tick(absent_nodes=absent):
            overdue(turn, absent)
        case AgentReturned(node_id=node_id):
            restart_deadlines(turn, node_id)
        case PlanArrived(query=query, answer=answer):
            plan_arrived(turn, query, answer)
        case PlanRefused():
            if turn.run.transition is not None and turn.run.transition.plans_online:
                online_plan_refused(turn, signal)
            else:
                plan_refused(turn, signal)
        case JobFaulted():
            _job_faulted(turn, signal)
        case Stalled(seconds=seconds):
            shift_deadlines(turn, seconds)
        case Restarted():
            restarted(turn)
        case _:
            _user_request(turn, signal)


def _user_request(turn: Turn, signal: UserRequest) -> None:
    match signal:
        case NodesGranted():
            user_requests.nodes_granted(turn, signal)
        case StillWaits(reason=reason):
            still_waits(turn, reason)
        case PauseWanted():
            user_requests.pause_wanted(turn)
        case ResumeWanted():
            user_requests.resume_wanted(turn)
        case CancelWanted():
            user_requests.cancel_wanted(turn)
        case DrainWanted(node_id=node_id):
            user_requests.drain_wanted(turn, node_id)
        case DrainEnded(node_id=node_id):
            user_requests.drain_ended(turn, node_id)
        case _:
            assert_never(signal)


def _result(turn: Turn, pending: Pending, outcome: object) -> None:
    match outcome, pending.kind:
        case _, "stop":
            turn.forget_stopping(pending.engine_id)
        case Prepared(), "prepare":
            on_prepared(turn, pending, outcome)
        case FenceReport(), "quiesce":
            if turn.transition.phase is Phase.SWITCHING:
                on_engine_left(turn, pending, outcome)
            else:
                fence_reported(turn, pending, outcome)
        case RolledForward(), "roll_forward":
            on_rolled_forward(turn, pending, outcome)
        case Copied(), "copy":
            on_copied(turn, pending, outcome)
        case Activated(), "activate":
            if on_activated(turn, pending, outcome):
                if turn.transition.finishes_step:
                    begin_regrowing(turn)
                else:
                    complete(turn)
        case Staged(), "stage_plan":
            on_staged(turn, pending, outcome)
        case Activated(), "switch":
            on_switched(turn, pending, outcome)
        case Digested(), "digest_layers":
            on_digested(turn, pending, outcome)
        case Exported(), "export":
            on_exported(turn, outcome)
        case CheckpointTaken(), "write_checkpoint":
            pass  # its writer has been known since the directive
        case CheckpointSealed(), "seal_checkpoint":
            checkpoint_protocol.sealed(turn, pending.version, outcome)
        case ((CheckpointDiscarded() | Failure()), "discard_checkpoint"):
            pass  # the next seal removes what is left
        case Failure(), _:
            _failed(turn, pending, outcome)
        case _:
            turn.silent_engines[pending.engine_id] = f"it answered {pending.kind} with nonsense"


def _failed(turn: Turn, pending: Pending, failure: Failure) -> None:
    match pending.kind:
        case "prepare":
            prepare_failed(turn, turn.run.engines[pending.engine_id], failure)
        case "roll_forward":
            on_rolled_forward(turn, pending, None)
        case "copy" if failure.reason in (ErrorReason.INIT_UNUSABLE, ErrorReason.INIT_MISMATCH):
            initial_state_failed(turn, pending, failure)
        case "copy":
            copy_failed(turn, pending, failure.message)
        case "write_checkpoint":
            checkpoint_protocol.write_failed(turn, pending, failure)
        case "seal_checkpoint":
            checkpoint_protocol.seal_failed(turn, pending, failure)
        case "stage_plan":
            staging_failed(turn, failure)
        case "activate":
            activation_failed(turn, failure)
        case "switch":
            switch_failed(turn, failure)
        case "export":
            export_failed(turn, failure)
        case _:
            refused(turn, pending, f"{pending.kind} failed: {failure.message}")


def _job_faulted(turn: Turn, signal: JobFaulted) -> None:
    """Fail for numbers that were refused; stop for what may heal, and try again."""
    failure, run = signal.failure, turn.run
    if not signal.engine_id:
        fail(turn, failure.reason, failure.message, failure.metadata)
    elif signal.engine_id not in run.engines:
        return
    elif failure.reason is ErrorReason.GRADIENT_OUT_OF_RANGE:
        fail(turn, failure.reason, failure.message, failure.metadata)
    elif signal.engine_id in run.required_engines:
        if run.transition is not None and run.transition.phase is Phase.ACTIVATING:
            set_back(turn, failure.message)
            turn.note(failure=failure.message)
        elif run.trains:
            set_back(turn, failure.message)
            if failure.reason is ErrorReason.DATA_UNUSABLE:
                lost_engines.strike_spare_node(
                    turn, run.engines[signal.engine_id].node_id, failure.message
                )
            fence_everybody(turn, turn.now.time, failure.message)


def _step_committed(turn: Turn, signal: StepCommitted) -> None:
    """Note a step; if this is lost with the coordinator, engines report it again."""
    if signal.record.generation < turn.run.restored_generation:
        return  # the job has gone back to a checkpoint since
    note_commit(turn, signal.record)
    num_steps = signal.record.step + 1
    if num_steps <= turn.run.committed_steps:
        return
    placement = turn.run.placement
    if turn.run.absent and placement and signal.record.generation == placement.generation:
        gone_on_without(turn, placement)
    turn.note_run(
        committed_steps=num_steps,
        last_commit_time=signal.commit_time,
        last_step_seconds=signal.step_seconds,
        num_disturbances=0,
        failed_links=links_after_commit(turn.run),
        setback=turn.run.setback if turn.run.rests or turn.run.transition else None,
    )
