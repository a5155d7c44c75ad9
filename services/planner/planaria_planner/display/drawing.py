"""A plan in the terminal: pipelines as rows, stages as boxes with layers, width and load."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria_common.words import counted
from planaria_planner.cost.cost_model import CostModel, Stage
from planaria_planner.plans.instantiate import Instantiation
from planaria_planner.plans.problem import Pipeline

_BARS = " ▁▂▃▄▅▆▇█"
_GAP = "\u00a0"  # unlike a space it does not let a line end within a stage
_SHOWN = 40
"""Pipelines drawn at most: a screenful."""


def draw_plan(answer: Instantiation, console: Console | None = None) -> None:
    """Print a plan; of equal pipelines side by side one stands for all."""
    out = console or Console(highlight=False, markup=False, soft_wrap=True)
    plan = answer.plan
    model = CostModel(answer.problem.profile)
    kinds = {node.node_id: node.kind for node in answer.nodes}
    table = Table("PIPELINES", "NODES", "MICROBATCHES", "SECONDS", "STAGES", box=None)
    groups = _equal_neighbours(plan.pipelines)
    for first, pipelines in groups[:_SHOWN]:
        pipeline = pipelines[0]
        last = first + len(pipelines) - 1
        table.add_row(
            str(first) if last == first else f"{first} to {last}",
            str(len(pipeline.node_ids)),
            str(len(pipeline.microbatches)),
            f"{pipeline.iteration_seconds:.6g}",
            _stages(model, pipeline, [kinds[node_id] for node_id in pipeline.node_ids]),
        )
    out.print(table)
    if len(groups) > _SHOWN:
        out.print(f"... and {len(plan.pipelines) - groups[_SHOWN][0]} more pipelines")
    out.print(
        f"one step takes {plan.iteration_seconds:.6g} s;"
        f" {counted(len(plan.idle_node_ids), 'node')} idle;"
        f" {counted(plan.fault_tolerance, 'node')} may be lost at once"
    )


def _equal_neighbours(pipelines: Sequence[Pipeline]) -> list[tuple[int, list[Pipeline]]]:
    groups: list[tuple[int, list[Pipeline]]] = []
    for index, pipeline in enumerate(pipelines):
        if groups and look(groups[-1][1][0]) == look(pipeline):
            groups[-1][1].append(pipeline)
        else:
            groups.append((index, [pipeline]))
    return groups


def look(pipeline: Pipeline) -> tuple[object, ...]:
    """Return what makes pipelines look alike when drawn."""
    return pipeline.stages, pipeline.cost, len(pipeline.microbatches)


def stage_loads(
    model: CostModel, stages: Sequence[Stage], kinds: Sequence[int]
) -> tuple[float, ...]:
    """Return how busy each stage is, relative to the slowest one."""
    following: Sequence[Stage | None] = [*stages[1:], None]
    seconds = [
        model.stage_seconds(kinds[stage.node], stage, after)
        for stage, after in zip(stages, following, strict=True)
    ]
    return tuple(one / max(seconds) for one in seconds)


def _stages(model: CostModel, pipeline: Pipeline, kinds: Sequence[int]) -> Text:
    """Draw the stages; a node's stages stand between the same bars, loads are relative to b."""
    text = Text()
    node = -1
    loads = stage_loads(model, pipeline.stages, kinds)
    for stage, load in zip(pipeline.stages, loads, strict=True):
        text.append(" │" if stage.node != node else " ", style="bold")
        node = stage.node
        layers = str(stage.first_layer)
        if stage.num_layers > 1:
            layers += f"-{stage.end_layer - 1}"
        if stage.accelerators > 1:
            layers += f"x{stage.accelerators}"
        text.append(f"{_GAP}{layers}{_GAP}")
        style = "bold red" if load == 1.0 else "green"
        text.append(_BARS[round(load * (len(_BARS) - 1))], style=style)
        text.append(f"{100 * load:.0f}%{_GAP}")
    text.append("│", style="bold")
    return text[1:]
