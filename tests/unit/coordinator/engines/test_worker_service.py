"""The worker protocol on the wire: sessions, refusals, and every message in both directions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from planaria.api.common.v1 import errors_pb2
from planaria.api.worker.v1 import directive_pb2, report_pb2, worker_service_pb2
from planaria.api.worker.v1.worker_service_pb2 import SessionRequest, SessionResponse
from planaria.api.worker.v1.worker_service_pb2_grpc import (
    WorkerServiceStub,
    add_WorkerServiceServicer_to_server,
)
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcclient import bearer, open_channel, to_planaria_error
from planaria_common.grpcserver import GrpcServer
from planaria_common.messages import from_message, to_message
from planaria_common.version import PROTOCOL_VERSION
from planaria_coordinator.application.agents.agent_messages import EngineExited
from planaria_coordinator.domain.engines import directive as words
from planaria_coordinator.domain.engines.outcome import Failure, FenceReport, HeldLayer
from planaria_coordinator.entrypoints.grpc import from_agent, to_agent
from planaria_coordinator.entrypoints.grpc.worker_service import WorkerServicer
from unit.coordinator.simulation.world import World

if TYPE_CHECKING:  # the generated stub is one class at run time
    from planaria.api.worker.v1.worker_service_pb2_grpc import WorkerServiceAsyncStub

TOKEN = "secret"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Call = grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]


@asynccontextmanager
async def served(world: World) -> AsyncIterator["WorkerServiceAsyncStub"]:
    """Serve the world's sessions, and yield a client."""
    servicer = WorkerServicer(world.coordinator.sessions)
    server = GrpcServer(
        part="coordinator",
        services={
            "planaria.api.worker.v1.WorkerService": partial(
                add_WorkerServiceServicer_to_server, servicer
            )
        },
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )
    await world.coordinator.start(with_clock=False)
    await server.start()
    try:
        async with open_channel(server.address, token=TOKEN) as channel:
            yield WorkerServiceStub(channel)
    finally:
        await server.stop(grace_seconds=0)
        await world.stop()


def hello(**changes: object) -> SessionRequest:
    message = worker_service_pb2.Hello(
        node_id="n0",
        agent_id="a",
        version="1",
        protocol_version=PROTOCOL_VERSION,
        advertise_address="127.0.0.1",
        num_accelerators=1,
        accelerator_kind="cpu",
        accelerator_memory_bytes=1 << 34,
        pid=7,
        boot_id="boot",
    )
    for name, value in changes.items():
        setattr(message, name, value)
    return SessionRequest(hello=message)


async def greet(
    stub: "WorkerServiceAsyncStub", request: SessionRequest
) -> tuple[Call, SessionResponse]:
    call = stub.Session(metadata=bearer(TOKEN))
    await call.write(request)
    try:
        first = await call.read()
    except grpc.aio.AioRpcError as error:
        raise to_planaria_error(error, "coordinator") from error
    assert isinstance(first, SessionResponse)
    return call, first


