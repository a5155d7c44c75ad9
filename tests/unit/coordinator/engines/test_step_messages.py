"""The words of the coordinator about a step in flight survive the way over the wire."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.worker.v1 import directive_pb2, report_pb2
from planaria_coordinator.domain.engines.directive import (
    Activate,
    Command,
    CommitRecord,
    Directive,
    FollowerAssignment,
    LayerSource,
    PipelineAssignment,
    Quiesce,
    QuiesceMode,
    RollForward,
    StageAssignment,
    StagePlan,
    Switch,
)
from planaria_coordinator.domain.engines.outcome import FenceReport, IdleGroup, Staged
from planaria_coordinator.entrypoints.grpc.from_agent import result_of
from planaria_coordinator.entrypoints.grpc.to_agent import PlanMessages, directive_message

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def message_of(command: Command) -> directive_pb2.Directive:
    directive = Directive(
        id="d", job_id="job", generation=7, engine_id="e", node_id="n", command=command
    )
    return directive_message(directive, PlanMessages())


def test_a_fence_names_lost_engines() -> None:
    message = message_of(Quiesce(mode=QuiesceMode.FENCE, lost_engine_ids=("gone",)))
    assert message.quiesce.mode == directive_pb2.Quiesce.MODE_FENCE
    assert list(message.quiesce.lost_engine_ids) == ["gone"]


def test_an_activate_names_kept_microbatches_and_followers() -> None:
    stage = StageAssignment(engine_id="e", data_address="e:1", first_layer=0, num_layers=3)
    pipeline = PipelineAssignment(
        stages=(stage,), microbatches=(0, 1), step_microbatches=(0, 1, 2), keeps_step=True
    )
    follower = FollowerAssignment(engine_id="f", data_address="f:1", layers=(1, 2))
    activate = message_of(
        Activate(
            pipelines=(pipeline,),
            committed_steps=5,
            store_address="s",
            rebuild_timeout_seconds=2.5,
            followers=(follower,),
            kept_groups=("job/6/owners-0",),
        )
    ).activate
    assert list(activate.kept_groups) == ["job/6/owners-0"]
    assert activate.pipelines[0].keeps_step
    assert list(activate.pipelines[0].step_microbatches) == [0, 1, 2]
    assert [(f.engine_id, f.data_address, list(f.layers)) for f in activate.followers] == [
        ("f", "f:1", [1, 2])
    ]


def test_an_assignment_to_stage_names_the_layers_it_lacks() -> None:
    stage = StageAssignment(engine_id="e", data_address="e:1", first_layer=0, num_layers=3)
    plan = message_of(
        StagePlan(
            pipelines=(PipelineAssignment(stages=(stage,), microbatches=(0, 1)),),
            store_address="s",
            rebuild_timeout_seconds=2.5,
            layers=(LayerSource(layer=2, addresses=("a:1", "b:1")),),
        )
    ).stage_plan
    assert [(s.layer, list(s.addresses)) for s in plan.layers] == [(2, ["a:1", "b:1"])]
    assert message_of(Switch()).WhichOneof("command") == "switch"


def test_a_staged_assignment_reports_times_and_copied_bytes() -> None:
    noon = Timestamp()
    noon.FromDatetime(NOON)
    message = report_pb2.Staged(bytes=7, start_time=noon, rebuild_end_time=noon)
    without = result_of(report_pb2.DirectiveResult(staged=message)).outcome
    assert without == Staged(
        num_bytes=7,
        start_time=NOON,
        rebuild_end_time=NOON,
        copy_end_time=None,
    )
    message.copy_end_time.CopyFrom(noon)
    copied = result_of(report_pb2.DirectiveResult(staged=message)).outcome
    assert isinstance(copied, Staged)
    assert copied.copy_end_time == NOON


def test_a_commit_that_ends_the_plan_names_the_next_generation() -> None:
    record = CommitRecord(
        step=4, generation=6, gradient_norm=1.0, loss=1.0, num_tokens=8, next_generation=7
    )
    message = message_of(RollForward(record=record)).roll_forward
    assert message.record.next_generation == 7
    noon = Timestamp()
    noon.FromDatetime(NOON)
    report = report_pb2.FenceReport(
        committed_steps=5, last_commit=message.record, fence_time=noon, park_time=noon
    )
    outcome = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(outcome, FenceReport)
    assert outcome.last_commit == record


def test_an_engine_that_goes_on_has_no_time_at_which_it_stood_still() -> None:
    fence_time = Timestamp()
    fence_time.FromDatetime(NOON)
    report = report_pb2.FenceReport(
        committed_steps=5,
        fence_time=fence_time,
        applied_generation=6,
        kept_microbatches=[0, 2],
        idle_groups=[report_pb2.IdleGroup(id="job/6/owners-0", size=3)],
    )
    outcome = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(outcome, FenceReport)
    assert outcome.park_time is None
    assert (outcome.applied_generation, outcome.kept_microbatches) == (6, (0, 2))
    assert outcome.idle_groups == (IdleGroup(id="job/6/owners-0", size=3),)
    report.park_time.CopyFrom(fence_time)
    parked = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(parked, FenceReport)
    assert parked.park_time == NOON


def test_a_fenced_engine_says_what_a_microbatch_takes() -> None:
    fence_time = Timestamp()
    fence_time.FromDatetime(NOON)
    report = report_pb2.FenceReport(fence_time=fence_time, microbatch_seconds=0.25)
    outcome = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(outcome, FenceReport)
    assert outcome.microbatch_seconds == 0.25
