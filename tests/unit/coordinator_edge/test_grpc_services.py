"""JobService and ClusterService over gRPC mirror REST."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from planaria.api.coordinator.v1 import cluster_service_pb2 as cluster_pb
from planaria.api.coordinator.v1 import job_service_pb2 as job_pb
from planaria.api.coordinator.v1 import resources_pb2
from planaria.api.coordinator.v1.cluster_service_pb2_grpc import (
    ClusterServiceStub,
    add_ClusterServiceServicer_to_server,
)
from planaria.api.coordinator.v1.job_service_pb2_grpc import (
    JobServiceStub,
    add_JobServiceServicer_to_server,
)
from planaria_common.errors import ErrorReason, NotFoundError
from planaria_common.grpcclient import bearer, open_channel, rpc_errors
from planaria_common.grpcserver import GrpcServer
from planaria_coordinator.entrypoints.grpc.cluster_service import ClusterServicer
from planaria_coordinator.entrypoints.grpc.job_service import JobServicer
from unit.coordinator_edge.conftest import TOKEN
from unit.coordinator_edge.fakes import FakeCoordinator, event, job


@pytest.fixture
def stopping() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def channel(
    coordinator: FakeCoordinator, stopping: asyncio.Event
) -> AsyncIterator[grpc.aio.Channel]:
    made = coordinator.as_coordinator()
    jobs = JobServicer(made.jobs, stopping=stopping)
    cluster = ClusterServicer(made.cluster, made.events, stopping=stopping)
    server = GrpcServer(
        part="coordinator",
        services={
            "planaria.api.coordinator.v1.JobService": partial(
                add_JobServiceServicer_to_server, jobs
            ),
            "planaria.api.coordinator.v1.ClusterService": partial(
                add_ClusterServiceServicer_to_server, cluster
            ),
        },
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )
    await server.start()
    channel = open_channel(server.address, token=TOKEN)
    yield channel
    await channel.close()
    await server.stop(grace_seconds=0)


async def test_a_job_over_grpc(channel: grpc.aio.Channel, coordinator: FakeCoordinator) -> None:
    """State, times and the job file arrive as the proto has them."""
    coordinator.jobs.stored["job-1"] = job(waiting_reason="no node is free")

    response = await JobServiceStub(channel).GetJob(job_pb.GetJobRequest(job_id="job-1"))

    assert response.job.state == resources_pb2.JOB_STATE_RUNNING
    assert response.job.waiting_reason == "no node is free"
    assert response.job.create_time.ToDatetime().hour == 12
    assert not response.job.HasField("goodput")
    assert not response.job.HasField("end_time")
    assert MessageToDict(response.job.spec) == {"training": {"steps": 10}}


async def test_submitting_over_grpc(
    channel: grpc.aio.Channel, coordinator: FakeCoordinator
) -> None:
    """Whole numbers of the job file stay whole, though a Struct knows only floats."""
    spec = Struct()
    spec.update({"training": {"steps": 10, "learning_rate": 0.5}, "list": [1, None, True]})

    response = await JobServiceStub(channel).CreateJob(
        job_pb.CreateJobRequest(spec=spec, request_id="r1", dry_run=True, resume_job_id="job-1")
    )

    [(given, request_id, dry_run, resume_job_id)] = coordinator.jobs.created
    assert given == {"training": {"steps": 10, "learning_rate": 0.5}, "list": [1, None, True]}
    assert isinstance(given["training"]["steps"], int)
    assert (request_id, dry_run, resume_job_id) == ("r1", True, "job-1")
    assert response.plan.pipelines[0].stages[1].node_id == "b"


async def test_changes_over_grpc(channel: grpc.aio.Channel, coordinator: FakeCoordinator) -> None:
    """Every verb reaches the application with its request id."""
    jobs, cluster = JobServiceStub(channel), ClusterServiceStub(channel)

    await jobs.PauseJob(job_pb.PauseJobRequest(job_id="job-1", request_id="1"))
    await jobs.ResumeJob(job_pb.ResumeJobRequest(job_id="job-1", request_id="2"))
    await jobs.CancelJob(job_pb.CancelJobRequest(job_id="job-1", request_id="3"))
    await cluster.CordonNode(cluster_pb.CordonNodeRequest(node_id="a", request_id="4"))
    await cluster.UncordonNode(cluster_pb.UncordonNodeRequest(node_id="a", request_id="5"))
    drained = await cluster.DrainNode(cluster_pb.DrainNodeRequest(node_id="a", request_id="6"))
    evicted = await cluster.EvictNode(cluster_pb.EvictNodeRequest(node_id="a", request_id="8"))
    await cluster.RemoveNode(cluster_pb.RemoveNodeRequest(node_id="b", request_id="7"))

    assert [change[0] for change in coordinator.jobs.changes] == ["pause", "resume", "cancel"]
    assert coordinator.cluster.changes[-1] == ("remove", "b", "7")
    assert drained.node.state == resources_pb2.NODE_STATE_DRAINING
    assert evicted.node.state == resources_pb2.NODE_STATE_LOST


async def test_lists_over_grpc(channel: grpc.aio.Channel) -> None:
    """The lists have what REST's have."""
    jobs, cluster = JobServiceStub(channel), ClusterServiceStub(channel)

    assert len((await jobs.ListJobs(job_pb.ListJobsRequest())).jobs) == 1
    metrics = await jobs.ListJobMetrics(job_pb.ListJobMetricsRequest(job_id="job-1", page_size=2))
    assert [each.step for each in metrics.metrics] == [0, 1]
    assert metrics.next_page_token == "2"
    recoveries = await jobs.ListJobRecoveries(job_pb.ListJobRecoveriesRequest(job_id="job-1"))
    assert recoveries.recoveries[0].phases[0].name == "detect"
    lines = await jobs.ListJobLogs(job_pb.ListJobLogsRequest(job_id="job-1"))
    assert lines.lines[0].text == "hello"
    plan = await jobs.GetJobPlan(job_pb.GetJobPlanRequest(job_id="job-1"))
    assert (plan.generation, plan.reason) == (2, "fastest")
    assert list(plan.plan.idle_node_ids) == ["c"]
    nodes = await cluster.ListNodes(cluster_pb.ListNodesRequest())
    assert [node.id for node in nodes.nodes] == ["a", "b"]
    assert nodes.nodes[0].engines[0].id == "job-1/a/0/1"
    one = await cluster.GetNode(cluster_pb.GetNodeRequest(node_id="b"))
    assert one.node.state == resources_pb2.NODE_STATE_LOST
    events = await cluster.ListEvents(cluster_pb.ListEventsRequest(job_id="job-1"))
    assert [event.sequence for event in events.events] == [1, 3]


