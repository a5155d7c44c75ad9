"""What travels in the exchange of a step, and the verdict that follows from it; no communication.

Up each pipeline goes one claim, to which every stage adds what it knows; the last ranks put theirs
side by side; from these rows each of them finds the same verdict, which goes down again. A claim
and a verdict are arrays of int64, floats by their bits, so that any transport carries them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from planaria_worker.engine.evaluation import EvaluationPlan
from planaria_worker.engine.numerics.loss import mean_loss
from planaria_worker.engine.numerics.norm import global_norm
from planaria_worker.engine.step.commit_record import CommitRecord

Message = NDArray[np.int64]

(
    _GENERATION,
    _STEP,
    _LOWEST_MARK,
    _HIGHEST_MARK,
    _OUT_OF_RANGE,
    _DIVERGED,
    _FENCED,
    _EVALUATED,
    _EVALUATION_UNITS,
    _HEADER,
) = range(10)
_NO_FAULT = np.iinfo(np.int64).max
_NOT_HOSTED = -1

VERDICT_LENGTH = 9


class ExchangeMismatchError(Exception):
    """A message of another generation or step: somebody has gone on without this engine."""


@unique
class Verdict(IntEnum):
    """What becomes of a step; only `COMMIT` changes parameters."""

    COMMIT = 1
    OUT_OF_RANGE = 2
    """A gradient or loss is not finite, or too large for the fixed-point sum."""
    INCOMPLETE = 3
    """A microbatch is not in a layer's sum, or is in it more often than it should be; or an
    evaluation lacks some, or has them twice."""
    DIVERGED = 4
    """Replicas of a layer have different sums where they must be equal."""
    FENCED = 5
    """Somebody in the pipeline could not take part any more: the step is attempted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdict with what everybody must know of it."""

    verdict: Verdict
    layer: int
    """The lowest layer with a fault; -1 when there is none."""
    record: CommitRecord

    @classmethod
    def fenced(cls, generation: int, step: int) -> "Outcome":
        """The answer to an attempt that did not get across."""
        record = CommitRecord(
            step=step, generation=generation, gradient_norm=0.0, loss=0.0, num_tokens=0
        )
        return cls(verdict=Verdict.FENCED, layer=-1, record=record)

    def encode(self) -> Message:
        record = self.record
        evaluation_loss = np.nan if record.evaluation_loss is None else record.evaluation_loss
        numbers = np.array([record.gradient_norm, record.loss, evaluation_loss], dtype=np.float64)
        return np.array(
            [
                record.generation,
                record.step,
                self.verdict,
                self.layer,
                record.next_generation,
                record.num_tokens,
                *numbers.view(np.int64),
            ],
            dtype=np.int64,
        )

    @classmethod
    def decode(cls, message: Message, *, generation: int, step: int) -> "Outcome":
        """Reads a verdict.

        Raises:
            ExchangeMismatchError: it is of another generation or step.
        """
        _check_same(message[0], message[1], generation, step)
        norm, loss, evaluation_loss = message[6:9].view(np.float64)
        return cls(
            verdict=Verdict(message[2]),
            layer=int(message[3]),
            record=CommitRecord(
                step=step,
                generation=generation,
                gradient_norm=float(norm),
                loss=float(loss),
                num_tokens=int(message[5]),
                next_generation=int(message[4]),
                evaluation_loss=None if np.isnan(evaluation_loss) else float(evaluation_loss),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClaim:
    """What an engine knows of a layer's sum."""

    squared_norm: float
    num_counted: int
    """Microbatches that are in the sum exactly as often as they should be."""
    in_range: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFormat:
    """The layout of claims, and how rows of them are judged."""

    num_layers: int
    num_microbatches: int
    num_tokens: int
    """Tokens of a step."""
    is_reproducible: bool
    evaluation: EvaluationPlan | None = None

    @property
    def length(self) -> int:
        return _HEADER + 2 * self.num_layers + 2 * self.num_microbatches

    def claim(
        self,
        *,
        generation: int,
        step: int,
        mark: int,
        layers: Mapping[int, LayerClaim],
        losses: Mapping[int, int | None],
        evaluation_losses: Mapping[int, int | None] | None = None,
    ) -> Message:
        """What one engine says.

        Args:
            generation: the one it acts for.
            step: the one whose sums it has.
            mark: the generation it has been asked to park, or to change over, for; or 0.
            layers: those that it hosts.
            losses: on the last stage, its microbatches' summed losses in units; None: not finite.
            evaluation_losses: the same of the evaluation microbatches that rode on them.
        """
        message = np.zeros(self.length, dtype=np.int64)
        evaluated = [*(evaluation_losses or {}).values()]
        faults = [layer for layer, claim in layers.items() if not claim.in_range]
        if None in losses.values() or None in evaluated:
            faults.append(self.num_layers - 1)
        fault = min(faults, default=_NO_FAULT)
        message[:_EVALUATED] = generation, step, mark, mark, fault, _NO_FAULT, False
        message[_EVALUATED] = len(evaluated)
        message[_EVALUATION_UNITS] = sum(loss or 0 for loss in evaluated)
        squares, counted, units, reports = self._sections(message)
        counted[:] = _NOT_HOSTED
        for layer, claim in layers.items():
            squares[layer] = np.float64(claim.squared_norm).view(np.int64)
            counted[layer] = claim.num_counted
        for microbatch, loss in losses.items():
            units[microbatch] = loss or 0
            reports[microbatch] = 1
        return message

    def fenced(self, *, generation: int, step: int) -> Message:
        """What an engine says in place of a claim when its attempt broke off."""
        message = self.claim(generation=generation, step=step, mark=0, layers={}, losses={})
        message[_FENCED] = True
        return message

    def is_fenced(self, claim: Message) -> bool:
        """Whether anybody whose claim is in this one broke off."""
        return bool(claim[_FENCED])

    def merge(self, below: Message, own: Message) -> Message:
        """Adds an engine's claim to that of the stages before it in its pipeline.

        Raises:
            ExchangeMismatchError: they are of different generations or steps.
        """
        _check_same(below[_GENERATION], below[_STEP], own[_GENERATION], own[_STEP])
        merged = own.copy()
        merged[_LOWEST_MARK] = min(below[_LOWEST_MARK], own[_LOWEST_MARK])
        merged[_HIGHEST_MARK] = max(below[_HIGHEST_MARK], own[_HIGHEST_MARK])
        merged[_OUT_OF_RANGE] = min(below[_OUT_OF_RANGE], own[_OUT_OF_RANGE])
        merged[_DIVERGED] = min(below[_DIVERGED], own[_DIVERGED])
        merged[_FENCED] = max(below[_FENCED], own[_FENCED])
        their_squares, their_counted, *_ = self._sections(below)
        squares, counted, *_ = self._sections(merged)
        # A layer with a tied parameter is hosted by two stages: believe the worse of the two.
        theirs = their_counted != _NOT_HOSTED
        both = theirs & (counted != _NOT_HOSTED)
        differs = np.flatnonzero(both & (squares != their_squares))
        if self.is_reproducible and differs.size:
            merged[_DIVERGED] = min(merged[_DIVERGED], differs[0])
        squares[theirs] = their_squares[theirs]
        counted[theirs] = np.where(both, np.minimum(counted, their_counted), their_counted)[theirs]
        return merged

    def judge(self, rows: Message, num_followers: int = 0) -> Outcome:
        """Finds the verdict from the claims of all pipelines and followers, [rows, length].

        A pure function of the rows, so that everybody who is across finds the same.

        Args:
            rows: the claims, followers last.
            num_followers: rows that may leave out layers.

        Raises:
            ExchangeMismatchError: the rows are of different generations or steps.
        """
        for row in rows[1:]:
            _check_same(row[_GENERATION], row[_STEP], rows[0][_GENERATION], rows[0][_STEP])
        step = int(rows[0][_STEP])
        verdict, layer = self._find_fault(rows, len(rows) - num_followers)
        squares, _, units, _ = self._sections(rows)
        norms = dict(enumerate(squares[0].view(np.float64).tolist()))
        lowest, highest = rows[:, _LOWEST_MARK].min(), rows[:, _HIGHEST_MARK].max()
        return Outcome(
            verdict=verdict,
            layer=layer,
            record=CommitRecord(
                step=step,
                generation=int(rows[0][_GENERATION]),
                gradient_norm=global_norm(norms, self.num_tokens),
                loss=mean_loss(sum(units.ravel().tolist()), self.num_tokens),
                num_tokens=0 if self._is_closing(step) else self.num_tokens,
                next_generation=int(highest) if lowest == highest else 0,
                evaluation_loss=self._evaluation_loss(rows),
            ),
        )

    def _is_closing(self, step: int) -> bool:
        return self.evaluation is not None and self.evaluation.is_closing(step)

    def _num_evaluated(self, step: int) -> int:
        """How many evaluation microbatches all rows of a step have together."""
        return 0 if self.evaluation is None else self.evaluation.num_due(step)

    def _evaluation_loss(self, rows: Message) -> float | None:
        plan = self.evaluation
        if plan is None or not plan.is_due(int(rows[0][_STEP])):
            return None
        return mean_loss(sum(rows[:, _EVALUATION_UNITS].tolist()), plan.num_tokens)

    def _find_fault(self, rows: Message, num_pipelines: int) -> tuple[Verdict, int]:
        squares, counted, _, reports = self._sections(rows)
        is_held = counted != _NOT_HOSTED
        is_held[:num_pipelines] = True  # a pipeline that leaves out a layer lacks it
        not_finite = np.flatnonzero(~np.isfinite(squares.view(np.float64)).all(axis=0))
        out_of_range = min(rows[:, _OUT_OF_RANGE].min(), *not_finite[:1], _NO_FAULT)
        if out_of_range != _NO_FAULT:  # and so in no sum
            return Verdict.OUT_OF_RANGE, int(out_of_range)
        incomplete = np.flatnonzero((is_held & (counted != self.num_microbatches)).any(axis=0))
        if incomplete.size:
            return Verdict.INCOMPLETE, int(incomplete[0])
        is_reported = reports.sum(axis=0) == 1
        num_evaluated = int(rows[:, _EVALUATED].sum())
        if not is_reported.all() or num_evaluated != self._num_evaluated(int(rows[0][_STEP])):
            return Verdict.INCOMPLETE, self.num_layers - 1
        diverged = int(rows[:, _DIVERGED].min())
        if self.is_reproducible:
            differs = np.flatnonzero((is_held & (squares != squares[0])).any(axis=0))
            diverged = min(diverged, *differs[:1].tolist(), int(_NO_FAULT))
        if diverged != _NO_FAULT:
            return Verdict.DIVERGED, diverged
        return Verdict.COMMIT, -1

    def _sections(self, rows: Message) -> tuple[Message, Message, Message, Message]:
        """Views: bits of squared norms, counts (by layer); loss units, reports (by microbatch).

        Of one claim, or of each of several.
        """
        layers, microbatches = self.num_layers, self.num_microbatches
        counted = _HEADER + layers
        units = counted + layers
        reports = units + microbatches
        return (
            rows[..., _HEADER:counted],
            rows[..., counted:units],
            rows[..., units:reports],
            rows[..., reports:],
        )


def _check_same(generation: int, step: int, own_generation: int, own_step: int) -> None:
    if (generation, step) != (own_generation, own_step):
        raise ExchangeMismatchError(
            f"step {step} of generation {generation} met step {own_step} "
            f"of generation {own_generation}"
        )
