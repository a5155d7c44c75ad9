"""How fast the planner plans: `python benchmarks/planner/run.py [--large]`.

Warm CPU seconds of one core, medians; importing and compiling are reported apart. Published
planners, for comparison on the same machine: Oobleck 2023 (C++) 12.9 CPU-s for 26 layers and 24
nodes of one accelerator, Oobleck 2024 (Rust) unfinished after 101 s for 98 layers and 64 nodes;
enumerating plans for 64 nodes 236,130 times 5 ms.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from gpt import gpt_profile
from rich.console import Console
from rich.table import Table

from planaria_planner.ahead import plan_ahead
from planaria_planner.candidates import RunningPipeline
from planaria_planner.instantiate import instantiate, templates_for
from planaria_planner.nodes import Node
from planaria_planner.problem import Plan, Problem
from planaria_planner.reconfigure import reconfigure
from planaria_planner.templates import TemplateSet, generate_templates
from planaria_planner.warm_up import warm_up


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median CPU seconds of `work`."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def named(count: int, prefix: str = "node") -> list[Node]:
    return [Node(node_id=f"{prefix}-{index:05}") for index in range(count)]


def templates_table(cases: Sequence[tuple[int, int, int, bool]]) -> Table:
    table = Table("layers", "nodes", "accelerators", "layers are", "templates", "CPU seconds")
    for num_layers, num_nodes, accelerators, distinct in cases:
        profile = gpt_profile(num_layers, accelerators=accelerators, distinct=distinct)
        found: list[TemplateSet] = []
        seconds = cpu_seconds(lambda: found.append(generate_templates(profile, [num_nodes])), 3)  # noqa: B023
        table.add_row(
            *(str(value) for value in (num_layers, num_nodes, accelerators)),
            "distinct" if distinct else "equal",
            str(len(found[0].templates)),
            f"{seconds:.4f}",
        )
    return table


def plans_table(cases: Sequence[tuple[int, int, int]]) -> Table:
    """From a set of templates that is known already, as between two changes of the nodes."""
    table = Table("nodes", "microbatches", "f", "pipelines", "step s", "plan", "templates and plan")
    for num_nodes, microbatches, fault_tolerance in cases:
        problem = Problem(
            profile=gpt_profile(98, distinct=True),
            num_microbatches=microbatches,
            fault_tolerance=fault_tolerance,
            min_nodes_per_pipeline=4,
        )
        nodes = named(num_nodes)
        answer = instantiate(problem, nodes)
        templates = cpu_seconds(lambda: templates_for(problem, nodes), 3)  # noqa: B023
        both = cpu_seconds(lambda: instantiate(problem, nodes), 3)  # noqa: B023
        table.add_row(
            *(str(value) for value in (num_nodes, microbatches, fault_tolerance)),
            str(len(answer.plan.pipelines)),
            f"{answer.plan.iteration_seconds:.4f}",
            f"{both - templates:.4f}",
            f"{both:.4f}",
        )
    return table


def reconfigure_table(cases: Sequence[tuple[int, int, int]]) -> Table:
    table = Table("nodes", "lost", "joined", "chosen", "copies", "candidates", "CPU seconds")
    for num_nodes, lost, joined in cases:
        problem = Problem(
            profile=gpt_profile(98, distinct=True),
            num_microbatches=16 * num_nodes,
            fault_tolerance=2,
            min_nodes_per_pipeline=4,
        )
        plan = instantiate(problem, named(num_nodes)).plan
        gone = set(random.Random(1).sample([n.node_id for n in named(num_nodes)], lost))
        left = [n for n in named(num_nodes) if n.node_id not in gone] + named(joined, "joiner")
        held = {name: layers for name, layers in holdings(plan).items() if name not in gone}
        running = [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in plan.pipelines]

        def change() -> object:
            return reconfigure(problem, left, running, held, horizon_seconds=3600)  # noqa: B023

        answer = reconfigure(problem, left, running, held, horizon_seconds=3600)
        table.add_row(
            *(str(value) for value in (num_nodes, lost, joined)),
            answer.chosen.kind.value,
            str(len(answer.chosen.copies)),
            str(len(answer.candidates)),
            f"{cpu_seconds(change, 3):.4f}",
        )
    return table


def ahead_table(cases: Sequence[tuple[int, int]]) -> Table:
    """All plans for the loss of a single node."""
    table = Table("layers", "nodes", "plans made ahead", "CPU seconds")
    for num_layers, num_nodes in cases:
        problem = Problem(
            profile=gpt_profile(num_layers, distinct=True),
            num_microbatches=16 * num_nodes,
            fault_tolerance=1,
            min_nodes_per_pipeline=4,
        )
        plan = instantiate(problem, named(num_nodes)).plan
        running = [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in plan.pipelines]

        def ahead() -> dict[str, object]:
            return dict(
                plan_ahead(problem, named(num_nodes), running, holdings(plan), horizon_seconds=3600)  # noqa: B023
            )

        num_plans = len(ahead())
        table.add_row(*map(str, (num_layers, num_nodes, num_plans)), f"{cpu_seconds(ahead, 3):.4f}")
    return table


def holdings(plan: Plan) -> dict[str, frozenset[int]]:
    return {
        node_id: frozenset(layers)
        for pipeline in plan.pipelines
        for node_id, layers in zip(pipeline.node_ids, pipeline.layers_by_node(), strict=True)
    }


def cold_seconds() -> float:
    """Return the wall seconds of a new process that imports the planner and plans once."""
    program = "from planaria_planner.warm_up import warm_up; warm_up()"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="the largest sizes too")
    large = parser.parse_args().large
    out = Console()
    warm_up()
    out.print(f"a cold process, compiled code cached: {cold_seconds():.2f} s until its first plan")
    templates = [(26, 24, 1, False), (26, 24, 1, True), (98, 64, 1, False), (98, 64, 1, True)]
    templates += [(50, 32, 2, True), (50, 32, 4, True), (98, 64, 8, False)]
    plans = [(24, 512, 1), (64, 1024, 1), (1000, 16384, 2)]
    changes = [(24, 1, 0), (64, 1, 1), (1000, 10, 5)]
    if large:
        templates += [(98, 64, 8, True), (200, 128, 8, False)]
        plans += [(10_000, 65_536, 2)]
    out.print(templates_table(templates))
    out.print(plans_table(plans))
    out.print(reconfigure_table(changes))
    out.print(ahead_table([(26, 24), (98, 64)]))


if __name__ == "__main__":
    main()
