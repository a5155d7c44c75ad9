"""Long calls report their progress."""

import random
from typing import TYPE_CHECKING

import pytest

from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.errors import PlanariaError
from planaria_common.grpcclient import bearer, rpc_errors
from planaria_planner.progress import Progress
from planaria_planner.service import server
from planaria_planner.templates import templates
from planaria_planner.templates.templates import generate_templates
from unit.planner.messages import plan_nodes, profile_message, small_problem
from unit.planner.profiles import random_profile
from unit.planner.test_server import contingencies

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


async def test_progress_ends_with_the_answer(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes(*"abcde"))
    answer = await planner.Instantiate(request)
    told = [
        one
        async for one in planner.ComputeWithProgress(
            pb.ComputeWithProgressRequest(instantiate=request), metadata=bearer("secret")
        )
    ]
    fractions = [one.done_fraction for one in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert told[-1].instantiate == answer
    assert not any(one.WhichOneof("answer") for one in told[:-1])


async def test_templates_and_changes_report_their_progress_too(
    planner: "PlannerServiceAsyncStub",
) -> None:
    """The answers are those of the calls without progress."""
    request = pb.GenerateTemplatesRequest(problem=small_problem(), max_nodes=4)
    change = pb.ReconfigureRequest(
        problem=small_problem(), nodes=plan_nodes(*"abcd"), horizon_seconds=60
    )
    templates_progress = [
        one
        async for one in planner.ComputeWithProgress(
            pb.ComputeWithProgressRequest(generate_templates=request), metadata=bearer("secret")
        )
    ]
    assert templates_progress[-1].generate_templates == await planner.GenerateTemplates(request)
    assert templates_progress[-1].done_fraction == 1
    change_progress = [
        one
        async for one in planner.ComputeWithProgress(
            pb.ComputeWithProgressRequest(reconfigure=change), metadata=bearer("secret")
        )
    ]
    assert change_progress[-1].reconfigure == await planner.Reconfigure(change)
    assert change_progress[-1].done_fraction == 1


async def test_a_long_call_reports_growing_progress(
    planner: "PlannerServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROGRESS_SECONDS", 0.001)
    problem = pb.Problem(
        profile=profile_message(random_profile(random.Random(1), num_layers=60)),
        num_microbatches=64,
    )
    nodes = plan_nodes(*(f"n{i:02}" for i in range(60)))
    request = pb.GenerateTemplatesRequest(problem=problem, max_nodes=60)
    first = await planner.Instantiate(pb.InstantiateRequest(problem=problem, nodes=nodes))
    present = pb.ReconfigureRequest(
        problem=problem, nodes=nodes, current=first.plan, horizon_seconds=60
    )
    generate_templates.cache_clear()
    fractions = [
        one.done_fraction
        async for one in planner.ComputeWithProgress(
            pb.ComputeWithProgressRequest(generate_templates=request), metadata=bearer("secret")
        )
    ]
    generate_templates.cache_clear()
    ahead = await contingencies(planner, present)
    for told in (fractions, [one.done_fraction for one in ahead]):
        assert len(told) > 2
        assert told == sorted(told)
        assert told[-1] == 1
    losses = [one.lost_node_id for one in ahead if one.lost_node_id]
    assert losses == sorted(node_id for node_id in losses if node_id)
    assert ahead[-1].lost_node_id == losses[-1]


@pytest.mark.parametrize("most_work", [10**9, 0], ids=["mixed", "each_kind_alone"])
def test_the_template_search_of_several_kinds_ends_at_1(
    most_work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_MOST_WORK", most_work)
    profile = random_profile(random.Random(2), num_layers=5, accelerators=(1, 2))
    generate_templates.cache_clear()
    progress = Progress()
    with progress.followed():
        found = generate_templates(profile, (2, 2))
    generate_templates.cache_clear()
    assert found.mixes == (most_work > 0)
    assert progress.fraction == 1


async def test_a_refusal_ends_the_progress(planner: "PlannerServiceAsyncStub") -> None:
    request = pb.InstantiateRequest(problem=small_problem(), nodes=plan_nodes("a"))
    call = planner.ComputeWithProgress(
        pb.ComputeWithProgressRequest(instantiate=request), metadata=bearer("secret")
    )
    with pytest.raises(PlanariaError, match="not enough nodes"), rpc_errors("planner"):
        async for _ in call:
            pass


async def test_an_empty_request_is_refused(planner: "PlannerServiceAsyncStub") -> None:
    call = planner.ComputeWithProgress(pb.ComputeWithProgressRequest(), metadata=bearer("secret"))
    with pytest.raises(PlanariaError, match="request: empty"), rpc_errors("planner"):
        async for _ in call:
            pass
