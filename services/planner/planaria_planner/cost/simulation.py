"""One step of a plan under the 1F1B schedule, event by event: the check on T(M) = a + b*M.

A stage runs its actions one after another: as many forward passes as there are stages behind it,
then backward and forward in turn, then the backward passes that are left. A forward pass waits for
the activations of the stage ahead, a backward pass for the gradients of the stage behind. As in the
cost model, sends between two stages keep the first of the two busy. After its last backward pass
each stage sums its gradients with the other replicas; the step ends when all have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planaria_planner.cost.cost_model import CostModel, Stage


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Action:
    """One pass of one microbatch over one stage, its sends included.

    Attributes:
        start_seconds: from the start of the step.
        stage: index of the stage.
        microbatch: index among the microbatches of the pipeline.
        backward: whether it is the backward pass.
        duration_seconds: how long the stage is busy with it.
    """

    start_seconds: float
    stage: int
    microbatch: int
    backward: bool
    duration_seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.duration_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulated step of one pipeline; actions are in order of their start."""

    iteration_seconds: float
    actions: tuple[Action, ...]


def schedule_1f1b(num_stages: int, stage: int, num_microbatches: int) -> Iterator[tuple[int, bool]]:
    """Yield the (microbatch, backward) of a stage in the order in which 1F1B runs them."""
    warm_up = min(num_stages - 1 - stage, num_microbatches)
    for microbatch in range(warm_up):
        yield microbatch, False
    for microbatch in range(num_microbatches - warm_up):
        yield warm_up + microbatch, False
        yield microbatch, True
    for microbatch in range(num_microbatches - warm_up, num_microbatches):
        yield microbatch, True


def simulate(
    model: CostModel,
    stages: Sequence[Stage],
    num_microbatches: int,
    *,
    node_kinds: Sequence[int] | None = None,
    relative_speed: float = 1.0,
) -> Simulation:
    """Run one step of a pipeline.

    Args:
        model: the costs of the model.
        stages: the stages in layer order.
        num_microbatches: how many microbatches the pipeline runs.
        node_kinds: for each node of the pipeline the index of its kind; the first kind by default.
        relative_speed: that of the slowest node; it slows everything, as in the cost model.
    """
    lengths = [
        _durations(model, stages, index, node_kinds, relative_speed) for index in range(len(stages))
    ]
    queues = [
        list(schedule_1f1b(len(stages), i, num_microbatches))[::-1] for i in range(len(stages))
    ]
    ends: dict[tuple[int, int, bool], float] = {}
    free_at = [0.0] * len(stages)
    actions = []
    stage = 0
    while any(queues):
        if not queues[stage]:
            stage = (stage + 1) % len(stages)
            continue
        microbatch, backward = queues[stage][-1]
        ready = _ready(ends, stage, microbatch, backward, len(stages))
        if ready is None:  # Its neighbour has not come so far: let the others go on.
            stage = (stage + 1) % len(stages)
            continue
        queues[stage].pop()
        action = Action(
            start_seconds=max(free_at[stage], ready),
            stage=stage,
            microbatch=microbatch,
            backward=backward,
            duration_seconds=lengths[stage][backward],
        )
        ends[stage, microbatch, backward] = free_at[stage] = action.end_seconds
        actions.append(action)
    syncs = (model.sync_seconds(stage) / relative_speed for stage in stages)
    return Simulation(
        iteration_seconds=max(end + sync for end, sync in zip(free_at, syncs, strict=True)),
        actions=tuple(sorted(actions)),
    )


def _durations(
    model: CostModel,
    stages: Sequence[Stage],
    index: int,
    node_kinds: Sequence[int] | None,
    relative_speed: float,
) -> tuple[float, float]:
    """Return the seconds of a stage's forward and backward pass, with half of its sends each."""
    stage = stages[index]
    profile = model.profile
    kind = profile.hardware.node_kinds[node_kinds[stage.node] if node_kinds else 0]
    layers = [profile.layers[layer] for layer in stage.layers]
    speed = kind.relative_speed
    forward = sum(layer.forward_seconds[stage.accelerators] / speed for layer in layers)
    backward = sum(layer.backward_seconds[stage.accelerators] / speed for layer in layers)
    if index + 1 < len(stages):
        same_node = stages[index + 1].node == stage.node
        send = model.send_seconds(stage.end_layer, same_node=same_node) / 2
        forward, backward = forward + send, backward + send
    return forward / relative_speed, backward / relative_speed


def _ready(
    ends: dict[tuple[int, int, bool], float],
    stage: int,
    microbatch: int,
    backward: bool,
    num_stages: int,
) -> float | None:
    """Return when an action's input is there, None when that is not known yet."""
    if backward:
        # The last stage turns round at once; its own forward pass came before in its queue.
        return 0.0 if stage + 1 == num_stages else ends.get((stage + 1, microbatch, True))
    return 0.0 if stage == 0 else ends.get((stage - 1, microbatch, False))