async def test_a_hello_is_welcomed_with_the_times_to_go_by() -> None:
    world = World()
    async with served(world) as stub:
        call, first = await greet(stub, hello())
        welcome = first.welcome
        assert welcome.heartbeat_interval.ToTimedelta().total_seconds() == 1.0
        assert welcome.agent_lease.ToTimedelta().total_seconds() == 10.0
        node = await world.coordinator.cluster.get("n0")
        assert (node.agent_pid, node.accelerator_memory_bytes) == (7, 1 << 34)
        call.cancel()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (hello(protocol_version=9), ErrorReason.VERSION_MISMATCH),
        (hello(node_id="no/slash"), ErrorReason.INVALID_ARGUMENT),
        (
            SessionRequest(heartbeat=worker_service_pb2.Heartbeat()),
            ErrorReason.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_wrong_beginning_is_refused_with_its_reason(
    request_: SessionRequest, reason: ErrorReason
) -> None:
    async with served(World()) as stub:
        with pytest.raises(PlanariaError) as caught:
            await greet(stub, request_)
        assert caught.value.reason is reason


async def test_a_second_live_agent_of_the_same_name_is_refused() -> None:
    async with served(World()) as stub:
        call, _ = await greet(stub, hello())
        with pytest.raises(PlanariaError) as caught:
            await greet(stub, hello(agent_id="b"))
        assert caught.value.reason is ErrorReason.NODE_NAME_TAKEN
        call.cancel()


async def test_an_agent_that_connects_again_replaces_its_first_session() -> None:
    async with served(World()) as stub:
        first, _ = await greet(stub, hello())
        second, _ = await greet(stub, hello())
        assert await first.read() is grpc.aio.EOF
        second.cancel()


async def test_directives_reach_the_agent_and_their_results_the_job() -> None:
    """A failed Prepare goes all the way: job file out, failure back, job FAILED."""
    world = World()
    async with served(world) as stub:
        call, _ = await greet(stub, hello())
        world.steps = world.num_commits = 3
        await world.submit(resilience={"fault_tolerance": 0})
        response = await call.read()
        assert isinstance(response, SessionResponse)
        directive = response.directive
        assert directive.prepare.job_spec.startswith('{"checkpoint"')
        assert directive.engine_id == f"{world.job_id}/n0/0/1"
        failure = report_pb2.Failure(
            reason=errors_pb2.ERROR_REASON_DATA_UNUSABLE,
            message="n0: corpus.txt: no such file",
            metadata={"path": "corpus.txt"},
        )
        result = report_pb2.DirectiveResult(
            directive_id=directive.directive_id,
            job_id=directive.job_id,
            failure=failure,
        )
        await call.write(SessionRequest(result=result))
        async for view in world.coordinator.jobs.watch(world.job_id):
            job = view.job
        assert job.error is not None
        assert job.error.reason is ErrorReason.DATA_UNUSABLE
        assert job.error.metadata == {"path": "corpus.txt"}
        call.cancel()


async def test_a_node_that_others_cannot_reach_is_asked_for_a_heartbeat_at_once() -> None:
    """It is asked once, however many say so, until it has answered."""
    world = World()
    nodes = world.coordinator._state.nodes
    async with served(world) as stub:
        call, _ = await greet(stub, hello())
        nodes.suspect("n0")
        nodes.suspect("n0")
        nodes.suspect("a node that there is not")
        assert await _kind_of_next(call) == "echo"
        assert nodes.require("n0").suspected_seconds is not None
        await call.write(SessionRequest(heartbeat=worker_service_pb2.Heartbeat()))
        assert await _kind_of_next(call) == "heartbeat_received"
        assert nodes.require("n0").suspected_seconds is None
        call.cancel()


async def _kind_of_next(call: Call) -> str | None:
    response = await call.read()
    assert isinstance(response, SessionResponse)
    return response.WhichOneof("message")


async def test_a_report_is_acknowledged_by_its_number_when_it_is_stored() -> None:
    world = World()
    async with served(world) as stub:
        call, _ = await greet(stub, hello())
        report = report_pb2.StepReport(job_id="job-0", commit_time=Timestamp())
        await call.write(SessionRequest(step_report=report, report_number=3))
        answer = asyncio.create_task(call.read())
        while not answer.done():
            await world.coordinator.flush()
            await asyncio.sleep(0)
        response = answer.result()
        assert isinstance(response, SessionResponse)
        assert response.reports_stored.report_number == 3
        call.cancel()


async def test_a_message_that_makes_no_sense_ends_the_session_and_not_the_server() -> None:
    async with served(World()) as stub:
        call, _ = await greet(stub, hello())
        await call.write(SessionRequest(result=report_pb2.DirectiveResult(directive_id="d")))
        with pytest.raises(grpc.aio.AioRpcError, match=r"result\.outcome must be set"):
            await call.read()
        again, first = await greet(stub, hello())
        assert first.HasField("welcome")
        again.cancel()


# -- conversions -------------------------------------------------------------------------------


def told(
    command: words.Command, plans: to_agent.PlanMessages | None = None
) -> directive_pb2.Directive:
    """Convert a directive with a command."""
    directive = words.Directive(
        id="d", job_id="j", generation=3, engine_id="e", node_id="n", command=command
    )
    return to_agent.directive_message(directive, plans or to_agent.PlanMessages())


def test_every_command_has_its_message() -> None:
    record = words.CommitRecord(step=4, generation=2, gradient_norm=1.5, loss=0.5, num_tokens=9)
    stage = words.StageAssignment(engine_id="e", data_address="d:1", first_layer=2, num_layers=3)
    pipeline = words.PipelineAssignment(stages=(stage,), microbatches=(1, 3))
    source = words.LayerSource(layer=5, addresses=("d:1", "d:2"))
    commands: list[words.Command] = [
        words.Prepare(job_spec="{}", accelerator=1, job_secret="s", forward_flops=(0, 7)),
        words.Quiesce(mode=words.QuiesceMode.AT_COMMIT, lost_engine_ids=("x",)),
        words.RollForward(record=record),
        words.Copy(layers=(source,), version=4, initial_layers=(0, 7)),
        words.Activate(
            pipelines=(pipeline,),
            committed_steps=4,
            store_address="s:1",
            rebuild_timeout_seconds=5.0,
        ),
        words.StagePlan(pipelines=(), store_address="", rebuild_timeout_seconds=1),
        words.DigestLayers(layers=(0, 1)),
        words.Export(path="out", format="huggingface", layers=(source,)),
        words.Stop(reason="done"),
    ]
    for command in commands:
        message = told(command)
        assert message.WhichOneof("command") == command.kind
    assert list(told(commands[0]).prepare.forward_flops) == [0, 7]
    assert list(told(commands[3]).copy.initial_layers) == [0, 7]
    activate = told(commands[4]).activate
    assert activate.pipelines[0].stages[0].first_layer == 2
    assert list(activate.pipelines[0].microbatches) == [1, 3]
    assert activate.rebuild_timeout.ToTimedelta().total_seconds() == 5.0


def test_a_plan_of_many_engines_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand engines each has a place for each of the others in its StagePlan."""
    converted: list[words.StagePlan] = []
    whole = to_message

    def counted(value: Any, message: type[Message]) -> Message:
        if isinstance(value, words.StagePlan):
            converted.append(value)
        return whole(value, message)

    monkeypatch.setattr(to_agent, "to_message", counted)

    def plan(address: str) -> words.StagePlan:
        stage = words.StageAssignment(
            engine_id="e", data_address=address, first_layer=0, num_layers=3
        )
        return words.StagePlan(
            pipelines=(words.PipelineAssignment(stages=(stage,), microbatches=(1,)),),
            store_address="s:1",
            rebuild_timeout_seconds=5.0,
        )

    plans = to_agent.PlanMessages()

    def sent(command: words.StagePlan) -> directive_pb2.StagePlan:
        return told(command, plans).stage_plan

    first, second = plan("d:1"), plan("d:2")
    source = words.LayerSource(layer=5, addresses=("d:9",))
    assert not sent(first).layers
    assert sent(replace(first, layers=(source,))).layers[0].layer == 5
    assert not sent(first).layers
    assert sent(replace(first, store_address="s:2")).store_address == "s:2"
    assert sent(second).pipelines[0].stages[0].data_address == "d:2"
    assert len(converted) == 3


def test_text_that_cannot_be_stored_is_replaced() -> None:
    """PostgreSQL's text cannot hold NUL; a decision on it would be stored in vain for ever."""
    nul = report_pb2.Failure(message="a\0b", metadata={"detail": "\0"})
    failure = from_message(nul, Failure)
    assert (failure.message, failure.metadata) == ("a�b", {"detail": "�"})
    exited = from_message(report_pb2.EngineExited(log_tail=["x\0"]), EngineExited)
    assert exited.log_tail == ("x�",)


def test_every_outcome_is_understood() -> None:
    time = Timestamp()
    time.FromDatetime(NOON)
    held = [report_pb2.HeldLayer(layer=2, version=4)]
    record = report_pb2.CommitRecord(step=3, generation=1, loss=0.5)
    outcomes = [
        report_pb2.Prepared(
            engine=report_pb2.EngineSnapshot(
                engine_id="e", state=report_pb2.ENGINE_STATE_PARKED, data_address="d:1"
            ),
            data_digest="x",
            fingerprint={"torch": "2"},
            measured_layers=[report_pb2.MeasuredLayer(layer=1, forward_seconds=0.5)],
        ),
        report_pb2.FenceReport(
            committed_steps=4, last_commit=record, layers=held, park_time=time, fence_time=time
        ),
        report_pb2.RolledForward(committed_steps=4, stale_layers=[1]),
        report_pb2.Copied(bytes=7, layers=held, start_time=time, end_time=time),
        report_pb2.Activated(rebuild_start_time=time, resume_time=time),
        report_pb2.Digested(
            layers=[report_pb2.LayerDigest(layer=0, sha256=b"\x01\x02")], version=4
        ),
        report_pb2.Exported(path="out", bytes=3),
        report_pb2.Stopped(),
        report_pb2.Failure(reason=errors_pb2.ERROR_REASON_COPY_FAILED, message="no"),
    ]
    kinds = [
        "prepared",
        "fence_report",
        "rolled_forward",
        "copied",
        "activated",
        "digested",
        "exported",
        "stopped",
        "failure",
    ]
    for kind, outcome in zip(kinds, outcomes, strict=True):
        message = report_pb2.DirectiveResult(directive_id="d", job_id="j")
        getattr(message, kind).CopyFrom(outcome)
        result = from_agent.result_of(message)
        assert result.outcome.kind == kind
    report = from_agent.result_of(
        report_pb2.DirectiveResult(fence_report=outcomes[1])  # type: ignore[arg-type]
    ).outcome
    assert isinstance(report, FenceReport)
    assert report.last_commit is not None
    assert (report.last_commit.step, report.park_time) == (3, NOON)
    assert report.layers == (HeldLayer(layer=2, version=4),)
