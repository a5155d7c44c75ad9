"""When checkpoints are due: coordinator and engines must agree on it."""


def is_due(version: int, *, every_steps: int, num_steps: int) -> bool:
    """Return whether a version is written: at every multiple, and at the end.

    Args:
        version: number of committed steps.
        every_steps: how many lie between two checkpoints.
        num_steps: all that are to be trained.
    """
    return 0 < version <= num_steps and (version % every_steps == 0 or version == num_steps)
