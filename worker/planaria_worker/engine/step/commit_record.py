"""The record of a committed step, and what an engine may do with one that it did not see itself."""

from dataclasses import dataclass
from enum import Enum, auto

from planaria.api.worker.v1 import report_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What every engine knows of a step once the exchange is passed."""

    step: int
    generation: int
    """The generation whose sums it commits."""
    gradient_norm: float
    """Of the gradient of the mean loss over the whole model, before clipping."""
    loss: float
    """Mean over the step's tokens."""
    num_tokens: int
    next_generation: int = 0
    """What every engine had been asked to stop or change its place for: behind this step nobody
    trains in an older generation. 0: not all had been asked for the same."""
    evaluation_loss: float | None = None
    """Mean over the evaluated tokens, of the parameters that the step began with; None: it did not
    evaluate."""

    @property
    def ends_generation(self) -> bool:
        """Whether everybody parks, or changes over, behind this step."""
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
        )


class RollForward(Enum):
    """What a Commit directive asks of an engine."""

    NOTHING = auto()
    """It has committed this step itself."""
    APPLY = auto()
    """It has the very sums of the record."""
    STALE = auto()
    """It lacks them: its layers remain at the version before and are to be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSums:
    """Whose sums an engine still has, all of them complete."""

    step: int
    generation: int


def roll_forward(
    record: CommitRecord, *, committed_steps: int, kept: KeptSums | None
) -> RollForward:
    """Decides what a witness's record means for an engine with these sums.

    Sums of the same step but another generation are not the record's: a step that was broken off
    and done again may in fast mode differ by rounding.

    Raises:
        ValueError: the record is more than one step ahead, which the protocol excludes.
    """
    if record.step < committed_steps:
        return RollForward.NOTHING
    if record.step > committed_steps:
        raise ValueError(
            f"record.step: step {record.step} cannot follow {committed_steps} committed steps"
        )
    if kept == KeptSums(step=record.step, generation=record.generation):
        return RollForward.APPLY
    return RollForward.STALE
