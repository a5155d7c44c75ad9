"""What a plan means for an engine: everybody finds the same groups in the same order."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.engine.groups import GroupKind
from planaria_worker.engine.plan.plan import FollowerAssignment, PipelineAssignment, PlanError
from planaria_worker.engine.plan.plan_view import PlanView, view_plan
from unit.engine.plans import pipeline, plans, tied, untied


def views(
    pipelines: list[PipelineAssignment],
    num_layers: int,
    num_microbatches: int,
    *,
    is_tied: bool = False,
) -> list[PlanView]:
    return [
        view_plan(
            pipelines,
            place.engine_id,
            num_layers=num_layers,
            num_microbatches=num_microbatches,
            hosted_layers=tied(num_layers) if is_tied else untied,
        )
        for p in pipelines
        for place in p.stages
    ]


def test_two_pipelines_cut_differently() -> None:
    """Layers 0-1 | 2-5 and 0-3 | 4-5: three runs, the highest first."""
    all_views = views([pipeline(0, [2, 6], [0, 1]), pipeline(1, [4, 6], [2])], 6, 3)
    runs = {view.engine_id: [run.layers for run in view.owned_layers] for view in all_views}
    assert runs == {
        "0.0": [(0, 1)],
        "0.1": [(4, 5), (2, 3)],
        "1.0": [(2, 3), (0, 1)],
        "1.1": [(4, 5)],
    }
    assert all_views[1].peers.keys() == {"0.0", "1.0", "1.1"}


def test_a_tied_parameter_is_summed_by_both_ends_and_last() -> None:
    all_views = views([pipeline(0, [2, 4], [0]), pipeline(1, [4], [1])], 4, 2, is_tied=True)
    runs = {view.engine_id: [(r.layers, r.owners) for r in view.owned_layers] for view in all_views}
    everyone = ("0.0", "0.1", "1.0")
    assert runs["0.0"] == [((1,), ("0.0", "1.0")), ((0,), everyone)]
    assert runs["0.1"] == [((2, 3), ("0.1", "1.0")), ((0,), everyone)]
    assert all_views[1].hosted_layers == (0, 2, 3)
    tied_run = all_views[1].owned_layers[-1]
    assert tied_run.users == (0, 3)
    counts = [tied_run.count(view.stage.layers) for view in all_views]
    assert counts[0] + counts[1] == counts[2] == tied_run.complete_count
    assert tied_run.complete_count not in (2 * counts[0], 2 * counts[1])


def test_one_engine_needs_no_group() -> None:
    (view,) = views([pipeline(0, [4], [0, 1])], 4, 2)
    assert view.groups == ()
    assert view.is_first
    assert view.is_deciding


@given(plans(), st.booleans())
def test_every_layer_is_summed_by_all_its_holders(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool
) -> None:
    pipelines, num_layers, num_microbatches = plan
    all_views = views(pipelines, num_layers, num_microbatches, is_tied=is_tied)
    holders: dict[int, set[str]] = {layer: set() for layer in range(num_layers)}
    for view in all_views:
        for layer in view.hosted_layers:
            holders[layer].add(view.engine_id)
        assert sorted(chain.from_iterable(r.layers for r in view.owned_layers)) == list(
            view.hosted_layers
        )
    for view in all_views:
        for run in view.owned_layers:
            assert all(holders[layer] == set(run.owners) for layer in run.layers)
            group = view.owner_group(run)
            assert (group is None) == (len(run.owners) == 1)
            assert group is None or group.members == run.owners


@given(plans(), st.booleans())
def test_groups_and_sums_have_one_order_for_all(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool
) -> None:
    """Blocking on each in turn cannot deadlock: always somebody's next is everybody's next."""
    pipelines, num_layers, num_microbatches = plan
    all_views = views(pipelines, num_layers, num_microbatches, is_tied=is_tied)
    _run_to_the_end({v.engine_id: [(g.name, g.members) for g in v.groups] for v in all_views})
    _run_to_the_end(
        {v.engine_id: [(str(r.layers), r.owners) for r in v.owned_layers] for v in all_views}
    )


def _run_to_the_end(todo: dict[str, list[tuple[str, tuple[str, ...]]]]) -> None:
    while any(todo.values()):
        waiting = Counter(steps[0] for steps in todo.values() if steps)
        ready = [step for step, count in waiting.items() if count == len(step[1])]
        assert ready, f"all wait for each other: {waiting}"
        for name, members in ready:
            for member in members:
                assert todo[member].pop(0)[0] == name


@given(plans())
def test_last_ranks_meet(plan: tuple[list[PipelineAssignment], int, int]) -> None:
    pipelines, num_layers, num_microbatches = plan
    for view in views(pipelines, num_layers, num_microbatches):
        expected = view.is_deciding and len(pipelines) > 1
        assert (view.last_ranks_group is not None) == expected
        assert (view.forward_group is not None) == (len(view.pipeline.stages) > 1)


def test_directions_have_groups_of_their_own_where_the_transport_needs_it() -> None:
    one, two = (
        view_plan(
            [pipeline(0, [2, 4], [0])],
            "0.0",
            num_layers=4,
            num_microbatches=1,
            hosted_layers=untied,
            separate_directions=separate,
        )
        for separate in (False, True)
    )
    assert [group.name for group in one.groups] == ["forward-0", "exchange-0"]
    assert [group.name for group in two.groups] == ["forward-0", "backward-0", "exchange-0"]
    assert [group.kind for group in two.groups] == [
        GroupKind.ACTIVATIONS,
        GroupKind.GRADIENTS,
        GroupKind.COMMIT_MESSAGES,
    ]


GOOD = [pipeline(0, [2, 4], [0, 1]), pipeline(1, [4], [2])]


@pytest.mark.parametrize(
    ("pipelines", "complaint"),
    [
        ([], "at least one"),
        ([pipeline(0, [2, 3], [0, 1, 2])], r"pipelines\[0\].stages: layers"),
        ([GOOD[0], pipeline(1, [4], [1])], "microbatches: "),
        ([GOOD[0], pipeline(1, [4], [])], r"pipelines\[1\].microbatches"),
        ([GOOD[0], dataclasses.replace(GOOD[0], microbatches=(2,))], "more than one assignment"),
        ([pipeline(1, [4], [0, 1, 2])], "no assignment for 0.0"),
    ],
)
def test_a_wrong_plan_is_refused(pipelines: list[PipelineAssignment], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        view_plan(pipelines, "0.0", num_layers=4, num_microbatches=3, hosted_layers=untied)


def follower(index: int, layers: Sequence[int]) -> FollowerAssignment:
    return FollowerAssignment(
        engine_id=f"follower-{index}", data_address=f"follower:{index}", layers=tuple(layers)
    )


@given(plans(), st.booleans(), st.data())
def test_followers_are_owners_for_every_engine_alike(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool, data: st.DataObject
) -> None:
    pipelines, num_layers, num_microbatches = plan
    layers = st.lists(st.integers(0, num_layers - 1), min_size=1, unique=True).map(sorted)
    followers = [follower(i, x) for i, x in enumerate(data.draw(st.lists(layers, max_size=3)))]
    engines = [place.engine_id for p in pipelines for place in p.stages]
    all_views = {
        engine_id: view_plan(
            pipelines,
            engine_id,
            num_layers=num_layers,
            num_microbatches=num_microbatches,
            hosted_layers=tied(num_layers) if is_tied else untied,
            followers=followers,
        )
        for engine_id in [*engines, *(place.engine_id for place in followers)]
    }
    runs = {run.layers: run.owners for view in all_views.values() for run in view.owned_layers}
    for engine_id, view in all_views.items():
        assert {x for run in view.owned_layers for x in run.layers} == set(view.hosted_layers)
        assert all(runs[run.layers] == run.owners for run in view.owned_layers)
        assert all(engine_id in run.owners for run in view.owned_layers)
        assert view.peers.keys() == {m for g in view.groups for m in g.members} - {engine_id}
    groups = {g.name: g.members for view in all_views.values() for g in view.groups}
    assert all(groups[g.name] == g.members for view in all_views.values() for g in view.groups)
    for row, place in enumerate(followers, start=len(pipelines)):
        view = all_views[place.engine_id]
        assert (view.row, view.is_follower, view.is_first, view.is_deciding) == (
            row,
            True,
            True,
            True,
        )
        assert view.pipeline_groups == ()
        assert not view.keeps_step
        assert len(view.computed_layers) == 0
        assert view.last_ranks_group is not None
        assert view.last_ranks_group.rank(place.engine_id) == row


@pytest.mark.parametrize(
    ("layers", "step_microbatches", "said"),
    [
        ([4], [], r"followers\[0\].layers"),
        ([], [], r"followers\[0\].layers"),
        ([1], [0, 1, 1], "step_microbatches"),
    ],
)
def test_a_plan_that_cannot_be_finished_says_why(
    layers: list[int], step_microbatches: list[int], said: str
) -> None:
    plan = dataclasses.replace(
        pipeline(0, [4], [0, 1, 2]), changed_microbatches=tuple(step_microbatches)
    )
    with pytest.raises(PlanError, match=said):
        view_plan(
            [plan],
            "0.0",
            num_layers=4,
            num_microbatches=3,
            hosted_layers=untied,
            followers=[follower(0, layers)],
        )
