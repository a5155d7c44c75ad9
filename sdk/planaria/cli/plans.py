"""Plans for people: a line for each pipeline, its stages from left to right."""

from planaria._words import counted
from planaria.cli.output import console, print_table
from planaria.models import Plan, Stage


def print_plan(plan: Plan) -> None:
    """Print the pipelines of a plan."""
    print_table(
        ("PIPELINE", "SECONDS", "MICROBATCHES", "STAGES (LAYERS ON NODE)"),
        (
            (
                str(index),
                f"{pipeline.iteration_seconds:.4f}",
                str(len(pipeline.microbatches)),
                " | ".join(map(_stage, pipeline.stages)),
            )
            for index, pipeline in enumerate(plan.pipelines)
        ),
        empty="no pipelines",
    )
    out = console()
    if plan.idle_node_ids:
        out.print(f"idle: {', '.join(plan.idle_node_ids)}")
    out.print(
        f"one step is predicted to take {plan.iteration_seconds:.4f} s; "
        f"{counted(plan.fault_tolerance, 'node')} may be lost at once"
    )


def _stage(stage: Stage) -> str:
    last = stage.first_layer + stage.num_layers - 1
    layers = f"{stage.first_layer}" if stage.num_layers == 1 else f"{stage.first_layer}-{last}"
    return f"{layers} on {stage.node_id}"
