"""A solver of integer programmes agrees that no plan is faster."""

import math
import random

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from planaria_planner.plans.nodes import Node
from planaria_planner.plans.pipeline_search import select
from planaria_planner.templates.templates import Template, generate_templates
from unit.planner.profiles import random_profile


def most_microbatches(
    templates: tuple[Template, ...], seconds: float, num_nodes: int, min_pipelines: int, cap: int
) -> float:
    """Return how many microbatches any plan runs within `seconds`, by integer programming."""
    runs = []
    for template in templates:
        most = min(template.cost.max_microbatches or cap, cap)
        fits = [m for m in range(1, most + 1) if template.cost.iteration_seconds(m) <= seconds]
        runs.append(max(fits, default=0))
    usable = np.array([run > 0 for run in runs])
    answer = milp(
        -np.array(runs, dtype=float),
        integrality=np.ones(len(runs)),
        bounds=Bounds(0, np.where(usable, np.inf, 0.0)),
        constraints=[
            LinearConstraint(np.array([t.num_nodes for t in templates], dtype=float), 0, num_nodes),
            LinearConstraint(np.ones(len(runs)), min_pipelines, np.inf),
        ],
    )
    return float(-answer.fun) if answer.success else 0.0


@pytest.mark.parametrize("seed", range(12))
def test_an_integer_programme_finds_no_faster_plan(seed: int) -> None:
    """Some 40 nodes and 200 microbatches: within T they fit, within anything less they do not."""
    rng = random.Random(seed)
    profile = random_profile(rng, num_layers=12)
    num_nodes, min_pipelines, microbatches = rng.randint(20, 60), rng.randint(1, 4), 200
    templates = generate_templates(profile, (num_nodes,), min_nodes=3).templates
    plan = select(
        templates,
        [Node(node_id=f"n{i}") for i in range(num_nodes)],
        min_pipelines=min_pipelines,
        num_microbatches=microbatches,
    )
    assert plan is not None
    slower = plan.iteration_seconds
    faster = math.nextafter(slower, 0.0)
    case = (num_nodes, min_pipelines, microbatches)
    assert most_microbatches(templates, slower, *case) >= microbatches - 1e-6
    assert most_microbatches(templates, faster, *case) <= microbatches - 1 + 1e-6
