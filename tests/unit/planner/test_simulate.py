"""T(M) = a + b*M against the 1F1B schedule itself, event by event."""

import itertools
import random
import statistics

import pytest

from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.simulation import Action, schedule_1f1b, simulate
from planaria_planner.templates.templates import generate_templates
from unit.planner.profiles import equal_layers, random_profile


def test_the_formula_is_exact_for_equal_stages() -> None:
    """Equal stages that send for free leave only the bubble that the formula knows."""
    profile = equal_layers(8)
    for template in generate_templates(profile, (8,)).templates:
        if 8 % template.num_nodes:
            continue
        for microbatches in (1, 2, 7, 40):
            simulated = simulate(
                CostModel(profile), template.stages, microbatches
            ).iteration_seconds
            predicted = template.cost.iteration_seconds(microbatches)
            assert predicted == pytest.approx(simulated, rel=1e-3)


@pytest.mark.parametrize(
    ("microbatches", "median", "worst"), [(1, 0.01, 0.6), (8, 0.02, 0.25), (128, 0.002, 0.03)]
)
def test_the_formula_is_close_for_the_templates_of_random_models(
    microbatches: int, median: float, worst: float
) -> None:
    """The more microbatches the closer; it parts where a later stage's sum is the longest."""
    errors = []
    for seed in range(30):
        rng = random.Random(seed)
        profile = random_profile(rng, num_layers=rng.randint(4, 16))
        for template in generate_templates(profile, (6,)).templates:
            simulated = simulate(
                CostModel(profile), template.stages, microbatches
            ).iteration_seconds
            errors.append(template.cost.iteration_seconds(microbatches) / simulated - 1)
    assert statistics.median(map(abs, errors)) < median
    assert max(map(abs, errors)) < worst


def test_every_stage_runs_every_microbatch_once_in_each_direction() -> None:
    """1F1B: one action at a time, inputs before use, few in flight."""
    rng = random.Random(5)
    profile = random_profile(rng, num_layers=9)
    template = generate_templates(profile, (4,)).on_kinds([0] * 4)[0]
    actions = simulate(CostModel(profile), template.stages, 6).actions

    for stage in range(4):
        mine = sorted(a for a in actions if a.stage == stage)
        assert len(mine) == 12
        in_flight = 0
        for before, after in itertools.pairwise(mine):
            assert after.start_seconds >= before.end_seconds
        for action in mine:
            in_flight += -1 if action.backward else 1
            assert 0 <= in_flight <= 4 - stage
    ends = {(a.stage, a.microbatch, a.backward): a.end_seconds for a in actions}
    for action in actions:
        assert action.start_seconds >= max((ends[i] for i in inputs(action, 4)), default=0)


def inputs(action: Action, num_stages: int) -> list[tuple[int, int, bool]]:
    stage, microbatch = action.stage, action.microbatch
    if not action.backward:
        return [(stage - 1, microbatch, False)] if stage else []
    after = [(stage + 1, microbatch, True)] if stage + 1 < num_stages else []
    return [(stage, microbatch, False), *after]


def test_schedule_warms_up_then_alternates_then_cools_down() -> None:
    assert list(schedule_1f1b(3, 0, 4)) == [
        (0, False),
        (1, False),
        (2, False),
        (0, True),
        (3, False),
        (1, True),
        (2, True),
        (3, True),
    ]
    assert list(schedule_1f1b(3, 2, 2)) == [(0, False), (0, True), (1, False), (1, True)]