async def test_errors_over_grpc_are_the_same(channel: grpc.aio.Channel) -> None:
    """Reason, message and metadata survive the wire."""
    with pytest.raises(NotFoundError) as raised, rpc_errors("coordinator"):
        await JobServiceStub(channel).GetJob(job_pb.GetJobRequest(job_id="job-9"))

    assert raised.value.reason is ErrorReason.JOB_NOT_FOUND
    assert raised.value.metadata == {"job_id": "job-9"}


async def test_a_watcher_goes_on_where_it_was_cut_off(
    channel: grpc.aio.Channel, coordinator: FakeCoordinator
) -> None:
    """Everything after the sequence number, then each event as it happens, none twice."""
    stub = ClusterServiceStub(channel)
    first = stub.WatchEvents(cluster_pb.WatchEventsRequest(), metadata=bearer(TOKEN))
    seen = [(await anext(aiter(first))).event.sequence for _ in range(2)]
    first.cancel()

    second = stub.WatchEvents(
        cluster_pb.WatchEventsRequest(after_sequence=seen[-1]), metadata=bearer(TOKEN)
    )
    seen.append((await anext(aiter(second))).event.sequence)
    coordinator.events.add(event(4))
    coordinator.events.add(event(5))
    seen += [(await anext(aiter(second))).event.sequence for _ in range(2)]
    second.cancel()

    assert seen == [1, 2, 3, 4, 5]


async def test_watchers_end_when_the_server_stops(
    channel: grpc.aio.Channel, coordinator: FakeCoordinator, stopping: asyncio.Event
) -> None:
    """A stopping server ends the streams in order, and lets go of the application's watch."""
    call = ClusterServiceStub(channel).WatchEvents(
        cluster_pb.WatchEventsRequest(after_sequence=2), metadata=bearer(TOKEN)
    )
    assert (await anext(aiter(call))).event.sequence == 3

    stopping.set()

    assert [response async for response in call] == []
    assert coordinator.events.num_watchers == 0


async def test_watching_a_job_until_it_ends(channel: grpc.aio.Channel) -> None:
    """The job as it is, then each change; the stream ends with the job."""
    call = JobServiceStub(channel).WatchJob(
        job_pb.WatchJobRequest(job_id="job-1", after_sequence=6), metadata=bearer(TOKEN)
    )

    views = [(view.job.state, view.sequence, len(view.events)) async for view in call]

    running, succeeded = resources_pb2.JOB_STATE_RUNNING, resources_pb2.JOB_STATE_SUCCEEDED
    assert views == [(running, 7, 1), (succeeded, 9, 0)]
