"""What is true of the step in flight, kept apart from the numbers: the base of every recovery."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

NUM_RECENT_STEPS = 4
"""Of which the quickest says what a microbatch takes: one step may be slow for once."""


@dataclass(slots=True, kw_only=True)
class StepProgress:
    """One engine's account of one step; written by the training thread, read by anybody.

    Of microbatches: what is `finished` stays true until the step is committed, whatever happens to
    its attempts. Of layers, in the newest attempt: the sum is local, then in flight from the start
    of its all-reduce until it is complete. What is in flight is a copy; what is complete counts in
    place of the local sum, and stays true in the next attempt (`holdings`).
    """

    step: int
    generation: int
    """The one whose sums `in_flight` and `complete` speak of."""
    finished: list[int] = field(default_factory=list)
    """Microbatches whose gradients are in the local sums."""
    losses: dict[int, Tensor] = field(default_factory=dict)
    """On the last stage: each microbatch's loss, summed over its tokens."""
    evaluation_losses: dict[int, Tensor] = field(default_factory=dict)
    """On the last stage of a step that evaluates: that of each evaluation microbatch that rode on a
    microbatch of this pipeline."""
    out_of_range: set[int] = field(default_factory=set)
    """Layers with a gradient that is not finite or too large."""
    in_flight: set[int] = field(default_factory=set)
    """Layers whose sum was begun, and is not complete."""
    complete: dict[int, int] = field(default_factory=dict)
    """For each layer whose sum is complete: how many microbatches are in it exactly once."""
    compute_seconds: float = 0.0
    recent_microbatch_seconds: tuple[float, ...] = ()
    """What a microbatch of each of the last steps took in the same place, the newest last."""

    @property
    def usual_microbatch_seconds(self) -> float:
        """What a microbatch takes in this place; 0 before the first step."""
        return min(self.recent_microbatch_seconds, default=0.0)

    def behind(self, step: int, generation: int) -> "StepProgress":
        """The account of the next step in the same place; nothing of it is computed yet."""
        recent = self.recent_microbatch_seconds
        if self.finished:
            seconds = self.compute_seconds / len(self.finished)
            recent = (*recent, seconds)[-NUM_RECENT_STEPS:]
        return StepProgress(step=step, generation=generation, recent_microbatch_seconds=recent)

    def begin_attempt(self, generation: int) -> None:
        """Nothing is agreed on of the sums of an earlier attempt: they are to be summed again."""
        self.generation = generation
        self.in_flight.clear()
        self.complete.clear()

    def launch(self, layers: Iterable[int]) -> None:
        """The sums of layers are on their way."""
        self.in_flight.update(layers)

    def enter(self, layers: Iterable[int], num_counted: int) -> None:
        """The sums of layers are complete."""
        for layer in layers:
            self.in_flight.discard(layer)
            self.complete[layer] = num_counted

    def is_whole(self, layers: Iterable[int], num_microbatches: int) -> bool:
        """Whether every layer's sum holds every microbatch once."""
        return all(self.complete.get(layer) == num_microbatches for layer in layers)

    def missing(self, microbatches: Sequence[int]) -> tuple[int, ...]:
        """Those of these microbatches that are yet to be computed, in their order."""
        return tuple(m for m in microbatches if m not in self.finished)
