"""[1] The ledger against the numbers themselves, whatever is lost, fenced and taken over in a step.

Each microbatch adds 1 to a hexadecimal digit of its own: a sum says what is in it, and how often.
Pipelines compute, sum and break off in any order; ledger and reduction are the real ones.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from planaria_worker.engine import reduction
from planaria_worker.engine.communication import Group, GroupBroken
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.ledger import NUM_RECENT_STEPS, Ledger
from planaria_worker.engine.plan import PipelinePlan
from planaria_worker.engine.plan_view import GroupSpec, view_plan
from planaria_worker.engine.reduction import Reduction
from planaria_worker.engine.stopwatch import Stopwatch
from unit.engine.plans import pipeline as pipeline_plan
from unit.engine.plans import untied

NUM_LAYERS = 3
NUM_MICROBATCHES = 5
MAX_PIPELINES = 3
CUTS = ([3], [1, 3], [2, 3], [1, 2, 3])
WHOLE = [1] * NUM_MICROBATCHES
MICROBATCHES = range(NUM_MICROBATCHES)
Parts = dict[tuple[str, int], list[Tensor]]
"""What the members of each group have given for its n-th sum."""


def times(total: Tensor) -> list[int]:
    """How often each microbatch is in a sum."""
    return [(int(total) >> (4 * m)) & 15 for m in MICROBATCHES]


@dataclass(kw_only=True, eq=False)
class Engine:
    """One stage, with all that it keeps of a step."""

    engine_id: str
    layers: range
    ledger: Ledger = field(init=False)
    local: dict[int, Tensor] = field(init=False)
    reduction: Reduction | None = None
    starts_left: int = 0
    """All-reduces that it may begin before it is fenced."""
    sums_left: int = 0
    """Those that it waits for before it is cut off."""

    def __post_init__(self) -> None:
        self.local = {layer: torch.zeros(1, dtype=torch.int64) for layer in self.layers}

    def begin_step(self, step: int, generation: int) -> None:
        self.ledger = Ledger(step=step, generation=generation)
        for total in self.local.values():
            total.zero_()

    def compute(self, microbatch: int, summed: Reduction | None = None) -> None:
        """One backward pass; behind the last one sums begin."""
        for layer in reversed(self.layers):
            self.local[layer] += 1 << (4 * microbatch)
            if summed is not None:
                summed.complete(layer)
        self.ledger.finished.append(microbatch)

    def begin_attempt(self, generation: int, microbatches: Sequence[int]) -> None:
        """As step.compute does, or step.attempt where nothing is left to compute."""
        assert self.reduction is not None
        missing = self.ledger.missing(microbatches)
        for microbatch in missing[:-1]:
            self.compute(microbatch)
        self.ledger.begin_attempt(generation)
        self.reduction.begin(self.ledger, self._check, missing[-1:])
        for microbatch in missing[-1:]:
            self.compute(microbatch, self.reduction)
        for layer in reversed(self.layers):
            self.reduction.complete(layer)

    def finish_attempt(self) -> None:
        assert self.reduction is not None
        with contextlib.suppress(FencedError, GroupBroken):
            self.reduction.run()

    def _check(self) -> None:
        if not self.starts_left:
            raise FencedError(self.ledger.generation, self.ledger.generation + 1)
        self.starts_left -= 1


class Meeting:
    """A group in memory, whose sums wait for nobody: what is not there is cut off."""

    is_shut = False

    def __init__(self, spec: GroupSpec, engine: Engine, parts: Parts) -> None:
        self.name = spec.name
        self._size = len(spec.members)
        self._engine = engine
        self._parts = parts
        self._num_started = 0

    def iall_reduce(self, buffer: Tensor) -> "Sum":
        parts = self._parts.setdefault((self.name, self._num_started), [])
        self._num_started += 1
        parts.append(buffer.clone())
        return Sum(engine=self._engine, buffer=buffer, parts=parts, size=self._size)


@dataclass(kw_only=True)
class Sum:
    """An all-reduce under way."""

    engine: Engine
    buffer: Tensor
    parts: list[Tensor]
    size: int
    is_over = False

    def wait(self) -> None:
        if not self.engine.sums_left or len(self.parts) < self.size:
            raise GroupBroken("cut")
        self.engine.sums_left -= 1
        self.buffer.copy_(torch.stack(self.parts).sum(0))


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """Engines that make the same passes."""

    plan: PipelinePlan
    engines: list[Engine]
    microbatches: list[int]
    """Of the step in flight: computed, or still to be."""


class Steps(RuleBasedStateMachine):
    """Pipelines of any cuts; the coordinator is as foolish as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(reduction, "BUCKET_BYTES", 1)  # a bucket for each layer
        self.step = self.generation = self.num_made = 0
        self.pipelines: list[Pipeline] = []
        self.lost: list[int] = []
        """Microbatches whose pipeline is gone."""

    def teardown(self) -> None:
        self.patch.undo()

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
        self.meet()
        numbers = st.integers(0, NUM_LAYERS) if is_disturbed else st.just(NUM_LAYERS)
        allowed = {engine: (data.draw(numbers), data.draw(numbers)) for engine in self.engines}
        for pipeline in self.pipelines:
            for engine in pipeline.engines:
                engine.starts_left, engine.sums_left = allowed[engine]
                engine.begin_attempt(self.generation, pipeline.microbatches)
        for engine in self.engines:
            engine.finish_attempt()
        for engine in self.engines:
            self.check(engine, allowed)
        if all(engine.ledger.is_whole(engine.layers, NUM_MICROBATCHES) for engine in self.engines):
            self.step += 1
            self.restart(data)

    def meet(self) -> None:
        """Groups and sums of a new generation."""
        plan = [
            PipelinePlan(stages=pipeline.plan.stages, microbatches=tuple(part))
            for row, pipeline in enumerate(self.pipelines)
            if (part := MICROBATCHES[row :: len(self.pipelines)])
        ]
        parts: Parts = {}
        for engine in self.engines:
            view = view_plan(
                plan,
                engine.engine_id,
                num_layers=NUM_LAYERS,
                num_microbatches=NUM_MICROBATCHES,
                hosted_layers=untied,
            )
            groups = {spec.name: Meeting(spec, engine, parts) for spec in view.owner_groups}
            engine.reduction = Reduction(
                view=view,
                groups=cast(dict[str, Group], groups),
                local=engine.local,
                sizes=dict.fromkeys(engine.layers, 1),
                squared_norm=lambda _layer, total: float(total),
                dtype=torch.int64,
                device=torch.device("cpu"),
                num_microbatches=NUM_MICROBATCHES,
                max_in_flight=NUM_LAYERS,
                stopwatch=Stopwatch(),
                failpoints=Failpoints(),
            )

    def check(self, engine: Engine, allowed: dict[Engine, tuple[int, int]]) -> None:
        """What an engine says of the sums of its layers is what they hold."""
        started, complete = self.expected(engine, allowed)
        ledger = engine.ledger
        assert ledger.generation == self.generation
        assert ledger.in_flight == started - complete
        assert ledger.complete.keys() == complete
        whole = []
        for layer in engine.layers:
            exact = times(torch.stack(self.locals(layer)).sum(0))
            if layer in complete:
                assert engine.reduction is not None
                assert times(engine.reduction.reduced[layer]) == exact
                assert ledger.complete[layer] == exact.count(1)
            whole.append(layer in complete and exact == WHOLE)
        assert ledger.is_whole(engine.layers, NUM_MICROBATCHES) == all(whole)

    def locals(self, layer: int) -> list[Tensor]:
        return [engine.local[layer] for engine in self.engines if layer in engine.layers]

    def expected(
        self, engine: Engine, allowed: dict[Engine, tuple[int, int]]
    ) -> tuple[set[int], set[int]]:
        """Layers whose sums are on their way or complete, and those that are complete."""
        starts, sums_left = allowed[engine]
        is_shared = len(self.pipelines) > 1
        begun = [*reversed(engine.layers)][:starts]
        complete: set[int] = set()
        if len(begun) == len(engine.layers):
            for place, layer in enumerate(begun):
                others = [other for other in self.engines if layer in other.layers]
                is_there = all(layer in [*reversed(o.layers)][: allowed[o][0]] for o in others)
                if is_shared and (not is_there or place >= sums_left):
                    break
                complete.add(layer)
        return (set(begun) if is_shared else complete), complete

    def restart(self, data: st.DataObject) -> None:
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
                assert all(times(total) == finished for total in engine.local.values())
                assert max(finished) <= 1
                still = tuple(m for m in pipeline.microbatches if not finished[m])
                assert engine.ledger.missing(pipeline.microbatches) == still


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=50, stateful_step_count=20)


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
