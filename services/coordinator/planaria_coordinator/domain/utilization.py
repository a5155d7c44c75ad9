"""How much of what the accelerators can do goes into the model."""

from planaria_coordinator.domain.run import JobRun

_PASSES = 3
"""A backward pass has twice the operations of its forward pass. Those that activation
checkpointing does again are not the model's, and do not count."""


def model_flops_utilization(run: JobRun, step_seconds: float) -> float | None:
    """Return the model FLOPs utilisation of a step.

        3 x forward operations of a microbatch x microbatches
        -----------------------------------------------------
         step_seconds x sum of the accelerators' peak rates

    (Chowdhery et al., "PaLM", 2022, appendix B.) Operations and peak rates are those that engines
    have measured: of matrix products and attention, and the rate at which each accelerator
    multiplies large matrices of `training.dtype`. All accelerators of the plan count.

    Returns:
        None as long as they are not known.
    """
    if run.placement is None or step_seconds <= 0:
        return None
    engines = [run.engines.get(e) for pipeline in run.placement.places for e in pipeline]
    peaks = [engine.peak_flops_per_second if engine else 0.0 for engine in engines]
    forward_flops = sum(counted_flops(run))
    if not forward_flops or not all(peaks):
        return None
    flops = _PASSES * forward_flops * run.requirements.num_microbatches
    return flops / (step_seconds * sum(peaks))


def counted_flops(run: JobRun) -> tuple[int, ...]:
    """Return the operations of each layer's forward pass on a microbatch; empty: not counted yet.

    They are the model's, the same wherever they are counted.
    """
    counts = (engine.measured_layers for engine in run.engines.values())
    layers = sorted(next(filter(None, counts), ()), key=lambda layer: layer.layer)
    return tuple(layer.forward_flops for layer in layers)
