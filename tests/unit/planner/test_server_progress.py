"""Calls that take long tell how far they have come."""

import random
from typing import TYPE_CHECKING

import pytest

from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.errors import PlanariaError
from planaria_common.grpcclient import bearer, rpc_errors
from planaria_planner.service import server
from planaria_planner.templates.template_search import remembered_templates
from unit.planner.messages import plan_nodes, profile_message, small_problem
from unit.planner.profiles import random_profile
from unit.planner.test_server import plans_ahead

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


async def test_progress_ends_with_the_answer(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes(*"abcde"))
    answer = await planner.Instantiate(request)
    told = [
        one
        async for one in planner.InstantiateWithProgress(
            pb.InstantiateWithProgressRequest(request=request), metadata=bearer("secret")
        )
    ]
    fractions = [one.done_fraction for one in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert told[-1].answer == answer
    assert not any(one.HasField("answer") for one in told[:-1])


async def test_templates_and_changes_tell_their_progress_too(
    planner: "PlannerServiceAsyncStub",
) -> None:
    """With the answers of the calls that tell none."""
    templates = pb.GenerateTemplatesRequest(problem=small_problem(), max_nodes=4)
    change = pb.ReconfigureRequest(
        problem=small_problem(), nodes=plan_nodes(*"abcd"), horizon_seconds=60
    )
    told_templates = [
        one
        async for one in planner.GenerateTemplatesWithProgress(
            pb.GenerateTemplatesWithProgressRequest(request=templates), metadata=bearer("secret")
        )
    ]
    assert told_templates[-1].answer == await planner.GenerateTemplates(templates)
    assert told_templates[-1].done_fraction == 1
    told_change = [
        one
        async for one in planner.ReconfigureWithProgress(
            pb.ReconfigureWithProgressRequest(request=change), metadata=bearer("secret")
        )
    ]
    assert told_change[-1].answer == await planner.Reconfigure(change)
    assert told_change[-1].done_fraction == 1


async def test_a_long_call_tells_how_far_it_has_come(
    planner: "PlannerServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told often enough, every call does, and only ever more."""
    monkeypatch.setattr(server, "PROGRESS_SECONDS", 0.001)
    problem = pb.Problem(
        profile=profile_message(random_profile(random.Random(1), num_layers=60)),
        num_microbatches=64,
    )
    nodes = plan_nodes(*(f"n{i:02}" for i in range(60)))
    templates = pb.GenerateTemplatesRequest(problem=problem, max_nodes=60)
    first = await planner.Instantiate(pb.InstantiateRequest(problem=problem, nodes=nodes))
    present = pb.ReconfigureRequest(
        problem=problem, nodes=nodes, current=first.plan, horizon_seconds=60
    )
    remembered_templates.cache_clear()
    fractions = [
        one.done_fraction
        async for one in planner.GenerateTemplatesWithProgress(
            pb.GenerateTemplatesWithProgressRequest(request=templates), metadata=bearer("secret")
        )
    ]
    remembered_templates.cache_clear()
    ahead = await plans_ahead(planner, present)
    for told in (fractions, [one.done_fraction for one in ahead]):
        assert len(told) > 2
        assert told == sorted(told)
        assert told[-1] == 1
    losses = [one.lost_node_id for one in ahead if one.lost_node_id]
    assert losses == sorted(node_id for node_id in losses if node_id)
    assert ahead[-1].lost_node_id == losses[-1]


async def test_a_refusal_ends_the_progress(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes("a"))
    call = planner.InstantiateWithProgress(
        pb.InstantiateWithProgressRequest(request=request), metadata=bearer("secret")
    )
    with pytest.raises(PlanariaError, match="not enough nodes"), rpc_errors("planner"):
        async for _ in call:
            pass
