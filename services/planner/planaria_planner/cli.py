"""`planaria plan`: the best plan of a model profile, without a cluster."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria_common.errors import InvalidArgumentError, PlanariaError, invalid
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.cost.profile_file import read_profile
from planaria_planner.display.drawing import draw_plan
from planaria_planner.display.progress_bar import progress_bar
from planaria_planner.plans.explain import explain, in_words
from planaria_planner.plans.instantiate import Instantiation, instantiate
from planaria_planner.plans.next_best import NextBest, next_best
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem
from planaria_planner.progress import Progress

USAGE_ERROR = 2
MAX_NODES = 20_000


def plan(
    profile: Annotated[
        Path, typer.Option("--profile", metavar="P.json", help="The model's measured costs.")
    ],
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes", metavar="N|KIND=N,...", help="How many nodes there are, of which kinds."
        ),
    ],
    microbatches: Annotated[
        int, typer.Option("--microbatches", metavar="M", help="Microbatches of one step.")
    ],
    fault_tolerance: Annotated[
        int, typer.Option("--fault-tolerance", metavar="F", help="Nodes that may be lost at once.")
    ] = 0,
    min_nodes_per_pipeline: Annotated[
        int, typer.Option(metavar="N", help="The fewest nodes of a pipeline.")
    ] = 0,
    max_stage_accelerators: Annotated[
        int | None, typer.Option(metavar="G", help="The most accelerators of a stage.")
    ] = None,
    explanation: Annotated[
        bool,
        typer.Option("--explain", help="Explain the plan and search for the next best one."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|png", help="Draw the plan and a simulated step into this file."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")
    ] = False,
) -> None:
    """Compute the plan of a model profile, without a cluster."""
    try:
        save = plotter(plot) if plot else None
        model = read_profile(profile)
        pool = parse_nodes(nodes, model)
        problem = Problem(
            profile=model,
            num_microbatches=microbatches,
            fault_tolerance=fault_tolerance,
            min_nodes_per_pipeline=min_nodes_per_pipeline,
            max_stage_accelerators=max_stage_accelerators,
        )
        progress = Progress()
        with progress.followed(), progress_bar("planning", lambda: progress.fraction):
            answer = instantiate(problem, pool)
            other = next_best(answer) if explanation else None
        if save:
            save(answer)
    except PlanariaError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(USAGE_ERROR if isinstance(error, InvalidArgumentError) else 1) from None
    if as_json:
        sys.stdout.write(json.dumps(plan_json(answer, other), indent=2) + "\n")
        return
    draw_plan(answer)
    if explanation:
        sys.stdout.write(in_words(answer, explain(answer), other) + "\n")


def plotter(path: Path) -> Callable[[Instantiation], None]:
    """Return what draws a plan into a file; what is wrong with it is said before any planning.

    Raises:
        PlanariaError: INVALID_ARGUMENT for a name of another format, or without matplotlib.
    """
    if path.suffix not in (".svg", ".png"):
        raise invalid("--plot", f"{path} is neither .svg nor .png")
    try:
        from planaria_planner.display.plotting import plot_plan
    except ImportError:
        needed = "matplotlib is not installed: pip install 'planaria[plot]'"
        raise invalid("--plot", needed) from None

    def save(answer: Instantiation) -> None:
        try:
            plot_plan(answer, path)
        except OSError as error:
            raise invalid("--plot", f"{path}: {error.strerror}") from None

    return save


def parse_nodes(text: str, profile: ModelProfile) -> tuple[Node, ...]:
    """Read `8` (nodes of the profile's first kind) or `kind=8,kind=4`.

    Raises:
        PlanariaError: INVALID_ARGUMENT.
    """
    pool: list[Node] = []
    seen: set[int] = set()
    for part in text.split(","):
        name, equals, number = part.strip().rpartition("=")
        kind = profile.kind_index(name)
        if not number.isdecimal() or (equals and not name) or kind in seen:
            raise invalid("--nodes", f"{text!r} is not N or KIND=N,KIND=N")
        seen.add(kind)
        if int(number) + len(pool) > MAX_NODES:
            raise invalid("--nodes", f"{text!r} is more than {MAX_NODES}")
        pool.extend(
            Node(node_id=f"{name or 'node'}-{index}", kind=kind) for index in range(int(number))
        )
    if not pool:
        raise invalid("--nodes", f"{text!r} has no nodes; expected at least 1")
    return tuple(pool)


def plan_json(answer: Instantiation, other: NextBest | None) -> dict[str, Any]:
    """Return the plan as `planaria plan --json` prints it.

    `lower_bound_seconds` is there only if the plan is not proven to be the fastest, `next_best`
    only if it was searched for.
    """
    pipelines = answer.plan.pipelines
    proven = answer.lower_bound_seconds == answer.plan.iteration_seconds
    return {
        "iteration_seconds": answer.plan.iteration_seconds,
        "idle_nodes": len(answer.plan.idle_node_ids),
        "pipelines": [
            {
                "num_nodes": len(pipeline.node_ids),
                "num_microbatches": len(pipeline.microbatches),
                "iteration_seconds": pipeline.iteration_seconds,
                "stages": [asdict(stage) for stage in pipeline.stages],
            }
            for pipeline in pipelines
        ],
        **({"next_best": _next_best(other)} if other else {}),
        **({} if proven else {"lower_bound_seconds": answer.lower_bound_seconds}),
    }


def _next_best(other: NextBest) -> dict[str, Any] | None:
    if other.iteration_seconds is None:
        return None
    return {
        "iteration_seconds": other.iteration_seconds,
        "pipelines": [{"num_nodes": size} for size in other.sizes],
        "proven": not other.unproven,
    }
