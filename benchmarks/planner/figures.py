"""The figures that the planner is held to, each with its limit in CPU seconds."""

import random
from collections.abc import Iterator, Sequence

from benchmarks.planner.gpt import gpt_profile
from benchmarks.planner.measure import cpu_seconds
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.contingency_plans import contingency_plans
from planaria_planner.changes.reconfigure import reconfigure
from planaria_planner.cost.cost_model import layers_by_node
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.plans.explain import explain
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.next_best import next_best
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Plan, Problem
from planaria_planner.templates.templates import generate_templates

Row = dict[str, str]


def row(what: str, limit_seconds: float, seconds: float) -> Row:
    return {
        "what": what,
        "limit": f"{limit_seconds:g}",
        "CPU seconds": f"{seconds:.4f}",
        "met": "yes" if seconds < limit_seconds else "NO",
    }


def named(count: int, prefix: str = "node") -> list[Node]:
    return [Node(node_id=f"{prefix}-{index:05}") for index in range(count)]


def running(plan: Plan) -> list[RunningPipeline]:
    return [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in plan.pipelines]


def holdings(plan: Plan) -> dict[str, frozenset[int]]:
    return {
        node_id: frozenset(layers)
        for pipeline in plan.pipelines
        for node_id, layers in zip(pipeline.node_ids, layers_by_node(pipeline.stages), strict=True)
    }


def all_figures() -> Iterator[Row]:
    yield from templates()
    yield from plans()
    yield from changes()


def templates() -> Iterator[Row]:
    cases = [
        (26, 24, 1, False, 0.012),
        (26, 24, 1, True, 0.012),
        (98, 64, 1, False, 0.1),
        (98, 64, 1, True, 0.1),
        (98, 64, 8, False, 1.0),
        (98, 64, 8, True, 5.0),
        (200, 128, 8, False, 10.0),
    ]
    for num_layers, num_nodes, accelerators, distinct, limit in cases:
        profile = gpt_profile(num_layers, accelerators=accelerators, distinct=distinct)
        variant = "(b)" if distinct else "(a)"
        yield row(
            f"templates: {num_layers} layers, 1..{num_nodes} nodes of {accelerators}, {variant}",
            limit,
            front_seconds(profile, num_nodes),
        )


def front_seconds(profile: ModelProfile, num_nodes: int, repeats: int = 5) -> float:
    return cpu_seconds(lambda: generate_templates(profile, (num_nodes,)), repeats)


def plans() -> Iterator[Row]:
    for num_nodes, microbatches, limit in ((1000, 16_384, 0.05), (10_000, 65_536, 0.5)):
        problem = Problem(
            profile=gpt_profile(98, distinct=True),
            num_microbatches=microbatches,
            fault_tolerance=2,
            min_nodes_per_pipeline=4,
        )
        nodes = named(num_nodes)
        instantiate(problem, nodes)
        for known, how in ((True, "templates known"), (False, "templates included")):
            seconds = cpu_seconds(lambda: instantiate(problem, nodes), known=known)  # noqa: B023
            yield row(f"plan: {num_nodes:,} nodes, {how}", limit, seconds)
        answer = instantiate(problem, nodes)
        seconds = cpu_seconds(lambda: (explain(answer), next_best(answer)))  # noqa: B023
        yield row(f"why, and the next best plan: {num_nodes:,} nodes", limit, seconds)


def changes() -> Iterator[Row]:
    problem = job(1000, fault_tolerance=2)
    plan = instantiate(problem, named(1000)).plan
    gone = set(random.Random(1).sample([node.node_id for node in named(1000)], 10))
    nodes = [n for n in named(1000) if n.node_id not in gone] + named(5, "joiner")
    held = {name: layers for name, layers in holdings(plan).items() if name not in gone}

    def change() -> object:
        return reconfigure(problem, nodes, running(plan), held, horizon_seconds=3600)

    yield row("reconfiguration: 1,000 nodes lose 10 and gain 5", 0.2, cpu_seconds(change))
    yield from contingencies()


def job(num_nodes: int, fault_tolerance: int) -> Problem:
    return Problem(
        profile=gpt_profile(98, distinct=True),
        num_microbatches=16 * num_nodes,
        fault_tolerance=fault_tolerance,
        min_nodes_per_pipeline=4,
    )


def contingencies() -> Iterator[Row]:
    """All plans for the loss of one node of 64, then again after each of five losses."""
    problem, nodes = job(64, fault_tolerance=1), named(64)
    plan = instantiate(problem, nodes).plan
    first = cpu_seconds(lambda: after_each_loss(problem, nodes, plan))
    yield row("contingency plans: every loss of one node of 64", 1.0, first)
    taken = []
    for index in (3, 17, 29, 41, 55):
        lost = f"node-{index:05}"
        nodes = [node for node in nodes if node.node_id != lost]
        held = {name: layers for name, layers in holdings(plan).items() if name != lost}
        answer = reconfigure(problem, nodes, running(plan), held, horizon_seconds=3600)
        plan = answer.chosen.plan
        seconds = cpu_seconds(lambda: after_each_loss(problem, nodes, plan), 3, known=True)  # noqa: B023
        taken.append(seconds)
    yield row("contingency plans: all again after a loss", 0.2, sorted(taken)[len(taken) // 2])


def after_each_loss(problem: Problem, nodes: Sequence[Node], plan: Plan) -> object:
    return dict(
        contingency_plans(problem, nodes, running(plan), holdings(plan), horizon_seconds=3600)
    )
