"""Custom schedulers decide within their limits; beyond them the built-in policy does."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import grpc
import pytest

from planaria.api.common.v1 import plan_pb2
from planaria.api.coordinator.v1 import scheduler_service_pb2 as pb
from planaria.api.coordinator.v1.scheduler_service_pb2_grpc import (
    SchedulerServiceStub,
    add_SchedulerServiceServicer_to_server,
)
from planaria_common.errors import InvalidArgumentError
from planaria_common.grpcclient import bearer, open_channel, rpc_errors
from planaria_common.grpcserver import GrpcServer
from planaria_common.messages import to_message
from planaria_coordinator.application.ports import NodesQuestion, PlanQuestion, PolicyView
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import (
    HardwareProfile,
    LayerProfile,
    ModelProfile,
    NodeKind,
    PlanNode,
    PlanQuery,
    Problem,
)
from planaria_coordinator.entrypoints.grpc.custom_policy import CustomPolicy
from planaria_coordinator.entrypoints.grpc.scheduler_service import SchedulerServicer
from planaria_coordinator.entrypoints.grpc.scheduler_sessions import SchedulerSessions
from unit.coordinator_edge.conftest import TOKEN
from unit.coordinator_edge.fakes import PLAN, job, node

NODES = (node("a"), node("b"), node("c"))
PROFILE = ModelProfile(
    microbatch_size=2,
    hardware=HardwareProfile(
        node_kinds=(NodeKind(name="cpu", accelerators_per_node=1, accelerator_memory_bytes=1),),
        intra_node_bytes_per_second=1e9,
        inter_node_bytes_per_second=1e9,
        link_latency_seconds=1e-4,
    ),
    layers=tuple(
        LayerProfile(
            name=f"layer {index}",
            forward_seconds=1.0,
            backward_seconds=2.0,
            parameter_bytes=4,
            state_bytes=16,
            activation_bytes=8,
            output_bytes=2,
        )
        for index in range(5)
    ),
)
VIEW = PolicyView(job=job(), nodes=NODES, jobs=(job(),), relative_speeds={"a": 0.5})
WHICH_NODES = NodesQuestion(scheduler="mine", candidates=NODES, min_nodes=2, max_nodes=2, view=VIEW)
WHICH_PLAN = PlanQuestion(
    scheduler="mine",
    query=PlanQuery(
        problem=Problem(
            profile=PROFILE, num_microbatches=3, fault_tolerance=1, min_nodes_per_pipeline=1
        ),
        nodes=tuple(PlanNode(node_id=node.id) for node in NODES),
        current=PLAN,
    ),
    fault_tolerance=0,
    proposal=PLAN,
    view=VIEW,
)


@pytest.fixture
def sessions() -> SchedulerSessions:
    return SchedulerSessions()


def policy_over(sessions: SchedulerSessions, *, deadline_seconds: float = 30.0) -> CustomPolicy:
    return CustomPolicy(
        sessions,
        decision_deadline_seconds=deadline_seconds,
        new_id=lambda kind: f"{kind}-{next(numbers)}",
    )


numbers = itertools.count(1)  # a late answer must not fit the question of another policy


@pytest.fixture
async def address(sessions: SchedulerSessions) -> AsyncIterator[str]:
    servicer = SchedulerServicer(sessions, decision_deadline_seconds=5.0)
    server = GrpcServer(
        part="coordinator",
        services={
            "planaria.api.coordinator.v1.SchedulerService": partial(
                add_SchedulerServiceServicer_to_server, servicer
            )
        },
        host="127.0.0.1",
        port=0,
        token=TOKEN,
    )
    await server.start()
    yield server.address
    sessions.close_all()
    await server.stop(grace_seconds=1)


class Scheduler:
    """A scheduler of the tests: connects, and answers with what a function returns."""

    def __init__(self, address: str, *, name: str = "mine") -> None:
        self._channel = open_channel(address)
        self.call = SchedulerServiceStub(self._channel).Schedule(metadata=bearer(TOKEN))
        self._name = name

    async def connect(self) -> pb.Registered:
        await self.call.write(pb.ScheduleRequest(registration=pb.Registration(name=self._name)))
        return (await anext(aiter(self.call))).registered

    async def question(self) -> pb.DecisionRequest:
        return (await anext(aiter(self.call))).decision_request

    async def answer(self, decision: pb.Decision) -> None:
        await self.call.write(pb.ScheduleRequest(decision=decision))

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


@pytest.fixture
async def scheduler(address: str) -> AsyncIterator[Scheduler]:
    made = Scheduler(address)
    registered = await made.connect()
    assert registered.decision_deadline.seconds == 5
    yield made
    await made.close()


async def test_a_scheduler_chooses_the_nodes(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """It sees the job, the nodes and the limits; what it answers is done."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))
    question = await scheduler.question()
    assert question.job.id == "job-1"
    assert [node.id for node in question.nodes] == ["a", "b", "c"]
    assert question.nodes[0].accelerator_memory_bytes == 2**30
    assert dict(question.nodes[0].labels) == {"rack": "r1"}
    assert dict(question.relative_speeds) == {"a": 0.5}
    assert list(question.nodes_question.candidate_node_ids) == ["a", "b", "c"]
    assert (question.nodes_question.min_nodes, question.nodes_question.max_nodes) == (2, 2)
    await scheduler.answer(nodes_decision(question, "c", "a"))

    decision = await deciding

    assert decision.node_ids == ("c", "a")
    assert decision.overruled == ""


