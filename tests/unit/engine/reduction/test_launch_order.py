"""All ranks start their all-reduces in one order, and nobody waits for ever.

Ranks of random plans run side by side in a simulation, each through its last backward pass, the
sums that it starts meanwhile, and those behind it. At worst a transport makes a rank wait within
the pass until all owners have come, and the gradient for the stage before it waits as well.
"""

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from planaria_worker.engine.plan.plan import FollowerAssignment, PipelineAssignment
from planaria_worker.engine.plan.plan_view import PlanView, view_plan
from planaria_worker.engine.reduction.complete_sums import cut_into_buckets
from planaria_worker.engine.reduction.launch_order import LaunchOrder
from unit.engine.plans import plans, tied, untied

Plan = tuple[list[PipelineAssignment], int, int]
Order = Callable[[PlanView, Sequence[tuple[int, ...]], int], LaunchOrder]


class MixedUpError(Exception):
    """Two owners add different buckets to each other."""


class DeadlockError(AssertionError):
    """Everybody waits."""


@dataclass(eq=False)
class Sum:
    """An all-reduce that some owners have started."""

    layers: tuple[int, ...]
    owners: tuple[str, ...]
    started: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return len(self.started) == len(self.owners)


@dataclass(eq=False)
class Transport:
    """Matches the n-th sum that each owner starts in a group."""

    sums: dict[tuple[str, ...], list[Sum]] = field(default_factory=dict)
    num_started: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    """Stages whose gradient has gone to the one before."""

    def start(self, engine: str, owners: tuple[str, ...], layers: tuple[int, ...]) -> Sum:
        place = self.num_started.get((engine, owners), 0)
        self.num_started[engine, owners] = place + 1
        group = self.sums.setdefault(owners, [])
        if place == len(group):
            group.append(Sum(layers=layers, owners=owners))
        if group[place].layers != layers:
            raise MixedUpError(f"{engine} adds {layers} to {group[place].layers}")
        group[place].started.add(engine)
        return group[place]


Program = Generator[Callable[[], bool], None, None]
"""Yields what it waits for."""


def rank(
    view: PlanView, transport: Transport, make: Order, *, bucket_size: int, blocks: bool, limit: int
) -> Program:
    """One rank's last backward pass and its sums."""
    sizes = {layer: 1 + layer % 2 for layer in view.hosted_layers}
    parts = [
        (run, tuple(dict.fromkeys(piece.layer for piece in pieces)))
        for run in view.owned_layers
        for pieces in cut_into_buckets(run.layers, sizes, bucket_size)
    ]
    order = make(view, [layers for _, layers in parts], limit)
    started: dict[int, Sum] = {}

    def start() -> Program:
        while True:
            running = sum(not one.is_over for one in started.values())
            place = order.take(running)
            if place is None:
                return
            run, layers = parts[place]
            one = started[place] = transport.start(view.engine_id, run.owners, layers)
            if blocks:
                yield lambda one=one: one.is_over  # type: ignore[misc]

    if not view.is_deciding:
        above = view.pipeline.stages[view.stage_index + 1].engine_id
        yield lambda: above in transport.sent
    if not view.is_follower:
        used_by_the_head = set(view.hosted_layers) - set(view.computed_layers)
        for layer in used_by_the_head:
            order.complete(layer)
    for layer in reversed(view.computed_layers):
        order.complete(layer)
        yield from start()
    transport.sent.add(view.engine_id)
    order.end_pass()
    for _ in parts:
        yield from start()
        oldest = next((one for one in started.values() if not one.is_over), None)
        if oldest is not None:
            yield lambda oldest=oldest: oldest.is_over  # type: ignore[misc]
    yield from start()
    assert len(started) == len(parts)
    yield lambda: all(one.is_over for one in started.values())


