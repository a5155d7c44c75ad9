"""Which engine writes which layer of a checkpoint: a function of the plan that all engines have."""

from collections.abc import Iterable

from planaria_worker.engine.plan.owned_layers import OwnedLayers


def layers_to_write(
    runs: Iterable[OwnedLayers], engine_id: str, version: int, *, every_steps: int
) -> tuple[int, ...]:
    """The layers that an engine writes of a version.

    Of a layer's n owners the one numbered (version / every_steps, rounded up, + layer) mod n, so
    that neighbouring layers go to different replicas and everybody's part moves on with the
    version.

    Args:
        runs: those that the engine sums; all owners of a layer have the same run.
        engine_id: who asks.
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