async def test_a_scheduler_may_let_a_job_wait(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """No nodes is an answer, not a mistake."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))
    await scheduler.answer(nodes_decision(await scheduler.question()))

    assert (await deciding).node_ids == ()
    assert (await deciding).overruled == ""


def nodes_decision(question: pb.DecisionRequest, *node_ids: str) -> pb.Decision:
    return pb.Decision(
        decision_id=question.decision_id, nodes_answer=pb.NodesAnswer(node_ids=node_ids)
    )


def plan_decision(question: pb.DecisionRequest, plan: Plan | None = None) -> pb.Decision:
    answer = (
        pb.PlanAnswer() if plan is None else pb.PlanAnswer(plan=to_message(plan, plan_pb2.Plan))
    )
    return pb.Decision(decision_id=question.decision_id, plan_answer=answer)


@pytest.mark.parametrize(
    ("node_ids", "why"),
    [
        (("a", "x"), "chose x: node_ids must be among a, b, c"),
        (("a", "a"), "chose a node twice"),
        (("a",), "chose 1 node: node_ids must have 2 to 2"),
        (("a", "b", "c"), "chose 3 nodes: node_ids must have 2 to 2"),
    ],
)
async def test_a_wrong_choice_is_overruled(
    sessions: SchedulerSessions, scheduler: Scheduler, node_ids: tuple[str, ...], why: str
) -> None:
    """The built-in policy decides, and says what was wrong."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))
    await scheduler.answer(nodes_decision(await scheduler.question(), *node_ids))

    decision = await deciding

    assert decision.node_ids == ("a", "b")
    assert why in decision.overruled


async def test_an_answer_to_another_question_is_overruled(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """A plan is no answer to the question which nodes."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))
    await scheduler.answer(plan_decision(await scheduler.question()))

    assert "answered another question" in (await deciding).overruled


async def test_a_late_scheduler_is_overruled(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """After the deadline the built-in policy decides; the late answer changes nothing."""
    policy = policy_over(sessions, deadline_seconds=0.05)

    decision = await policy.choose_nodes(WHICH_NODES)

    assert decision.node_ids == ("a", "b")
    assert "did not answer within 0.05 s" in decision.overruled


async def test_a_scheduler_that_hangs_delays_one_decision(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """Those that follow are made without it, until it answers: late, and so to no effect."""
    assert (await policy_over(sessions, deadline_seconds=0.01).choose_nodes(WHICH_NODES)).overruled
    patient = policy_over(sessions)

    for _ in range(3):
        decision = await patient.choose_plan(WHICH_PLAN)
        assert decision.overruled == "scheduler mine has yet to answer an earlier question"

    await scheduler.answer(nodes_decision(await scheduler.question(), "b", "c"))
    while True:  # until the late answer has arrived
        deciding = asyncio.ensure_future(patient.choose_nodes(WHICH_NODES))
        done, _ = await asyncio.wait({deciding}, timeout=0.05)
        if not done:
            break
        assert "an earlier question" in deciding.result().overruled
    await scheduler.answer(nodes_decision(await scheduler.question(), "a", "c"))
    assert (await deciding).node_ids == ("a", "c")


async def test_a_scheduler_that_dies_while_it_decides_is_overruled(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """Nobody waits for the deadline when the session has ended."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))
    await scheduler.question()

    await scheduler.close()

    assert (await deciding).node_ids == ("a", "b")
    assert "disconnected before it answered" in (await deciding).overruled


async def test_a_scheduler_that_is_gone_is_overruled(sessions: SchedulerSessions) -> None:
    """The job goes on without it."""
    decision = await policy_over(sessions).choose_nodes(WHICH_NODES)

    assert decision.node_ids == ("a", "b")
    assert decision.overruled == "scheduler mine is not connected"


async def test_the_built_in_policy_is_never_overruled(sessions: SchedulerSessions) -> None:
    """Jobs that name no scheduler ask none."""
    policy = policy_over(sessions)

    nodes = await policy.choose_nodes(replace(WHICH_NODES, scheduler="default"))
    plan = await policy.choose_plan(replace(WHICH_PLAN, scheduler="default"))

    assert (nodes.node_ids, nodes.overruled) == (("a", "b"), "")
    assert (plan.plan, plan.overruled) == (PLAN, "")


async def test_a_scheduler_accepts_the_proposal(
    sessions: SchedulerSessions, scheduler: Scheduler
) -> None:
    """An answer without a plan is the planner's; the question carries profile and plans."""
    deciding = asyncio.ensure_future(policy_over(sessions).choose_plan(WHICH_PLAN))
    question = await scheduler.question()
    assert len(question.plan_question.profile.layers) == 5
    assert question.plan_question.profile.layers[0].forward_seconds[1] == 1.0
    assert question.plan_question.current == to_message(PLAN, plan_pb2.Plan)
    await scheduler.answer(plan_decision(question))

    assert (await deciding).plan == PLAN
    assert (await deciding).overruled == ""


async def test_a_newer_session_of_the_same_name_takes_over(
    sessions: SchedulerSessions, scheduler: Scheduler, address: str
) -> None:
    """A restarted scheduler need not wait for its predecessor's connection to be given up."""
    newer = Scheduler(address)
    await newer.connect()
    deciding = asyncio.ensure_future(policy_over(sessions).choose_nodes(WHICH_NODES))

    await newer.answer(nodes_decision(await newer.question(), "b", "c"))

    assert (await deciding).node_ids == ("b", "c")
    assert await scheduler.call.read() == grpc.aio.EOF
    await newer.close()


@pytest.mark.parametrize("name", ["", "default", "two words", "x" * 64])
async def test_names_that_job_files_cannot_give_are_refused(address: str, name: str) -> None:
    """The error names the field."""
    scheduler = Scheduler(address, name=name)
    with (
        pytest.raises(InvalidArgumentError, match=r"registration\.name"),
        rpc_errors("coordinator"),
    ):
        await scheduler.connect()
    await scheduler.close()


def test_a_scheduler_is_known_once_it_was_connected(sessions: SchedulerSessions) -> None:
    """A job may name a scheduler that has gone for a moment, but not one nobody ever saw."""
    policy = policy_over(sessions)
    assert policy.knows("default")
    assert not policy.knows("mine")
    sessions.close("mine", sessions.open("mine"))
    assert policy.knows("mine")
