"""[1] The ledger against the numbers themselves, whatever is lost, fenced and taken over in a step.

Pipelines compute, sum and break off in any order; ledger and reduction are the real ones. What is
in a sum, and how often, the sum itself says (`unit.engine.summing`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import cast

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from planaria_worker.engine.communication import Group
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.holdings import Piece
from planaria_worker.engine.ledger import NUM_RECENT_STEPS, Ledger
from planaria_worker.engine.plan import PipelinePlan
from planaria_worker.engine.plan_view import view_plan
from planaria_worker.engine.reduction import Reduction
from planaria_worker.engine.stopwatch import Stopwatch
from unit.engine.plans import pipeline as pipeline_plan
from unit.engine.plans import untied
from unit.engine.summing import (
    MICROBATCHES,
    NUM_LAYERS,
    NUM_MICROBATCHES,
    NUM_PIECES,
    SIZES,
    Allowed,
    Engine,
    Hall,
    Meeting,
    pieces_of,
    times,
)

MAX_PIPELINES = 3
CUTS = ([3], [1, 3], [2, 3], [1, 2, 3])
WHOLE = [1] * NUM_MICROBATCHES


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """Engines that make the same passes."""

    plan: PipelinePlan
    engines: list[Engine]
    microbatches: list[int]
    """Of the step in flight: computed, or still to be."""


@dataclass(kw_only=True)
class Progress:
    """How far an engine comes in an attempt, in pieces of its layers."""

    num_begun: int = 0
    num_complete: int = 0


class Steps(RuleBasedStateMachine):
    """Pipelines of any cuts; the coordinator is as foolish as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.step = self.generation = self.num_made = 0
        self.is_attempted = False
        self.pipelines: list[Pipeline] = []
        self.lost: list[int] = []
        """Microbatches whose pipeline is gone."""

    def make(self, cuts: Sequence[int]) -> None:
        plan = pipeline_plan(self.num_made, cuts, ())
        engines = [Engine(engine_id=e.engine_id, layers=e.layers) for e in plan.stages]
        for engine in engines:
            engine.begin_step(self.step, self.generation)
        self.pipelines.append(Pipeline(plan=plan, engines=engines, microbatches=[]))
        self.num_made += 1

    def share_out(self, microbatches: Sequence[int], data: st.DataObject) -> None:
        for microbatch in microbatches:
            self.give(data.draw(st.sampled_from(self.pipelines)), microbatch)

    def give(self, pipeline: Pipeline, microbatch: int) -> None:
        if microbatch not in pipeline.microbatches:
            pipeline.microbatches.append(microbatch)

    @property
    def engines(self) -> list[Engine]:
        return [engine for pipeline in self.pipelines for engine in pipeline.engines]

    @initialize(cuts=st.lists(st.sampled_from(CUTS), min_size=1, max_size=MAX_PIPELINES))
    def begin(self, cuts: list[list[int]]) -> None:
        for one in cuts:
            self.make(one)
        for microbatch in MICROBATCHES:
            self.pipelines[microbatch % len(cuts)].microbatches.append(microbatch)

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """Between fence and plan, or before the others are so far."""
        pipeline = data.draw(st.sampled_from(self.pipelines))
        missing = pipeline.engines[0].ledger.missing(pipeline.microbatches)
        for engine in pipeline.engines if missing else ():
            engine.compute(missing[0])

    @precondition(lambda self: len(self.pipelines) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """All that a broken pipeline has computed is dropped."""
        pipeline = data.draw(st.sampled_from(self.pipelines))
        self.pipelines.remove(pipeline)
        self.lost += pipeline.microbatches

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        """Those who are whole keep what they have, and share what was lost with who is new."""
        if len(self.pipelines) < MAX_PIPELINES and data.draw(st.booleans()):
            self.make(data.draw(st.sampled_from(CUTS)))
        self.share_out(data.draw(st.permutations(self.lost)), data)
        self.lost.clear()

    @precondition(lambda self: len(self.pipelines) > 1)
    @rule(data=st.data(), microbatch=st.sampled_from(MICROBATCHES))
    def give_twice(self, data: st.DataObject, microbatch: int) -> None:
        """A plan that is wrong: the sums must tell."""
        self.give(data.draw(st.sampled_from(self.pipelines)), microbatch)

    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        """Nobody keeps anything of the step."""
        self.restart(data)

    @rule(data=st.data(), is_disturbed=st.booleans())
    def attempt(self, data: st.DataObject, is_disturbed: bool) -> None:
        """Everybody sums; some are fenced before a sum starts, or cut off before it is there."""
        self.generation += 1
        limit = data.draw(st.sampled_from([1, 2, NUM_PIECES]))
        hall = self.meet(limit)
        numbers = st.just(NUM_PIECES)  # mostly, or nothing would ever become whole
        if is_disturbed:
            numbers |= st.just(NUM_PIECES) | st.integers(0, NUM_PIECES)
        early = st.sampled_from([False] * 7 + [is_disturbed])
        allowed = {engine: (data.draw(numbers), data.draw(numbers)) for engine in self.engines}
        for pipeline in self.pipelines:
            for engine in pipeline.engines:
                engine.is_cut_early = data.draw(early)
                engine.starts_left, engine.sums_left = allowed[engine]
                engine.begin_attempt(
                    self.generation, pipeline.microbatches, is_resumed=self.is_attempted
                )
        exact = {piece: self.exact(piece) for piece in pieces_of(range(NUM_LAYERS))}
        hall.finish(self.engines)
        for engine, progress in self.expected(allowed, limit).items():
            self.check(engine, progress, exact)
        self.is_attempted = True
        if all(engine.ledger.is_whole(engine.layers, NUM_MICROBATCHES) for engine in self.engines):
            self.step += 1
            self.restart(data)

    def meet(self, max_in_flight: int) -> Hall:
        """Groups and sums of a new generation."""
        plan = [
            PipelinePlan(stages=pipeline.plan.stages, microbatches=tuple(part))
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
            engine.reduction = Reduction(
                view=view,
                groups=cast(dict[str, Group], groups),
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

    def check(self, engine: Engine, progress: Progress, exact: Mapping[Piece, list[int]]) -> None:
        """What an engine says of the sums of its layers is what they hold."""
        begun = engine.pieces[: progress.num_begun]
        complete = engine.pieces[: progress.num_complete]
        started = {piece.layer for piece in begun}
        ends = {piece.layer for piece in complete if piece.end == SIZES[piece.layer]}
        ledger = engine.ledger
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
        assert ledger.is_whole(engine.layers, NUM_MICROBATCHES) == whole

    def exact(self, piece: Piece) -> list[int]:
        """How often each microbatch will be in the sum of a piece."""
        owners = [engine for engine in self.engines if piece.layer in engine.layers]
        if any(owner.has_whole(piece) for owner in owners):
            return WHOLE
        return times(torch.stack([owner.sums.part(piece) for owner in owners]).sum(0))

    def expected(self, allowed: Allowed, limit: int) -> dict[Engine, Progress]:
        """How far every engine comes, each until it may not go on, or one that it waits for."""
        if len(self.pipelines) == 1:  # it needs nobody
            return {engine: self.expected_alone(engine, allowed) for engine in self.engines}
        done = {engine: Progress() for engine in self.engines}
        active = [engine for engine in self.engines if not engine.is_cut_early]
        for engine in [*active]:
            peers = [other for other in self.engines if {*other.layers} & {*engine.layers}]
            if self.is_attempted and any(peer.is_cut_early for peer in peers):
                told = len(list(takewhile(partial(self.was_told, engine), engine.pieces)))
                done[engine].num_begun = min(told, limit, allowed[engine][0])
                active.remove(engine)  # it waits for an answer that does not come
        is_changed = True
        while is_changed:
            before = [dataclasses.replace(progress) for progress in done.values()]
            active = [engine for engine in active if self.goes_on(engine, done, allowed, limit)]
            is_changed = before != [*done.values()]
        return done

    def expected_alone(self, engine: Engine, allowed: Allowed) -> Progress:
        """All or nothing: what is summed with nobody is not under way before it is complete."""
        is_through = not engine.is_cut_early and allowed[engine][0] >= len(engine.pieces)
        num_pieces = len(engine.pieces) if is_through else 0
        return Progress(num_begun=num_pieces, num_complete=num_pieces)

    def goes_on(
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

    def was_told(self, engine: Engine, piece: Piece) -> bool:
        """Whether all owners have said what is whole when its pass is over: they pass in turn."""
        so_far = self.engines[: self.engines.index(engine) + 1]
        return all(
            owner in so_far and not owner.is_cut_early
            for owner in self.engines
            if piece.layer in owner.layers
        )

    def restart(self, data: st.DataObject) -> None:
        self.is_attempted = False
        self.lost.clear()
        for pipeline in self.pipelines:
            pipeline.microbatches.clear()
            for engine in pipeline.engines:
                engine.begin_step(self.step, self.generation)
        self.share_out(MICROBATCHES, data)

    @invariant()
    def what_is_finished_is_in_the_local_sums_once(self) -> None:
        for pipeline in self.pipelines:
            for engine in pipeline.engines:
                finished = [engine.ledger.finished.count(m) for m in MICROBATCHES]
                totals = engine.sums.totals
                for piece in engine.pieces:
                    held = WHOLE if engine.has_whole(piece) else finished
                    assert times(totals[piece.layer][piece.start]) == held
                assert max(finished) <= 1
                still = tuple(m for m in pipeline.microbatches if not finished[m])
                assert engine.ledger.missing(pipeline.microbatches) == still


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=80, stateful_step_count=20)


def test_a_ledger_knows_what_a_microbatch_takes() -> None:
    """A step that computed nothing, as a follower's, says nothing of it."""
    ledger = Ledger(step=3, generation=1)
    assert ledger.usual_microbatch_seconds == 0.0
    ledger = ledger_behind(ledger, 1.5)
    assert (ledger.step, ledger.generation, ledger.finished) == (4, 1, [])
    assert ledger.usual_microbatch_seconds == 0.5
    assert ledger.behind(5, 2).usual_microbatch_seconds == 0.5


def test_one_slow_step_says_nothing_of_a_place_and_several_do() -> None:
    """Who is given more for it keeps that until the next plan."""
    ledger = ledger_behind(Ledger(step=0, generation=1), 1.5)
    for slow in range(1, NUM_RECENT_STEPS):
        ledger = ledger_behind(ledger, 3.0)
        assert ledger.usual_microbatch_seconds == 0.5, slow
    assert ledger_behind(ledger, 3.0).usual_microbatch_seconds == 1.0


def ledger_behind(ledger: Ledger, compute_seconds: float) -> Ledger:
    """Return the account behind a step of three microbatches that took so long."""
    ledger.finished.extend([0, 2, 5])
    ledger.compute_seconds = compute_seconds
    return ledger.behind(ledger.step + 1, ledger.generation)
