"""What is true of the step in flight, kept apart from the numbers: the base of every recovery."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Ledger:
    """One engine's account of one step; written by the training thread, read when it stands still.

    A layer's sum is local until the owners' sums are added to it, and complete from then on.
    """

    step: int
    generation: int
    finished: list[int] = field(default_factory=list)
    """Microbatches whose gradients are in the local sums."""
    losses: dict[int, Tensor] = field(default_factory=dict)
    """On the last stage: each microbatch's loss, summed over its tokens."""
    out_of_range: set[int] = field(default_factory=set)
    """Layers with a gradient that is not finite or too large."""
    complete: dict[int, int] = field(default_factory=dict)
    """For each layer whose sum is complete: how many microbatches are in it exactly once."""
    compute_seconds: float = 0.0

    def is_whole(self, layers: tuple[int, ...], num_microbatches: int) -> bool:
        """Whether every layer's sum holds every microbatch once."""
        return all(self.complete.get(layer) == num_microbatches for layer in layers)
