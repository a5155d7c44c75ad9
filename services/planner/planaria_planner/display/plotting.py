"""A plan as a picture: its pipelines above, one simulated step of each of them below.

Only this module knows matplotlib, and only `planaria plan --plot` imports it.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from planaria_common.words import counted
from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.simulation import simulate
from planaria_planner.display.drawing import look, stage_loads
from planaria_planner.plans.instantiate import Instantiation
from planaria_planner.plans.problem import Pipeline

_SHOWN_PIPELINES = 8
_SHOWN_MICROBATCHES = 24
"""A longer step is drawn with fewer microbatches: its middle only repeats itself."""

_FORWARD, _BACKWARD, _BINDING, _BUSY = "#7fb3e6", "#1f5a96", "#c0392b", "#2e8b57"
_INCHES_WIDE, _INCHES_PER_ROW = 12.0, 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A pipeline that stands for `count` of its like."""

    pipeline: Pipeline
    count: int
    kinds: tuple[int, ...]
    relative_speed: float

    @property
    def name(self) -> str:
        nodes, share = len(self.pipeline.node_ids), len(self.pipeline.microbatches)
        return f"{self.count} x {counted(nodes, 'node')}\n{share} microbatches"


def plot_plan(answer: Instantiation, path: Path) -> None:
    """Write a plan as SVG or PNG, whichever the name of the file ends with.

    Pipelines that are alike are drawn once, the slowest first; equal plans give equal files.
    """
    drawn = _drawn(answer)
    shown = drawn[:_SHOWN_PIPELINES]
    model = CostModel(answer.problem.profile)
    rows = [1.5 * len(shown) + 1, sum(len(one.pipeline.stages) for one in shown) + 2]
    with rc_context({"svg.hashsalt": "planaria", "svg.fonttype": "none"}):
        size = (_INCHES_WIDE, _INCHES_PER_ROW * (sum(rows) + 2))
        figure = Figure(figsize=size, layout="constrained")
        upper, lower = figure.subplots(2, 1, height_ratios=rows)
        figure.suptitle(_title(answer, len(drawn) - len(shown)))
        _draw_stages(upper, model, shown)
        _draw_steps(lower, model, shown)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, format=path.suffix[1:], dpi=120, metadata=metadata)


def _drawn(answer: Instantiation) -> list[_Drawn]:
    groups: dict[tuple[object, ...], list[Pipeline]] = {}
    for pipeline in answer.plan.pipelines:
        groups.setdefault(look(pipeline), []).append(pipeline)
    nodes = {node.node_id: node for node in answer.nodes}
    drawn = [
        _Drawn(
            pipeline=group[0],
            count=len(group),
            kinds=tuple(nodes[node_id].kind for node_id in group[0].node_ids),
            relative_speed=min(nodes[node_id].relative_speed for node_id in group[0].node_ids),
        )
        for group in groups.values()
    ]
    return sorted(drawn, key=lambda one: -one.pipeline.iteration_seconds)


def _title(answer: Instantiation, num_hidden: int) -> str:
    plan = answer.plan
    more = f"; {num_hidden} more sorts of pipeline" if num_hidden else ""
    return (
        f"one step takes {plan.iteration_seconds:.6g} s;"
        f" {counted(len(plan.pipelines), 'pipeline')},"
        f" {counted(len(plan.idle_node_ids), 'node')} idle,"
        f" {plan.fault_tolerance} may be lost at once{more}"
    )


def _draw_stages(axes: Axes, model: CostModel, shown: list[_Drawn]) -> None:
    """Pipelines as rows, stages as boxes over their layers; a heavy line where a node ends."""
    for row, one in enumerate(shown):
        stages = one.pipeline.stages
        loads = stage_loads(model, stages, one.kinds)
        for stage, following, load in zip(stages, [*stages[1:], None], loads, strict=True):
            color = _BINDING if load == 1.0 else _BUSY
            place = (stage.first_layer, row - 0.4)
            axes.add_patch(Rectangle(place, stage.num_layers, 0.8, fc="white", ec="gray", lw=0.5))
            filled = Rectangle(place, stage.num_layers, 0.8 * load, fc=color, alpha=0.45)
            axes.add_patch(filled)
            last = stage.end_layer - 1
            layers = f"{stage.first_layer}-{last}" if stage.num_layers > 1 else f"{last}"
            width = f" x{stage.accelerators}" if stage.accelerators > 1 else ""
            middle = stage.first_layer + stage.num_layers / 2
            text = f"{layers}{width}\n{100 * load:.0f} %"
            axes.text(middle, row, text, ha="center", va="center", fontsize=7, clip_on=True)
            if following is None or following.node != stage.node:
                axes.plot([stage.end_layer] * 2, [row - 0.45, row + 0.45], color="black", lw=2)
    axes.set_xlim(0, model.profile.num_layers)
    axes.set_xlabel("layer; x accelerators; load relative to the slowest stage")
    axes.set_yticks(range(len(shown)), [f"{i}: {one.name}" for i, one in enumerate(shown)])
    axes.set_ylim(len(shown) - 0.5, -0.5)


def _draw_steps(axes: Axes, model: CostModel, shown: list[_Drawn]) -> None:
    """The 1F1B schedule of every stage as the simulation has it; gaps are bubbles."""
    row, ticks, names, shortened = 0, [], [], False
    for index, one in enumerate(shown):
        share = min(len(one.pipeline.microbatches), _SHOWN_MICROBATCHES)
        shortened = shortened or share < len(one.pipeline.microbatches)
        simulation = simulate(
            model,
            one.pipeline.stages,
            share,
            node_kinds=one.kinds,
            relative_speed=one.relative_speed,
        )
        for stage in range(len(one.pipeline.stages)):
            for backward, color in ((False, _FORWARD), (True, _BACKWARD)):
                bars = [
                    (action.start_seconds, action.duration_seconds)
                    for action in simulation.actions
                    if (action.stage, action.backward) == (stage, backward)
                ]
                axes.broken_barh(bars, (row - 0.4, 0.8), fc=color, ec="white", lw=0.3)
            ticks.append(row)
            names.append(f"{index}.{stage}")
            row += 1
        axes.axhline(row - 0.5, color="black", lw=0.5)
    axes.set_yticks(ticks, names, fontsize=7)
    axes.set_ylim(row - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_ylabel("pipeline.stage")
    long = f"; steps shortened to {_SHOWN_MICROBATCHES} microbatches" if shortened else ""
    axes.set_xlabel(f"simulated seconds: forward light, backward dark{long}")
