"""Load the compiled loops, or compile them where this machine has not yet: some ten seconds.

An installation does it ahead, so that no first start has to: `python -m planaria_planner.warm_up`.
"""

from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.reconfigure import reconfigure
from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind
from planaria_planner.plans.explain import explain
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.next_best import next_best
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem


def warm_up() -> None:
    """Plan a tiny job once."""
    layer = Layer(
        name="",
        forward_seconds={1: 1.0},
        backward_seconds={1: 2.0},
        parameter_bytes=1,
        state_bytes=1,
        activation_bytes=1,
        output_bytes=1,
    )
    profile = ModelProfile(
        microbatch_size=1,
        hardware=Hardware(
            node_kinds=(NodeKind(name="", accelerators_per_node=1, accelerator_memory_bytes=8),),
            intra_node_bytes_per_second=1.0,
            inter_node_bytes_per_second=1.0,
            link_latency_seconds=0.0,
        ),
        layers=(layer, layer),
    )
    problem = Problem(profile=profile, num_microbatches=2)
    nodes = [Node(node_id="a"), Node(node_id="b", relative_speed=0.5)]
    answer = instantiate(problem, nodes)
    explain(answer)
    next_best(answer)
    pipelines = answer.plan.pipelines
    running = [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in pipelines]
    reconfigure(problem, nodes, running, {}, horizon_seconds=1.0)


if __name__ == "__main__":
    warm_up()
