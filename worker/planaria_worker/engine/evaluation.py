"""Evaluation on sequences that are never trained on: when, on what, and which engine computes what.

Each evaluation microbatch is carried by a training microbatch: the pipeline that runs the carrier
runs it as well, before it and without a backward pass. So it is kept, lost and computed again with
its carrier, and no plan or directive names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planaria.job import EvaluationSpec
from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.held_out import Split, split_dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Which steps evaluate, and what rides on which microbatch: pure functions of the job."""

    every_steps: int
    num_steps: int
    """Steps of training; one more, the closing one, evaluates what they have led to."""
    num_carriers: int
    """Microbatches of a step."""
    num_microbatches: int
    """Evaluation microbatches."""
    num_tokens: int
    """Tokens of an evaluation."""

    def is_due(self, step: int) -> bool:
        """Whether a step evaluates the parameters that it begins with."""
        return step % self.every_steps == 0 or self.is_closing(step)

    def is_closing(self, step: int) -> bool:
        """Whether a step only evaluates: training is over."""
        return step >= self.num_steps

    def num_due(self, step: int) -> int:
        """How many evaluation microbatches a step has."""
        return self.num_microbatches if self.is_due(step) else 0

    def carried_by(self, microbatches: Iterable[int]) -> tuple[int, ...]:
        """The evaluation microbatches that ride on these microbatches: each on exactly one."""
        every, carriers = self.num_microbatches, self.num_carriers
        return tuple(
            index
            for m in microbatches
            for index in range(-(-m * every // carriers), -(-(m + 1) * every // carriers))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The evaluation of a job."""

    plan: EvaluationPlan
    dataset: Dataset
    split: Split
    microbatch_size: int

    def rows(self, index: int) -> NDArray[np.int64]:
        """Token ids of an evaluation microbatch, [microbatch_size, sequence_length + 1]."""
        first = index * self.microbatch_size
        return self.dataset.rows(
            [self.split.held_out(first + row) for row in range(self.microbatch_size)]
        )


def make_evaluation(
    spec: EvaluationSpec,
    *,
    training: Dataset,
    held_out: Dataset | None,
    num_steps: int,
    num_carriers: int,
    microbatch_size: int,
) -> Evaluation:
    """Reads the section `evaluation` of a job file.

    A microbatch has one shape throughout a job, on which its bits depend: sequences that do not
    fill one are left out.

    Args:
        spec: the section.
        training: the data of the job.
        held_out: the text of `evaluation.data`, if that is given.
        num_steps: steps of training.
        num_carriers: microbatches of a step.
        microbatch_size: sequences of a microbatch.

    Raises:
        DataError: there are not enough sequences; names the field.
    """
    dataset = training if held_out is None else held_out
    split = split_dataset(dataset, spec.fraction or 1.0)
    field = "evaluation.data.path" if held_out is not None else "evaluation.fraction"
    num_microbatches = _num_sequences(spec, split, microbatch_size, field) // microbatch_size
    return Evaluation(
        plan=EvaluationPlan(
            every_steps=spec.every_steps,
            num_steps=num_steps,
            num_carriers=num_carriers,
            num_microbatches=num_microbatches,
            num_tokens=num_microbatches * microbatch_size * dataset.sequence_length,
        ),
        dataset=dataset,
        split=split,
        microbatch_size=microbatch_size,
    )


def _num_sequences(spec: EvaluationSpec, split: Split, microbatch_size: int, field: str) -> int:
    """How many sequences to evaluate on; `field` is the one that gives them.

    Raises:
        DataError: there are not enough; names the field.
    """
    if split.num_held_out < microbatch_size:
        raise DataError(
            f"{field}: gives {split.num_held_out} of {split.num_sequences} sequences to evaluate "
            f"on; it must give at least training.microbatch_size {microbatch_size}"
        )
    wanted = spec.num_sequences or split.num_held_out
    if wanted > split.num_held_out:
        raise DataError(
            f"evaluation.num_sequences: {wanted}, but {field} gives {split.num_held_out}; "
            f"it must be at most {split.num_held_out - split.num_held_out % microbatch_size}"
        )
    return wanted
