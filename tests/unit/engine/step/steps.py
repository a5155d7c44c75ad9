"""Pipelines of a small model that compute, sum, break off and take over, in any order.

Ledger and reduction are the real ones. What is in a sum, and how often, the sum itself says
(`unit.engine.step.summing`); every attempt is checked against what its engines were allowed.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import cast

import torch

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups import DataParallelGroup
from planaria_worker.engine.numerics.accumulate import Piece
from planaria_worker.engine.plan.plan import PipelineAssignment
from planaria_worker.engine.plan.plan_view import view_plan
from planaria_worker.engine.reduction.gradient_reduction import GradientReduction
from planaria_worker.engine.telemetry import Stopwatch
from unit.engine.plans import pipeline as pipeline_plan
from unit.engine.plans import untied
from unit.engine.step.summing import (
    MICROBATCHES,
    NUM_LAYERS,
    NUM_MICROBATCHES,
    SIZES,
    Allowed,
    Engine,
    Hall,
    Meeting,
    pieces_of,
    times,
)

WHOLE = [1] * NUM_MICROBATCHES


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """Engines that make the same passes."""

    plan: PipelineAssignment
    engines: list[Engine]
    microbatches: list[int]
    """Of the step in flight: computed, or still to be."""


@dataclass(kw_only=True)
class Progress:
    """How far an engine comes in an attempt, in pieces of its layers."""

    num_begun: int = 0
    num_complete: int = 0


class SmallJob:
    """Pipelines of any cuts; whoever plays the coordinator may be as foolish as it likes."""

    def __init__(self) -> None:
        self.step = self.generation = self.num_made = 0
        self.is_attempted = False
        self.pipelines: list[Pipeline] = []
        self.lost: list[int] = []
        """Microbatches whose pipeline is gone."""

    @property
    def engines(self) -> list[Engine]:
        return [engine for pipeline in self.pipelines for engine in pipeline.engines]

    def make(self, cuts: Sequence[int]) -> None:
        """A pipeline whose stages end at these layers."""
        plan = pipeline_plan(self.num_made, cuts, ())
        engines = [Engine(engine_id=e.engine_id, layers=e.layers) for e in plan.stages]
        for engine in engines:
            engine.begin_step(self.step, self.generation)
        self.pipelines.append(Pipeline(plan=plan, engines=engines, microbatches=[]))
        self.num_made += 1

    def give(self, pipeline: Pipeline, microbatch: int) -> None:
        """A microbatch that it is to compute, if it does not have it yet."""
        if microbatch not in pipeline.microbatches:
            pipeline.microbatches.append(microbatch)

    def deal(self) -> None:
        """All microbatches of a step, in turn."""
        for microbatch in MICROBATCHES:
            self.give(self.pipelines[microbatch % len(self.pipelines)], microbatch)

    def compute(self, pipeline: Pipeline) -> None:
        """The next of its microbatches, if one is missing."""
        missing = pipeline.engines[0].progress.missing(pipeline.microbatches)
        for engine in pipeline.engines if missing else ():
            engine.compute(missing[0])

    def lose(self, pipeline: Pipeline) -> None:
        """All that it has computed is dropped."""
        self.pipelines.remove(pipeline)
        self.lost += pipeline.microbatches

    def restart(self) -> None:
        """A step begins, or again: nobody keeps anything, and nobody has been given anything."""
        self.is_attempted = False
        self.lost.clear()
        for pipeline in self.pipelines:
            pipeline.microbatches.clear()
            for engine in pipeline.engines:
                engine.begin_step(self.step, self.generation)

    def attempt(
        self, allowed: Allowed, *, cut_early: Callable[[Engine], bool], max_in_flight: int
    ) -> bool:
        """Everybody sums; some are fenced before a sum starts, or cut off before it is there.

        Args:
            allowed: how many sums each may begin, and wait for.
            cut_early: who is fenced before anything starts.
            max_in_flight: sums under way at once.

        Returns:
            Whether everybody has the whole step, which is over then.
        """
        self.generation += 1
        hall = self._meet(max_in_flight)
        for pipeline in self.pipelines:
            for engine in pipeline.engines:
                engine.is_cut_early = cut_early(engine)
                engine.starts_left, engine.sums_left = allowed[engine]
                engine.begin_attempt(
                    self.generation, pipeline.microbatches, is_resumed=self.is_attempted
                )
        exact = {piece: self._exact(piece) for piece in pieces_of(range(NUM_LAYERS))}
        hall.finish(self.engines)
        for engine, progress in self._expected(allowed, max_in_flight).items():
            self._check(engine, progress, exact)
        self.check_local_sums()
        self.is_attempted = True
        if all(
            engine.progress.is_complete(engine.layers, NUM_MICROBATCHES) for engine in self.engines
        ):
            self.step += 1
            self.restart()
            return True
        return False

    def check_local_sums(self) -> None:
        """What is finished is in the local sums once, and nothing else."""
        for pipeline in self.pipelines:
            for engine in pipeline.engines:
                finished = [engine.progress.finished.count(m) for m in MICROBATCHES]
                totals = engine.sums.totals
                for piece in engine.pieces:
                    held = WHOLE if engine.has_whole(piece) else finished
                    assert times(totals[piece.layer][piece.start]) == held
                assert max(finished) <= 1
                still = tuple(m for m in pipeline.microbatches if not finished[m])
                assert engine.progress.missing(pipeline.microbatches) == still

    def _meet(self, max_in_flight: int) -> Hall:
        """Groups and sums of a new generation."""
        plan = [
            PipelineAssignment(stages=pipeline.plan.stages, microbatches=tuple(part))
            for row, pipeline in enumerate(self.pipelines)
            if (part := MICROBATCHES[row :: len(self.pipelines)])
        ]
        hall = Hall(self.engines)
        for engine in self.engines:
            view = view_plan(
                plan,
                engine.engine_id,
                num_layers=NUM_LAYERS,
                num_microbatches=NUM_MICROBATCHES,
                hosted_layers=untied,
            )
            groups = {spec.name: Meeting(spec, engine, hall) for spec in view.owner_groups}
            engine.reduction = GradientReduction(
                view=view,
                groups=cast(dict[str, DataParallelGroup], groups),
                sums=engine.sums,
                squared_norm=lambda _layer, total: float(total.sum()),
                device=torch.device("cpu"),
                num_microbatches=NUM_MICROBATCHES,
                bucket_bytes=8,  # an element
                max_in_flight=max_in_flight,
                stopwatch=Stopwatch(),
                failpoints=Failpoints(),
            )
        return hall

    def _check(self, engine: Engine, progress: Progress, exact: Mapping[Piece, list[int]]) -> None:
        """What an engine says of the sums of its layers is what they hold."""
        begun = engine.pieces[: progress.num_begun]
        complete = engine.pieces[: progress.num_complete]
        started = {piece.layer for piece in begun}
        ends = {piece.layer for piece in complete if piece.end == SIZES[piece.layer]}
        ledger = engine.progress
        assert ledger.generation == self.generation
        assert ledger.in_flight == started - ends
        assert ledger.complete.keys() == ends
        is_shared = len(self.pipelines) > 1
        for piece in complete:
            assert not is_shared or engine.has_whole(piece) or exact[piece] != WHOLE
        for layer in ends:
            pieces = pieces_of([layer])
            assert ledger.complete[layer] == min(exact[piece].count(1) for piece in pieces)
        whole = ends == {*engine.layers} and all(exact[piece] == WHOLE for piece in engine.pieces)
        assert ledger.is_complete(engine.layers, NUM_MICROBATCHES) == whole

    def _exact(self, piece: Piece) -> list[int]:
        """How often each microbatch will be in the sum of a piece."""
        owners = [engine for engine in self.engines if piece.layer in engine.layers]
        if any(owner.has_whole(piece) for owner in owners):
            return WHOLE
        return times(torch.stack([owner.sums.part(piece) for owner in owners]).sum(0))

    def _expected(self, allowed: Allowed, limit: int) -> dict[Engine, Progress]:
        """How far every engine comes, each until it may not go on, or one that it waits for."""
        if len(self.pipelines) == 1:  # it needs nobody
            return {engine: self._expected_alone(engine, allowed) for engine in self.engines}
        done = {engine: Progress() for engine in self.engines}
        active = [engine for engine in self.engines if not engine.is_cut_early]
        for engine in [*active]:
            peers = [other for other in self.engines if {*other.layers} & {*engine.layers}]
            if self.is_attempted and any(peer.is_cut_early for peer in peers):
                told = len(list(takewhile(partial(self._was_told, engine), engine.pieces)))
                done[engine].num_begun = min(told, limit, allowed[engine][0])
                active.remove(engine)  # it waits for an answer that does not come
        is_changed = True
        while is_changed:
            before = [dataclasses.replace(progress) for progress in done.values()]
            active = [engine for engine in active if self._goes_on(engine, done, allowed, limit)]
            is_changed = before != [*done.values()]
        return done

    def _expected_alone(self, engine: Engine, allowed: Allowed) -> Progress:
        """All or nothing: what is summed with nobody is not under way before it is complete."""
        is_through = not engine.is_cut_early and allowed[engine][0] >= len(engine.pieces)
        num_pieces = len(engine.pieces) if is_through else 0
        return Progress(num_begun=num_pieces, num_complete=num_pieces)

    def _goes_on(
        self, engine: Engine, done: Mapping[Engine, Progress], allowed: Allowed, limit: int
    ) -> bool:
        """Starts what there is room for, and takes in the oldest, if that is there."""
        own, pieces = done[engine], engine.pieces
        num_starts, num_sums = allowed[engine]
        while own.num_begun < min(own.num_complete + limit, len(pieces)):
            if own.num_begun == num_starts:
                return False
            own.num_begun += 1
        if own.num_complete == len(pieces) or own.num_complete == num_sums:
            return False
        piece = pieces[own.num_complete]
        others = [other for other in self.engines if piece.layer in other.layers]
        own.num_complete += all(
            other.pieces.index(piece) < done[other].num_begun for other in others
        )
        return True

    def _was_told(self, engine: Engine, piece: Piece) -> bool:
        """Whether all owners have said what is whole when its pass is over: they pass in turn."""
        so_far = self.engines[: self.engines.index(engine) + 1]
        return all(
            owner in so_far and not owner.is_cut_early
            for owner in self.engines
            if piece.layer in owner.layers
        )