def simulate(
    plan: Plan,
    followers: Sequence[FollowerAssignment] = (),
    *,
    make: Order,
    is_tied: bool,
    seed: int,
    bucket_size: int = 1,
    blocks: bool = True,
    limit: int = 2,
) -> None:
    """Runs all ranks, whichever comes first.

    Raises:
        DeadlockError: they wait for each other.
        MixedUpError: they start the sums of a group in different orders.
    """
    pipelines, num_layers, num_microbatches = plan
    engines = [place.engine_id for pipeline in pipelines for place in pipeline.stages]
    transport = Transport()
    waits: dict[Program, Callable[[], bool]] = {}
    choice = random.Random(seed)
    for engine in [*engines, *(follower.engine_id for follower in followers)]:
        view = view_plan(
            pipelines,
            engine,
            num_layers=num_layers,
            num_microbatches=num_microbatches,
            hosted_layers=tied(num_layers) if is_tied else untied,
            followers=followers,
        )
        program = rank(view, transport, make, bucket_size=bucket_size, blocks=blocks, limit=limit)
        waits[program] = lambda: True
    while waits:
        ready = [program for program, is_over in waits.items() if is_over()]
        if not ready:
            raise DeadlockError(f"{len(waits)} ranks wait")
        program = choice.choice(ready)
        try:
            waits[program] = next(program)
        except StopIteration:
            del waits[program]


def right(_: PlanView, buckets: Sequence[tuple[int, ...]], limit: int) -> LaunchOrder:
    return LaunchOrder(buckets, limit)


@st.composite
def followers_of(draw: st.DrawFn, num_layers: int) -> list[FollowerAssignment]:
    layers = st.sets(st.integers(0, num_layers - 1), min_size=1)
    return [
        FollowerAssignment(engine_id=f"f{n}", data_address="", layers=tuple(sorted(draw(layers))))
        for n in range(draw(st.integers(0, 2)))
    ]


@settings(max_examples=150)
@given(plans(), st.data())
def test_all_ranks_start_in_one_order_without_deadlock(plan: Plan, data: st.DataObject) -> None:
    simulate(
        plan,
        data.draw(followers_of(plan[1])),
        make=right,
        is_tied=plan[1] > 1 and data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 99)),
        bucket_size=data.draw(st.integers(1, 3)),
        blocks=data.draw(st.booleans()),
        limit=data.draw(st.integers(1, 3)),
    )


class LowestFirst(LaunchOrder):
    """Forgets the order of the passes: nothing starts before the end, then the lowest first."""

    def take(self, num_in_flight: int) -> int | None:
        place = super().take(num_in_flight) if self._is_pass_over else None
        return None if place is None else len(self._buckets) - 1 - place


def lowest_first_in_one_pipeline(
    view: PlanView, buckets: Sequence[tuple[int, ...]], limit: int
) -> LaunchOrder:
    return (LowestFirst if view.row == 0 else LaunchOrder)(buckets, limit)


class NoneWaits(LaunchOrder):
    """What the last layer completes starts within the pass."""

    def _may_start_early(self, bucket: tuple[int, ...]) -> bool:
        return self._incomplete.isdisjoint(bucket)


def tied_layers_start_early(
    _: PlanView, buckets: Sequence[tuple[int, ...]], limit: int
) -> LaunchOrder:
    return NoneWaits(buckets, limit)


@pytest.mark.parametrize(
    ("make", "is_tied", "error"),
    [
        (lowest_first_in_one_pipeline, False, MixedUpError),
        (lowest_first_in_one_pipeline, False, DeadlockError),
        (tied_layers_start_early, True, DeadlockError),
    ],
)
def test_another_order_is_found_out(make: Order, is_tied: bool, error: type[Exception]) -> None:
    def fails(plan: Plan) -> bool:
        try:
            simulate(plan, make=make, is_tied=is_tied and plan[1] > 1, seed=0)
        except (MixedUpError, DeadlockError) as found:
            return isinstance(found, error)
        return False

    find(plans(), fails, settings=settings(max_examples=500, database=None))


def test_a_bucket_waits_for_those_before_it_and_for_room() -> None:
    order = LaunchOrder([(4, 3), (2,), (1,)], max_in_flight=1)
    order.complete(2)
    order.complete(4)
    assert order.take(0) is None
    order.complete(3)
    assert order.take(0) == 0
    assert order.take(1) is None
    assert order.take(0) == 1
    assert order.take(0) is None


def test_sums_completed_by_the_last_layer_wait_for_the_end_of_the_pass() -> None:
    """The stage before waits for the gradient that comes of it."""
    order = LaunchOrder([(4,), (3,)], max_in_flight=2)
    order.complete(4)
    assert order.take(0) == 0
    order.complete(3)
    assert order.take(1) is None
    order.end_pass()
    assert order.take(1) == 1
