"""The words of the coordinator about a step in flight survive the way over the wire."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.worker.v1 import directive_pb2, report_pb2
from planaria_coordinator.domain.directive import (
    Activate,
    Directive,
    FenceReport,
    FollowerAssignment,
    PipelineAssignment,
    Quiesce,
    QuiesceMode,
    StageAssignment,
)
from planaria_coordinator.entrypoints.grpc.worker_convert import directive_message, result_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def message_of(command: Activate | Quiesce) -> directive_pb2.Directive:
    directive = Directive(
        id="d", job_id="job", generation=7, engine_id="e", node_id="n", command=command
    )
    return directive_message(directive)


def test_a_fence_names_those_who_are_lost() -> None:
    message = message_of(Quiesce(mode=QuiesceMode.FENCE, lost_engine_ids=("gone",)))
    assert message.quiesce.mode == directive_pb2.Quiesce.MODE_FENCE
    assert list(message.quiesce.lost_engine_ids) == ["gone"]


def test_an_activate_says_who_keeps_what_and_who_follows() -> None:
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
        )
    ).activate
    assert activate.pipelines[0].keeps_step
    assert list(activate.pipelines[0].step_microbatches) == [0, 1, 2]
    assert [(f.engine_id, f.data_address, list(f.layers)) for f in activate.followers] == [
        ("f", "f:1", [1, 2])
    ]


def test_an_engine_that_goes_on_has_no_time_at_which_it_stood_still() -> None:
    fence_time = Timestamp()
    fence_time.FromDatetime(NOON)
    report = report_pb2.FenceReport(
        committed_steps=5, fence_time=fence_time, applied_generation=6, kept_microbatches=[0, 2]
    )
    outcome = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(outcome, FenceReport)
    assert outcome.park_time is None
    assert (outcome.applied_generation, outcome.kept_microbatches) == (6, (0, 2))
    report.park_time.CopyFrom(fence_time)
    parked = result_of(report_pb2.DirectiveResult(fence_report=report)).outcome
    assert isinstance(parked, FenceReport)
    assert parked.park_time == NOON
