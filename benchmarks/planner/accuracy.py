"""How far T(M) = a + b*M is from the simulated 1F1B schedule; run it without arguments.

Over the templates of GPT-like models whose layers differ by up to 20 %; positive errors mean that
the formula expects a longer step. It is exact for equal stages. With unequal ones it parts both
ways: it charges every bubble at the slowest stage's pace (too long), and it knows only the first
stage's gradient sum (too short where a later stage's, as the head's, takes longer).
"""

import dataclasses
import random

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.planner.gpt import gpt_profile
from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.cost.simulation import simulate
from planaria_planner.templates.templates import generate_templates

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def uneven_profile(seed: int) -> ModelProfile:
    """Return a GPT-like model of 10 to 40 layers, each up to 20 % slower than its kind."""
    rng = random.Random(seed)
    profile = gpt_profile(rng.randint(10, 40))
    layers = []
    for layer in profile.layers:
        factor = 1 + 0.2 * rng.random()
        layers.append(
            dataclasses.replace(
                layer,
                forward_seconds={g: factor * t for g, t in layer.forward_seconds.items()},
                backward_seconds={g: factor * t for g, t in layer.backward_seconds.items()},
            )
        )
    return dataclasses.replace(profile, layers=tuple(layers))


def errors(microbatches: int) -> list[float]:
    """Return by how much the formula expects more than the simulation, over all templates."""
    found = []
    for seed in range(30):
        profile = uneven_profile(seed)
        model = CostModel(profile)
        for template in generate_templates(profile, (10,)).templates:
            if template.num_nodes == 1:
                continue
            simulated = simulate(model, template.stages, microbatches).iteration_seconds
            found.append(template.cost.iteration_seconds(microbatches) / simulated - 1)
    return found


def distribution() -> list[dict[str, str]]:
    """Return a row for each number of microbatches: how many templates, and quantiles."""
    rows = []
    for microbatches in (1, 2, 4, 8, 32, 128):
        found = errors(microbatches)
        quantiles = zip(QUANTILES, np.quantile(found, QUANTILES), strict=True)
        rows.append(
            {"microbatches": str(microbatches), "templates": str(len(found))}
            | {f"{q:.0%}": f"{value:+.2%}" for q, value in quantiles}
        )
    return rows


def main() -> None:
    rows = distribution()
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


if __name__ == "__main__":
    main()
