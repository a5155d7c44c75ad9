"""The record of a committed step."""

from dataclasses import dataclass

from planaria.api.worker.v1 import report_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What every engine knows of a committed step."""

    step: int
    generation: int
    """The generation whose sums it commits."""
    gradient_norm: float
    """Of the gradient of the mean loss over the whole model, before clipping."""
    loss: float
    """Mean over the step's tokens."""
    num_tokens: int
    next_generation: int = 0
    """The generation for which all engines were asked to park or switch at a commit: no engine
    trains in an older one after this step. 0: not all were asked for the same."""
    evaluation_loss: float | None = None
    """Mean over the evaluated tokens, of the parameters that the step began with; None: the step
    did not evaluate."""
    num_skipped: int = 0
    """How many steps in a row were skipped, this one included. 0: it was applied. A skipped step
    changes no parameter and no moment, because a gradient or loss was not finite or too large; its
    version, data and learning rate pass like those of any other."""
    skipped_layer: int = 0
    """The lowest layer with such a gradient, the last one for a loss; where a step was skipped."""

    @property
    def is_skipped(self) -> bool:
        """Whether the step changes no layer."""
        return self.num_skipped > 0

    @property
    def ends_generation(self) -> bool:
        """Whether all engines park or switch to another plan after this step."""
        return self.next_generation > self.generation

    def to_proto(self) -> report_pb2.CommitRecord:
        return report_pb2.CommitRecord(
            step=self.step,
            generation=self.generation,
            gradient_norm=self.gradient_norm,
            loss=self.loss,
            num_tokens=self.num_tokens,
            next_generation=self.next_generation,
            evaluation_loss=self.evaluation_loss,
            num_skipped=self.num_skipped,
            skipped_layer=self.skipped_layer,
        )

    @classmethod
    def from_proto(cls, proto: report_pb2.CommitRecord) -> "CommitRecord":
        return cls(
            step=proto.step,
            generation=proto.generation,
            gradient_norm=proto.gradient_norm,
            loss=proto.loss,
            num_tokens=proto.num_tokens,
            next_generation=proto.next_generation,
            evaluation_loss=proto.evaluation_loss if proto.HasField("evaluation_loss") else None,
            num_skipped=proto.num_skipped,
            skipped_layer=proto.skipped_layer,
        )
