"""Dataclasses and protobuf messages convert into each other without loss."""

import dataclasses
import typing
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message

from planaria.api.common.v1 import plan_pb2
from planaria.api.coordinator.v1 import resources_pb2
from planaria.api.worker.v1 import report_pb2, worker_service_pb2
from planaria_common.messages import from_message, to_message
from planaria_coordinator.application.agents import agent_messages
from planaria_coordinator.domain.engines import directive, outcome
from planaria_coordinator.domain.engines.node import EngineSnapshot, Node
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.domain.job.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.recovery.recovery_record import Recovery
from planaria_coordinator.entrypoints.grpc.from_agent import result_of
from planaria_coordinator.entrypoints.grpc.to_agent import PlanMessages, directive_message

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sample(annotation: Any, numbers: "count[int]") -> Any:
    """Make a value of a type in which no two fields are alike, and none is empty."""
    number = next(numbers)
    arguments = [each for each in typing.get_args(annotation) if each is not type(None)]
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        hints = typing.get_type_hints(annotation)
        return annotation(
            **{
                field.name: sample(hints[field.name], numbers)
                for field in dataclasses.fields(annotation)
                if field.name != "kind"
            }
        )
    if typing.get_origin(annotation) is tuple:
        return (sample(arguments[0], numbers), sample(arguments[0], numbers))
    if typing.get_origin(annotation) is dict:
        key, value = arguments
        return {sample(key, numbers): "x" if value is Any else sample(value, numbers)}
    if arguments:
        return sample(arguments[0], numbers)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)[number % len(annotation)]
    simple = {
        bool: True,
        int: number,
        float: number + 0.5,
        str: f"{number:08x}",  # a digest of four bytes, too
        datetime: NOON + timedelta(seconds=number),
    }
    return simple[annotation]


def unset_fields(message: Message) -> set[str]:
    found = {field.name for field, _ in message.ListFields()}
    return set(message.DESCRIPTOR.fields_by_name) - found


COMMANDS = typing.get_args(directive.Command)
OUTCOMES = [each for each in typing.get_args(outcome.Outcome) if each is not outcome.Digested]


@pytest.mark.parametrize("command_type", COMMANDS)
def test_every_directive_arrives_whole(command_type: type) -> None:
    command = sample(command_type, count(1))
    message = directive_message(
        directive.Directive(
            id="d", job_id="j", generation=3, engine_id="e", node_id="n", command=command
        ),
        PlanMessages(),
    )
    assert message.WhichOneof("command") == command.kind
    part = getattr(message, command.kind)
    assert not unset_fields(part)
    assert from_message(part, command_type) == command


@pytest.mark.parametrize("outcome_type", OUTCOMES)
def test_every_outcome_arrives_whole(outcome_type: type) -> None:
    sent = sample(outcome_type, count(1))
    message = report_pb2.DirectiveResult(directive_id="d", job_id="j")
    part = getattr(message, sent.kind)
    part.SetInParent()
    part.MergeFrom(to_message(sent, type(part)))
    assert not unset_fields(part)
    assert result_of(message) == outcome.DirectiveResult(directive_id="d", job_id="j", outcome=sent)


def test_digests_are_a_list_on_the_wire() -> None:
    layers = [report_pb2.LayerDigest(layer=2, sha256=b"\x01\x02")]
    message = report_pb2.DirectiveResult(digested=report_pb2.Digested(layers=layers, version=4))
    assert result_of(message).outcome == outcome.Digested(digests={2: "0102"}, version=4)


@pytest.mark.parametrize(
    ("data_type", "message_type"),
    [
        (agent_messages.Hello, worker_service_pb2.Hello),
        (agent_messages.Welcome, worker_service_pb2.Welcome),
        (agent_messages.EngineExited, report_pb2.EngineExited),
        (agent_messages.LinkFailed, report_pb2.LinkFailed),
        (agent_messages.EngineFault, report_pb2.EngineFault),
        (agent_messages.StepReport, report_pb2.StepReport),
        (agent_messages.LogLines, worker_service_pb2.LogLines),
        (EngineSnapshot, report_pb2.EngineSnapshot),
        (Plan, plan_pb2.Plan),
    ],
)
def test_every_report_and_plan_arrives_whole(data_type: type, message_type: type[Message]) -> None:
    value = sample(data_type, count(1))
    message = to_message(value, message_type)
    assert not unset_fields(message)
    assert from_message(message, data_type) == value


@pytest.mark.parametrize(
    ("data_type", "message_type"),
    [
        (Job, resources_pb2.Job),
        (Node, resources_pb2.Node),
        (Event, resources_pb2.Event),
        (StepMetrics, resources_pb2.StepMetrics),
        (Recovery, resources_pb2.Recovery),
        (LogLine, resources_pb2.LogLine),
    ],
)
def test_every_field_of_a_resource_is_sent(data_type: type, message_type: type[Message]) -> None:
    assert not unset_fields(to_message(sample(data_type, count(1)), message_type))


def test_an_optional_field_that_is_absent_stays_absent() -> None:
    record = directive.CommitRecord(
        step=1, generation=2, gradient_norm=0.5, loss=0.25, num_tokens=3
    )
    message = to_message(record, report_pb2.CommitRecord)
    assert not message.HasField("evaluation_loss")
    assert from_message(message, directive.CommitRecord) == record


def test_an_unset_reason_is_an_internal_error() -> None:
    assert from_message(report_pb2.Failure(), outcome.Failure).reason == "INTERNAL"


def test_a_field_without_counterpart_is_refused() -> None:
    with pytest.raises(TypeError, match="HeldLayer has no num_bytes, sha256"):
        from_message(report_pb2.HeldLayer(), directive.LayerWritten)
    with pytest.raises(TypeError, match=r"HeldLayer has no .*sha256"):
        to_message(outcome.HeldLayer(layer=1, version=2), report_pb2.LayerWritten)


def test_an_exit_code_may_be_absent_or_zero() -> None:
    exited = report_pb2.EngineExited(job_id="j", engine_id="e", log_tail=["x"])
    exited.detect_time.FromDatetime(NOON)
    assert from_message(exited, agent_messages.EngineExited).exit_code is None
    exited.exit_code = 0
    assert from_message(exited, agent_messages.EngineExited) == agent_messages.EngineExited(
        job_id="j", engine_id="e", exit_code=0, detect_time=NOON, log_tail=("x",)
    )
