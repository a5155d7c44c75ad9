"""What an engine of a whole pipeline does without being told more: what its fence reports say."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedWork:
    """The microbatches that are in an engine's local gradients, or will be.

    Made when an Activate is accepted, and kept whatever comes, fence or not, until the pipeline is
    broken: all stages of a pipeline that applied the same Activates and committed the same steps
    have the same promise, and make the same passes and attempts.
    """

    generation: int
    """Of the Activate that was last applied."""
    step: int
    """The step in flight."""
    microbatches: tuple[int, ...]
    """Those of the step in flight."""
    each_step: tuple[int, ...]
    """Those of every later step."""

    def after_commit(self) -> "RetainedWork":
        """The promise for the next step, whether it passed the exchange or was told of it."""
        return replace(self, step=self.step + 1, microbatches=self.each_step)

    def kept(self, committed_steps: int) -> tuple[int, ...]:
        """What a fence report says is kept."""
        return self.microbatches if self.step == committed_steps else ()
