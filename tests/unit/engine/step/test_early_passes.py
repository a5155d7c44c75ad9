"""A pipeline whose stages learn at different moments that they finish the step of a lost pipeline.

Threads, and groups in memory; schedule, stages and two-phase commit are the real ones. Each stage
gets the next plan of the step at any of its actions, or when it is parked. At whatever moment that
is, each stage receives what its neighbour sent for this very pass, no stage waits for ever, and the
model is that of a pipeline that had all microbatches from the start.
"""

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.groups import Communicators, GroupBroken, Groups
from planaria_worker.engine.job import Job
from planaria_worker.engine.plan.plan import PipelineAssignment
from planaria_worker.engine.plan.plan_view import view_plan
from planaria_worker.engine.step.training_context import TrainingContext, renew_context
from planaria_worker.engine.step.training_step import CommittedStep, attempt, begin_step, compute
from planaria_worker.engine.step_progress import StepProgress
from support import memory_groups
from support.memory_groups import MemoryGroup
from unit.engine.contexts import GENERATION, build_contexts, make_job, run_one_step
from unit.engine.plans import pipeline, untied

ALL = (0, 1, 2, 3, 4)
PLANS = ((0, 3), (0, 2, 3), ALL)
"""What the pipeline has in each plan of the step: its own, and what is lost twice."""
LOST = [pipeline(1, [5], [])]
CUTS = {2: [2, 5], 3: [1, 3, 5], 4: [1, 2, 3, 5]}
AT_REST = 1_000
"""A stage gets the plan only when nothing is left to do."""


class DeafGroup(MemoryGroup):
    """Its transport does not say whether a message has come."""

    def has_message(self, src: int) -> bool:
        return False


class SlowGroup(MemoryGroup):
    """Its messages leave only when they are received: they are larger than all buffers."""

    def __init__(self, *shared_and_rank: Any) -> None:
        super().__init__(*shared_and_rank)
        self._num_sent: Counter[int] = Counter()

    def isend(self, tensor: Tensor, dst: int) -> Any:
        self.send(tensor, dst)
        self._num_sent[dst] += 1
        return Sending(group=self, dst=dst, number=self._num_sent[dst])

    def num_received(self, dst: int) -> int:
        """How many of the messages to a rank it has taken."""
        return self._num_sent[dst] - self._shared.mail[self.rank, dst].qsize()


@dataclass(frozen=True, kw_only=True)
class Sending:
    """A message that has not left before it is received."""

    group: SlowGroup
    dst: int
    number: int

    @property
    def is_over(self) -> bool:
        return self.group.num_received(self.dst) >= self.number

    def wait(self) -> None:
        end = time.monotonic() + memory_groups.TIMEOUT_SECONDS
        while not self.is_over:
            assert time.monotonic() < end, "nobody receives it"
            time.sleep(0.0002)


KINDS = (MemoryGroup, DeafGroup, SlowGroup)


class Awaited:
    """The groups across the pipelines, of which there are none, or which are lost."""

    is_over = True

    def __init__(self, *, are_lost: bool) -> None:
        self._are_lost = are_lost

    def wait(self) -> Groups:
        if self._are_lost:
            raise GroupBroken("another pipeline was lost")
        return Groups(links={}, data_parallel={})


