"""What is wrong with a request about a running plan, in one line that names the field."""

from collections.abc import Sequence

from planaria_common.errors import invalid
from planaria_common.words import counted
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.inventory import Holdings
from planaria_planner.plans.problem import Problem


def check_change(
    problem: Problem,
    running: Sequence[RunningPipeline],
    holdings: Holdings,
    horizon_seconds: float,
) -> None:
    """Raise INVALID_ARGUMENT when anything that is said of the running plan cannot be."""
    _check_running(problem, running)
    check_holdings(problem, holdings)
    if not 0 <= horizon_seconds < float("inf"):
        raise invalid("horizon_seconds", f"{horizon_seconds} is not zero or more")


def _check_running(problem: Problem, running: Sequence[RunningPipeline]) -> None:
    """Raise INVALID_ARGUMENT when a running pipeline is not a partition of the model."""
    seen: set[str] = set()
    for index, pipeline in enumerate(running):
        field = f"current.pipelines[{index}]"
        end, node = 0, 0
        for stage in pipeline.stages:
            if stage.first_layer != end or stage.num_layers < 1:
                raise invalid(field, f"the stage of layer {end} is missing or comes twice")
            if stage.node not in (node, node + 1) or stage.node >= len(pipeline.node_ids):
                raise invalid(field, f"stages are not in the order of their nodes at {end}")
            if stage.accelerators not in problem.profile.layers[0].forward_seconds:
                raise invalid(
                    field, f"the profile has no times for {stage.accelerators} accelerators"
                )
            end, node = stage.end_layer, stage.node
        if end != problem.profile.num_layers:
            raise invalid(field, f"its stages cover {end} of {problem.profile.num_layers} layers")
        if node + 1 != len(pipeline.node_ids):
            raise invalid(field, f"{counted(len(pipeline.node_ids), 'node')}, stages on {node + 1}")
        for node_id in pipeline.node_ids:
            if node_id in seen:
                raise invalid(field, f"the node {node_id} comes twice")
            seen.add(node_id)


def check_holdings(problem: Problem, holdings: Holdings) -> None:
    """Raise INVALID_ARGUMENT when a holding names a layer that the model does not have."""
    for node_id, layers in holdings.items():
        for layer in layers:
            if not 0 <= layer < problem.profile.num_layers:
                raise invalid(
                    f"holdings[{node_id}]",
                    f"there is no layer {layer}; the model has {problem.profile.num_layers}",
                )
