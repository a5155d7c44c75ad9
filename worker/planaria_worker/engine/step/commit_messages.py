"""Votes and decisions of the two-phase commit: how they are encoded, merged and decided; pure.

One vote goes up each pipeline, and every stage adds what it knows. From the votes of all pipelines
and followers each last rank reaches the same decision. Votes and decisions are arrays of int64,
floats by their bits, so that any transport carries them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.evaluation import EvaluationPlan
from planaria_worker.engine.numerics.loss import mean_loss
from planaria_worker.engine.numerics.norm import global_norm

Message = NDArray[np.int64]

(
    _GENERATION,
    _STEP,
    _LOWEST_MARK,
    _HIGHEST_MARK,
    _OUT_OF_RANGE,
    _DIVERGED,
    _FENCED,
    _NUM_SKIPPED,
    _EVALUATED,
    _EVALUATION_UNITS,
    _EVALUATION_NOT_FINITE,
    _HEADER,
) = range(12)
_NO_FAULT = np.iinfo(np.int64).max
_NOT_HOSTED = -1

DECISION_LENGTH = 10


class CommitMismatchError(Exception):
    """A message of another generation or step: a peer has gone on without this engine."""


@unique
class DecisionKind(IntEnum):
    """What becomes of a step; only COMMIT changes parameters, unless its record skips the step."""

    COMMIT = 1
    OUT_OF_RANGE = 2
    """A gradient or loss is not finite, or too large for the fixed-point sum, and as many steps as
    may be were skipped before."""
    INCOMPLETE = 3
    """A microbatch is not in a layer's sum, or is in it more often than it should be; or an
    evaluation lacks some, or has them twice."""
    DIVERGED = 4
    """Replicas of a layer have different sums where they must be equal."""
    FENCED = 5
    """An engine of the pipeline was fenced, or lost a peer: the step is attempted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all engines learn of an attempt."""

    kind: DecisionKind
    layer: int
    """The lowest layer with a fault, also where the step is skipped; -1 when there is none."""
    record: CommitRecord

    @classmethod
    def fenced(cls, generation: int, step: int) -> "Decision":
        """Return the decision of a pipeline that did not vote across the pipelines."""
        record = CommitRecord(
            step=step, generation=generation, gradient_norm=0.0, loss=0.0, num_tokens=0
        )
        return cls(kind=DecisionKind.FENCED, layer=-1, record=record)

    def encode(self) -> Message:
        record = self.record
        evaluation_loss = np.nan if record.evaluation_loss is None else record.evaluation_loss
        numbers = np.array([record.gradient_norm, record.loss, evaluation_loss], dtype=np.float64)
        return np.array(
            [
                record.generation,
                record.step,
                self.kind,
                self.layer,
                record.next_generation,
                record.num_tokens,
                record.num_skipped,
                *numbers.view(np.int64),
            ],
            dtype=np.int64,
        )

    @classmethod
    def decode(cls, message: Message, *, generation: int, step: int) -> "Decision":
        """Read a decision.

        Raises:
            CommitMismatchError: it is of another generation or step.
        """
        _check_same(message[0], message[1], generation, step)
        num_skipped, layer = int(message[6]), int(message[3])
        norm, loss, evaluation_loss = message[7:10].view(np.float64)
        return cls(
            kind=DecisionKind(message[2]),
            layer=layer,
            record=CommitRecord(
                step=step,
                generation=generation,
                gradient_norm=float(norm),
                loss=float(loss),
                num_tokens=int(message[5]),
                next_generation=int(message[4]),
                evaluation_loss=None if np.isnan(evaluation_loss) else float(evaluation_loss),
                num_skipped=num_skipped,
                skipped_layer=layer if num_skipped else 0,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVote:
    """What an engine knows of a layer's sum."""

    squared_norm: float
    num_counted: int
    """Microbatches that are in the sum exactly as often as they should be."""
    in_range: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteFormat:
    """The layout of votes, and how a step is decided from them."""

    num_layers: int
    num_microbatches: int
    num_tokens: int
    """Tokens of a step."""
    is_reproducible: bool
    max_skipped_steps: int = 0
    """How many steps in a row are skipped for gradients or losses that are not finite or too large;
    the next such step is refused."""
    evaluation: EvaluationPlan | None = None

    @property
    def length(self) -> int:
        return _HEADER + 2 * self.num_layers + 2 * self.num_microbatches

    def vote(
        self,
        *,
        generation: int,
        step: int,
        mark: int,
        layers: Mapping[int, LayerVote],
        losses: Mapping[int, int | None],
        evaluation_losses: Mapping[int, int | None] | None = None,
        num_skipped: int = 0,
    ) -> Message:
        """Return one engine's vote.

        Args:
            generation: the one it acts for.
            step: the one whose sums it has.
            mark: the generation for which it was asked to park or switch at a commit; or 0.
            layers: those that it hosts.
            losses: on the last stage, its microbatches' summed losses in units; None: not finite.
            evaluation_losses: the same for the evaluation microbatches they carry.
            num_skipped: steps skipped in a row just before this one, as far as the engine knows.
        """
        message = np.zeros(self.length, dtype=np.int64)
        evaluated = [*(evaluation_losses or {}).values()]
        faults = [layer for layer, vote in layers.items() if not vote.in_range]
        if None in losses.values() or None in evaluated:
            faults.append(self.num_layers - 1)
        fault = min(faults, default=_NO_FAULT)
        message[:_NUM_SKIPPED] = generation, step, mark, mark, fault, _NO_FAULT, False
        message[_NUM_SKIPPED] = num_skipped
        message[_EVALUATED] = len(evaluated)
        message[_EVALUATION_UNITS] = sum(loss or 0 for loss in evaluated)
        message[_EVALUATION_NOT_FINITE] = None in evaluated
        squares, counted, units, reports = self._sections(message)
        counted[:] = _NOT_HOSTED
        for layer, vote in layers.items():
            squares[layer] = np.float64(vote.squared_norm).view(np.int64)
            counted[layer] = vote.num_counted
        for microbatch, loss in losses.items():
            units[microbatch] = loss or 0
            reports[microbatch] = 1
        return message

    def fenced(self, *, generation: int, step: int) -> Message:
        """Return the vote of an engine whose attempt broke off."""
        message = self.vote(generation=generation, step=step, mark=0, layers={}, losses={})
        message[_FENCED] = True
        return message

    def is_fenced(self, vote: Message) -> bool:
        """Whether the attempt of any engine in this vote broke off."""
        return bool(vote[_FENCED])

    def merge(self, before: Message, own: Message) -> Message:
        """Add an engine's vote to that of the stages before it in its pipeline.

        Raises:
            CommitMismatchError: the votes are of different generations or steps.
        """
        _check_same(before[_GENERATION], before[_STEP], own[_GENERATION], own[_STEP])
        merged = own.copy()
        merged[_LOWEST_MARK] = min(before[_LOWEST_MARK], own[_LOWEST_MARK])
        merged[_HIGHEST_MARK] = max(before[_HIGHEST_MARK], own[_HIGHEST_MARK])
        merged[_OUT_OF_RANGE] = min(before[_OUT_OF_RANGE], own[_OUT_OF_RANGE])
        merged[_DIVERGED] = min(before[_DIVERGED], own[_DIVERGED])
        merged[_FENCED] = max(before[_FENCED], own[_FENCED])
        merged[_NUM_SKIPPED] = max(before[_NUM_SKIPPED], own[_NUM_SKIPPED])
        their_squares, their_counted, *_ = self._sections(before)
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

    def decide(self, votes: Message, num_followers: int = 0) -> Decision:
        """Decide from the votes of all pipelines and followers, [votes, length].

        A pure function of the votes, so that all last ranks decide alike.

        Args:
            votes: those of pipelines, then those of followers.
            num_followers: how many; their votes may leave out layers.

        Raises:
            CommitMismatchError: they are of different generations or steps.
        """
        for row in votes[1:]:
            _check_same(row[_GENERATION], row[_STEP], votes[0][_GENERATION], votes[0][_STEP])
        step = int(votes[0][_STEP])
        kind, layer = self._find_fault(votes, len(votes) - num_followers)
        num_skipped = 0
        if kind is DecisionKind.OUT_OF_RANGE:
            # An engine that has just joined may not know of the steps before.
            num_before = int(votes[:, _NUM_SKIPPED].max())
            if num_before < self.max_skipped_steps:
                kind, num_skipped = DecisionKind.COMMIT, num_before + 1
        is_bad = layer >= 0  # then there may be no norm, and no loss
        lowest, highest = votes[:, _LOWEST_MARK].min(), votes[:, _HIGHEST_MARK].max()
        return Decision(
            kind=kind,
            layer=layer,
            record=CommitRecord(
                step=step,
                generation=int(votes[0][_GENERATION]),
                gradient_norm=0.0 if is_bad else self._gradient_norm(votes),
                loss=0.0 if is_bad else self._loss(votes),
                num_tokens=0 if self._is_closing(step) else self.num_tokens,
                next_generation=int(highest) if lowest == highest else 0,
                evaluation_loss=self._evaluation_loss(votes),
                num_skipped=num_skipped,
                skipped_layer=layer if num_skipped else 0,
            ),
        )

    def _gradient_norm(self, votes: Message) -> float:
        squares, *_ = self._sections(votes)
        norms = dict(enumerate(squares[0].view(np.float64).tolist()))
        return global_norm(norms, self.num_tokens)

    def _loss(self, votes: Message) -> float:
        _, _, units, _ = self._sections(votes)
        return mean_loss(sum(units.ravel().tolist()), self.num_tokens)

    def _is_closing(self, step: int) -> bool:
        return self.evaluation is not None and self.evaluation.is_closing(step)

    def _num_evaluated(self, step: int) -> int:
        """How many evaluation microbatches the votes of a step must have together."""
        return 0 if self.evaluation is None else self.evaluation.num_due(step)

    def _evaluation_loss(self, votes: Message) -> float | None:
        plan = self.evaluation
        is_due = plan is not None and plan.is_due(int(votes[0][_STEP]))
        if plan is None or not is_due or votes[:, _EVALUATION_NOT_FINITE].any():
            return None
        return mean_loss(sum(votes[:, _EVALUATION_UNITS].tolist()), plan.num_tokens)

    def _find_fault(self, votes: Message, num_pipelines: int) -> tuple[DecisionKind, int]:
        squares, counted, _, reports = self._sections(votes)
        is_reported = reports.sum(axis=0) == 1
        num_evaluated = int(votes[:, _EVALUATED].sum())
        if not is_reported.all() or num_evaluated != self._num_evaluated(int(votes[0][_STEP])):
            return DecisionKind.INCOMPLETE, self.num_layers - 1
        is_held = counted != _NOT_HOSTED
        is_held[:num_pipelines] = True  # a pipeline votes on every layer
        not_finite = np.flatnonzero(~np.isfinite(squares.view(np.float64)).all(axis=0))
        out_of_range = min(votes[:, _OUT_OF_RANGE].min(), *not_finite[:1], _NO_FAULT)
        if out_of_range != _NO_FAULT:  # and so in no sum
            return DecisionKind.OUT_OF_RANGE, int(out_of_range)
        incomplete = np.flatnonzero((is_held & (counted != self.num_microbatches)).any(axis=0))
        if incomplete.size:
            return DecisionKind.INCOMPLETE, int(incomplete[0])
        diverged = int(votes[:, _DIVERGED].min())
        if self.is_reproducible:
            differs = np.flatnonzero((is_held & (squares != squares[0])).any(axis=0))
            diverged = min(diverged, *differs[:1].tolist(), int(_NO_FAULT))
        if diverged != _NO_FAULT:
            return DecisionKind.DIVERGED, diverged
        return DecisionKind.COMMIT, -1

    def _sections(self, votes: Message) -> tuple[Message, Message, Message, Message]:
        """Views: bits of squared norms, counts (by layer); loss units, reports (by microbatch).

        Of one vote, or of each of several.
        """
        layers, microbatches = self.num_layers, self.num_microbatches
        counted = _HEADER + layers
        units = counted + layers
        reports = units + microbatches
        return (
            votes[..., _HEADER:counted],
            votes[..., counted:units],
            votes[..., units:reports],
            votes[..., reports:],
        )


def _check_same(generation: int, step: int, own_generation: int, own_step: int) -> None:
    if (generation, step) != (own_generation, own_step):
        raise CommitMismatchError(
            f"step {step} of generation {generation} met step {own_step} "
            f"of generation {own_generation}"
        )
