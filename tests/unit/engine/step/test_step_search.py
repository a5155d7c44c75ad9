"""[1] Every way in which a step of a small job can go, with the worker's own ledger and reduction.

Pipelines compute some microbatches, sum, are cut off or fenced at any piece of any sum, are lost,
and what they had is taken over by one that was whole, by one that is new, or by both: up to two
losses, and an attempt that ends somewhere in the middle (protocol/recovery.md). From every
state that comes of it the next attempt that nobody disturbs ends the step, each microbatch in every
sum once. States that are equal are gone on from once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import pytest

from unit.engine.step.steps import Pipeline, SmallJob
from unit.engine.step.summing import NUM_PIECES, Engine

NO_CUT = (NUM_PIECES, NUM_PIECES)
Cut = tuple[int, int] | None
"""How many sums an engine begins and waits for; None: it is fenced before anything starts."""


@dataclass(frozen=True, slots=True)
class Case:
    """A small job."""

    cuts: tuple[tuple[int, ...], ...]
    """Of the pipelines that it begins with: where their stages end."""
    new_cuts: tuple[int, ...]
    """Of one that is rebuilt."""
    max_in_flight: int
    num_losses: int
    num_disturbed: int
    every: int = 1
    """Of the ways in which an attempt may be disturbed, each so-many-th."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A pipeline computes a microbatch."""

    row: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """Everybody sums, each as far as it comes."""

    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class Lose:
    """A pipeline is lost; others take over what it had."""

    row: int
    is_regrown: bool
    """Whether one is made in its place, which takes every other microbatch; all if it is alone."""


Action = Compute | Attempt | Lose


class Search:
    """All states that actions lead to, each reached by playing all of them from the start."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.num_states = self.num_attempts = 0

    def run(self) -> None:
        """Go through all of them.

        Raises:
            AssertionError: something is not in a sum once, or a step does not end.
        """
        paths: list[tuple[Action, ...]] = [()]
        seen: set[object] = set()
        while paths:
            path = paths.pop()
            self.num_states += 1
            self._check_it_ends(path)
            num_losses = sum(isinstance(action, Lose) for action in path)
            num_disturbed = sum(isinstance(action, Attempt) for action in path)
            for action in self._next(self._play(path), num_losses, num_disturbed):
                world = self._play(path)
                if not self._act(world, action):
                    continue
                world.check_local_sums()
                lost = num_losses + isinstance(action, Lose)
                disturbed = num_disturbed + isinstance(action, Attempt)
                key = _key(world, lost, disturbed)
                if key not in seen:
                    seen.add(key)
                    paths.append((*path, action))

    def _next(self, world: SmallJob, num_losses: int, num_disturbed: int) -> Iterator[Action]:
        for row, pipeline in enumerate(world.pipelines):
            if pipeline.engines[0].progress.missing(pipeline.microbatches):
                yield Compute(row)
            if num_losses < self.case.num_losses:
                yield Lose(row, is_regrown=True)
                if len(world.pipelines) > 1:
                    yield Lose(row, is_regrown=False)
        if num_disturbed < self.case.num_disturbed:
            ways = product(*(_cuts(engine) for engine in world.engines))
            disturbed = (Attempt(cuts) for cuts in ways if any(cut != NO_CUT for cut in cuts))
            yield from islice(disturbed, None, None, self.case.every)

    def _play(self, path: Sequence[Action]) -> SmallJob:
        world = SmallJob()
        for cuts in self.case.cuts:
            world.make(cuts)
        world.deal()
        for action in path:
            self._act(world, action)
        return world

    def _act(self, world: SmallJob, action: Action) -> bool:
        """Return whether the step goes on: an attempt is not always cut where it still matters."""
        match action:
            case Compute(row):
                world.compute(world.pipelines[row])
            case Attempt(cuts):
                return not self._attempt(world, cuts)
            case Lose():
                self._lose(world, action)
        return True

    def _lose(self, world: SmallJob, action: Lose) -> None:
        world.lose(world.pipelines[action.row])
        if action.is_regrown:
            world.make(self.case.new_cuts)
        heirs = world.pipelines
        for number, microbatch in enumerate(world.lost):
            world.give(heirs[number % len(heirs)], microbatch)
        world.lost.clear()

    def _attempt(self, world: SmallJob, cuts: Sequence[Cut]) -> bool:
        self.num_attempts += 1
        by_engine = dict(zip(world.engines, cuts, strict=True))
        return world.attempt(
            {engine: cut or NO_CUT for engine, cut in by_engine.items()},
            cut_early=lambda engine: by_engine[engine] is None,
            max_in_flight=self.case.max_in_flight,
        )

    def _check_it_ends(self, path: Sequence[Action]) -> None:
        world = self._play(path)
        is_over = self._attempt(world, [NO_CUT] * len(world.engines))
        assert is_over, f"nobody disturbs it, and the step does not end: {path}"


def _cuts(engine: Engine) -> list[Cut]:
    """Every piece at which an engine may be stopped: before it is begun, or before it is there."""
    pieces = range(len(engine.pieces))
    return [NO_CUT, None, *((n, NUM_PIECES) for n in pieces), *((NUM_PIECES, n) for n in pieces)]


def _key(world: SmallJob, num_losses: int, num_disturbed: int) -> object:
    """What is equal where everything goes on alike."""
    pipelines = tuple(map(_key_of, world.pipelines))
    return (num_losses, num_disturbed, world.is_attempted, pipelines)


def _key_of(pipeline: Pipeline) -> object:
    engines = tuple(
        (
            engine.layers,
            frozenset(engine.progress.finished),
            tuple(sorted(engine.sums.num_complete.items())),
            tuple(tuple(total.tolist()) for _, total in sorted(engine.sums.totals.items())),
            frozenset(engine.progress.in_flight),
            tuple(sorted(engine.progress.complete.items())),
        )
        for engine in pipeline.engines
    )
    return (frozenset(pipeline.microbatches), engines)


EVEN = Case(cuts=((3,), (3,)), new_cuts=(3,), max_in_flight=2, num_losses=1, num_disturbed=1)
UNEVEN = replace(EVEN, cuts=((3,), (1, 3)))


@pytest.mark.parametrize(
    ("case", "least_states"),
    [
        pytest.param(replace(EVEN, every=7), 100, id="some-ways"),
        pytest.param(EVEN, 300, marks=pytest.mark.slow, id="even"),
        pytest.param(replace(EVEN, max_in_flight=1), 250, marks=pytest.mark.slow, id="one-by-one"),
        pytest.param(UNEVEN, 450, marks=pytest.mark.slow, id="uneven"),
        pytest.param(replace(EVEN, num_losses=2), 800, marks=pytest.mark.slow, id="two-losses"),
    ],
)
@pytest.mark.timeout(7200)
def test_every_way_of_a_step_ends_with_each_microbatch_once(case: Case, least_states: int) -> None:
    search = Search(case)
    search.run()
    print(f"{search.num_states} states, {search.num_attempts} attempts")
    assert search.num_states >= least_states