class Crew:
    """A pipeline's engines; each gets a plan when all engines have the plan before."""

    def __init__(
        self,
        job: Job,
        plans: Sequence[tuple[int, ...]],
        moments: Sequence[Sequence[int]],
        kind: type[MemoryGroup] = MemoryGroup,
    ) -> None:
        """Build the contexts.

        Args:
            job: five microbatches of five layers.
            plans: what the pipeline has in each plan of the step.
            moments: for each stage and each plan but the first, behind how many actions it is told.
            kind: of groups.
        """
        self.job = job
        self._plans = [_plan(CUTS[len(moments)], microbatches) for microbatches in plans]
        self.contexts = build_contexts(job, self._plans[0], kind)[: len(moments)]
        self.passes: list[list[tuple[str, int]]] = [[] for _ in moments]
        self.holds: dict[tuple[int, str, int], tuple[int, str, int]] = {}
        """Passes of stages that begin only when others have begun."""
        self._moments = moments
        self._num_actions = [0] * len(moments)
        self._num_told = [0] * len(moments)
        self._changed = threading.Condition()
        for stage, context in enumerate(self.contexts):
            context.resources.fence.fence(GENERATION + 1)
            cast(Any, context.resources.failpoints).hit = self._hook(stage)

    def run(self) -> list[CommittedStep]:
        """The whole step, each stage on a thread."""
        with ThreadPoolExecutor(len(self.contexts)) as threads:
            return list(threads.map(self._run, range(len(self.contexts))))

    def _run(self, stage: int) -> CommittedStep:
        context = self.contexts[stage]
        begin_step(context, 0)
        while True:
            compute(context, context.progress.missing(context.view.pipeline.step_microbatches))
            done = attempt(context)
            if isinstance(done, CommittedStep):
                context.resources.fence.settle()
                return done
            if not context.next_plans:
                self._wait_and_tell(stage)
            generation = context.generation + 1
            renew_context(
                context,
                view=context.next_plans.popleft(),
                generation=generation,
                groups_being_built=cast(Communicators, Awaited(are_lost=generation < self._last)),
                resumed_step=0,
            )

    @property
    def _last(self) -> int:
        return GENERATION + len(self._plans) - 1

    def _hook(self, stage: int) -> Callable[..., None]:
        def hit(at: str, step: int | None = None, microbatch: int | None = None) -> None:
            if at in ("forward", "backward") and microbatch is not None:
                self.passes[stage].append((at, microbatch))
            with self._changed:
                self._num_actions[stage] += 1
                while self._may_tell(stage, self._num_actions[stage]):
                    self._tell(stage)
                self._changed.notify_all()
                if microbatch is not None and (stage, at, microbatch) in self.holds:
                    other, *begun = self.holds[stage, at, microbatch]
                    assert self._changed.wait_for(lambda: (*begun,) in self.passes[other], 5)

        return hit

    def _wait_and_tell(self, stage: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._may_tell(stage, AT_REST), 10)
            self._tell(stage)

    def _may_tell(self, stage: int, num_actions: int) -> bool:
        told = self._num_told[stage]
        is_due = told < len(self._plans) - 1 and self._moments[stage][told] <= num_actions
        return is_due and min(self._num_told) >= told

    def _tell(self, stage: int) -> None:
        self._num_told[stage] += 1
        plan, context = self._plans[self._num_told[stage]], self.contexts[stage]
        for each in self.contexts:  # nobody is told of a plan before all are fenced for it
            if each.resources.fence.newest < GENERATION + self._num_told[stage]:
                each.resources.fence.fence(GENERATION + self._num_told[stage])
        context.next_plans.append(
            view_plan(
                plan,
                context.view.engine_id,
                num_layers=self.job.num_layers,
                num_microbatches=self.job.num_microbatches,
                hosted_layers=untied,
            )
        )


