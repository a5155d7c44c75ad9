"""What an engine has done of the step in flight: what a recovery starts from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

NUM_RECENT_STEPS = 4
"""Steps of which the quickest gives the time of a microbatch: a single step may be slow."""


@dataclass(slots=True, kw_only=True)
class StepProgress:
    """One engine's progress in one step; written by the training thread, read by any thread.

    Finished microbatches stay finished until the step is committed, whatever happens to its
    attempts. A layer's sum is local, then in flight from the start of its all-reduce until it is
    complete. What is in flight is a copy; a complete sum takes the place of the local one, and
    stays valid in the next attempt (`reduction.complete_sums`).
    """

    step: int
    generation: int
    """The generation that `in_flight` and `complete` refer to."""
    finished: list[int] = field(default_factory=list)
    """Microbatches whose gradients are in the local sums."""
    losses: dict[int, Tensor] = field(default_factory=dict)
    """On the last stage: each microbatch's loss, summed over its tokens."""
    evaluation_losses: dict[int, Tensor] = field(default_factory=dict)
    """On the last stage of a step that evaluates: the loss of each evaluation microbatch that a
    microbatch of this pipeline carries."""
    out_of_range: set[int] = field(default_factory=set)
    """Layers with a gradient that is not finite or too large."""
    num_skipped: int = 0
    """Steps that were skipped in a row just before this one, as far as this engine knows."""
    in_flight: set[int] = field(default_factory=set)
    """Layers whose all-reduce was begun and is not complete."""
    complete: dict[int, int] = field(default_factory=dict)
    """For each layer whose sum is complete: how many microbatches are in it exactly once."""
    compute_seconds: float = 0.0
    recent_microbatch_seconds: tuple[float, ...] = ()
    """Seconds of a microbatch in each of the last steps of this context, the newest last."""

    @property
    def usual_microbatch_seconds(self) -> float:
        """Return the usual time of a microbatch in this context; 0 before the first step."""
        return min(self.recent_microbatch_seconds, default=0.0)

    def next_step(self, step: int, generation: int, num_skipped: int = 0) -> "StepProgress":
        """Return the progress of the next step in the same context: nothing is computed yet."""
        recent = self.recent_microbatch_seconds
        if self.finished:
            seconds = self.compute_seconds / len(self.finished)
            recent = (*recent, seconds)[-NUM_RECENT_STEPS:]
        return StepProgress(
            step=step,
            generation=generation,
            num_skipped=num_skipped,
            recent_microbatch_seconds=recent,
        )

    def begin_attempt(self, generation: int) -> None:
        """Forget the sums of an earlier attempt: they are reduced again."""
        self.generation = generation
        self.in_flight.clear()
        self.complete.clear()

    def launch(self, layers: Iterable[int]) -> None:
        """Note that the all-reduce of layers has begun."""
        self.in_flight.update(layers)

    def finish(self, layers: Iterable[int], num_counted: int) -> None:
        """Note that the sums of layers are complete."""
        for layer in layers:
            self.in_flight.discard(layer)
            self.complete[layer] = num_counted

    def is_complete(self, layers: Iterable[int], num_microbatches: int) -> bool:
        """Whether every layer's sum holds every microbatch once."""
        return all(self.complete.get(layer) == num_microbatches for layer in layers)

    def missing(self, microbatches: Sequence[int]) -> tuple[int, ...]:
        """Return those of these microbatches that are not computed yet, in their order."""
        return tuple(m for m in microbatches if m not in self.finished)
