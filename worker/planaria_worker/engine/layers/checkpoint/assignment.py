"""Which engine writes which layer of a checkpoint: all engines compute it from the plan."""

from collections.abc import Iterable

from planaria_worker.engine.plan.owned_layers import OwnedLayers


def layers_to_write(
    runs: Iterable[OwnedLayers], engine_id: str, version: int, *, every_steps: int
) -> tuple[int, ...]:
    """The layers of a version that an engine writes.

    Of the n owners of a layer, number (version / every_steps, rounded up, + layer) mod n writes it.
    So different replicas write neighbouring layers, and the parts rotate with the version.

    Args:
        runs: the layers that the engine sums, with their owners.
        engine_id: this engine.
        version: number of committed steps.
        every_steps: how many lie between two checkpoints.
    """
    turn = -(-version // every_steps)
    return tuple(
        sorted(
            layer
            for run in runs
            for layer in run.layers
            if run.owners[(turn + layer) % len(run.owners)] == engine_id
        )
    )