def _plan(cuts: Sequence[int], microbatches: tuple[int, ...]) -> list[PipelineAssignment]:
    rest = tuple(m for m in ALL if m not in microbatches)
    kept = dataclasses.replace(pipeline(0, cuts, microbatches), keeps_step=True)
    return [kept, *(dataclasses.replace(lost, microbatches=rest) for lost in LOST if rest)]


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A job, and what its first step comes to when nothing happens."""

    job: Job
    parameters: dict[int, Tensor]
    record: CommitRecord


def undisturbed(folder: Path, **options: Any) -> Undisturbed:
    job = make_job(folder, {"family": "llama", **options}, reproducible=True)
    done = run_one_step(job, [pipeline(0, CUTS[2], ALL)])
    found = parameters([context for context, _ in done])
    return Undisturbed(job=job, parameters=found, record=done[0][1].record)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def evaluating(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    held_out = {"every_steps": 1, "fraction": 0.3, "num_sequences": 14}
    return undisturbed(tmp_path_factory.mktemp("evaluating"), evaluation=held_out)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_groups, "TIMEOUT_SECONDS", 10.0)


def parameters(contexts: Sequence[TrainingContext]) -> dict[int, Tensor]:
    """Of every layer."""
    return {
        layer: state.parameters
        for context in contexts
        for layer, state in context.resources.store.states.items()
    }


def check(crew: Crew, expected: Undisturbed) -> None:
    """Run the step: each stage makes each pass once, and the model is the undisturbed one."""
    committed = crew.run()
    found = parameters(crew.contexts)
    assert found.keys() == expected.parameters.keys()
    assert all(torch.equal(found[layer], each) for layer, each in expected.parameters.items())
    for step in committed:
        assert step.record.gradient_norm == expected.record.gradient_norm
        assert step.record.evaluation_loss == expected.record.evaluation_loss
    for context, passes in zip(crew.contexts, crew.passes, strict=True):
        assert sorted(passes) == sorted((at, m) for m in ALL for at in ("forward", "backward"))
        in_flight = most = 0
        for at, _ in passes:
            in_flight += 1 if at == "forward" else -1
            most = max(most, in_flight)
        assert most <= len(crew.contexts) - context.view.stage_index


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [MemoryGroup, SlowGroup])
def test_a_round_may_reach_two_stages_at_any_moment(
    plain: Undisturbed, kind: type[MemoryGroup], every: int
) -> None:
    num_actions = 8  # of a stage with two microbatches: all places are tried, or some
    for first in (*range(1, num_actions, every), AT_REST):
        for second in (*range(1, num_actions, every), AT_REST):
            check(Crew(plain.job, (PLANS[0], ALL), [[first], [second]], kind), plain)


MOMENTS = st.one_of(st.integers(1, 30), st.just(AT_REST))


@pytest.mark.parametrize("num_examples", [25, pytest.param(50, marks=pytest.mark.slow)])
def test_rounds_may_reach_every_stage_at_any_moment(plain: Undisturbed, num_examples: int) -> None:
    @settings(max_examples=num_examples, deadline=None, phases=(Phase.reuse, Phase.generate))
    @given(num_stages=st.integers(2, 4), data=st.data())
    def search(num_stages: int, data: st.DataObject) -> None:
        plans = data.draw(st.sampled_from([PLANS, (PLANS[0], ALL), ((3,), PLANS[1], ALL)]))
        moments = [[data.draw(MOMENTS) for _ in plans[1:]] for _ in range(num_stages)]
        check(Crew(plain.job, plans, moments, data.draw(st.sampled_from(KINDS))), plain)

    search()


def test_the_pipeline_stays_full(plain: Undisturbed) -> None:
    """A stage that gets the plan in time begins the next round before its own last backward pass,
    and the next stage continues it. Guard: an attempt that cannot commit is aborted at once."""
    crew = Crew(plain.job, (PLANS[0], ALL), [[1], [1]])
    crew.holds[0, "backward", 3] = 1, "forward", 1
    check(crew, plain)
    assert [m for at, m in crew.passes[1] if at == "backward"] == [0, 3, 1, 2, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_with_the_next_round_does_not_wait_for_one_without(
    plain: Undisturbed, kind: type[MemoryGroup]
) -> None:
    """Guards: a stage begins the next round only with input that has come, since the stage before
    may wait for it; and it does not wait until an early send is received, since the stage after may
    not know of the round."""
    for told in ([AT_REST, 1, 1, AT_REST], [1, AT_REST, AT_REST, AT_REST]):
        check(Crew(plain.job, (PLANS[0], ALL), [[moment] for moment in told], kind), plain)


def test_nothing_comes_before_an_evaluation(evaluating: Undisturbed) -> None:
    """Guard: a round begins with the evaluation, so no activations may be sent before it."""
    for first in (1, AT_REST):
        for second in (1, AT_REST):
            check(Crew(evaluating.job, (PLANS[0], ALL), [[first], [second]]), evaluating)


def test_the_pass_begun_early_is_the_next_one(plain: Undisturbed) -> None:
    """Guard: a stage must not take the activations of one microbatch for those of another."""
    (context, *_) = build_contexts(plain.job, [pipeline(0, CUTS[2], ALL)])
    begin_step(context, 0)
    assert context.pipeline is not None
    for step, begun in [(0, [3]), (1, [1])]:  # the other microbatch; the one of another step
        context.pipeline._begun = begun
        context.pipeline._progress = StepProgress(step=0, generation=GENERATION)
        begin_step(context, step)
        with pytest.raises(RuntimeError, match="begun"):
            compute(context, (1, 3))
