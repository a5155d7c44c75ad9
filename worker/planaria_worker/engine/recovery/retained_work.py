"""What an engine keeps of the step in flight through a fence, and reports to the coordinator."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedWork:
    """The microbatches that are in an engine's local gradients, or will be.

    Set when an Activate is accepted, and valid, fenced or not, until the pipeline is broken. All
    stages of a pipeline that applied the same Activates and committed the same steps retain the
    same work, and so make the same passes and attempts.
    """

    generation: int
    """Of the Activate that was last applied."""
    step: int
    """The step in flight."""
    step_microbatches: tuple[int, ...]
    """Those that the pipeline computes, or has computed, in the step in flight."""
    regular_microbatches: tuple[int, ...]
    """Those of every later step."""

    def after_commit(self) -> "RetainedWork":
        """Return the retained work of the next step."""
        return replace(self, step=self.step + 1, step_microbatches=self.regular_microbatches)

    def kept(self, committed_steps: int) -> tuple[int, ...]:
        """Return the microbatches that a fence report lists as kept."""
        return self.step_microbatches if self.step == committed_steps else ()
