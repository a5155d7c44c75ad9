"""How much of what the accelerators can do goes into the model."""

from planaria_coordinator.domain.job.job_run import JobRun

_PASSES = 3
"""A backward pass has twice the operations of its forward pass. Those that activation
checkpointing does again are not the model's, and do not count."""


def model_flops_utilization(run: JobRun, generation: int, step_seconds: float) -> float | None:
    """Return the model FLOPs utilisation of a step, also when engines of its plan are lost.

        3 x forward operations of a microbatch x microbatches
        -----------------------------------------------------
         step_seconds x sum of the accelerators' peak rates

    (Chowdhery et al., "PaLM", 2022, appendix B.) Operations and peak rates are those that engines
    have measured: of matrix products and attention, and the rate at which each accelerator
    multiplies large matrices of `training.dtype`. All accelerators of the plan's pipelines count.

    Args:
        run: of the job.
        generation: of the plan that computed the step. When that has been replaced, as far as
            engines received, the plan after it counts.
        step_seconds: wall seconds of the step.

    Returns:
        None as long as they are not known.
    """
    computed_by = next((p for p in run.placements if p.generation == generation), run.placement)
    peak = computed_by.peak_flops_per_second if computed_by else 0.0
    forward_flops = sum(counted_flops(run))
    if not peak or not forward_flops or step_seconds <= 0:
        return None
    return _PASSES * forward_flops * run.requirements.num_microbatches / (step_seconds * peak)


def counted_flops(run: JobRun) -> tuple[int, ...]:
    """Return the operations of each layer's forward pass on a microbatch; empty: not counted yet.

    They are the model's, the same wherever they are counted.
    """
    counts = (engine.measured_layers for engine in run.engines.values())
    layers = sorted(next(filter(None, counts), ()), key=lambda layer: layer.layer)
    return tuple(layer.forward_flops for layer in layers)
