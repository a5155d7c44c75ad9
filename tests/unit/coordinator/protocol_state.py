"""What the model of the protocol is made of: engines, places, and everything at one moment."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from planaria_coordinator.domain.engines.directive import Activate, Command
from planaria_coordinator.domain.engines.outcome import HeldLayer, Outcome

T = TypeVar("T")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


NUM_LAYERS = 2


NUM_MICROBATCHES = 2


class ViolationError(AssertionError):
    """The protocol allowed what must never happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What engines keep to; each is taken away in turn to see that it is needed."""

    void_sums: bool = True
    """An Activate voids the sums of attempts that did not commit."""
    fence: bool = True
    """A report is a promise: no sum and no exchange until the next Activate."""
    clear_broken: bool = True
    """Gradients are cleared by an Activate that does not keep the step."""
    followers_sum: bool = True
    """Followers take part in the exchange, and so commit with everybody."""
    refuse_stale: bool = True
    """A directive of an older generation than the newest seen has no effect."""
    all_hold_the_mark: bool = True
    """A commit has a next generation only when everybody held its mark at the exchange."""
    follow_to_the_commit: bool = True
    """A place is taken when the layers followed have the commit behind which that happens."""
    keep_old_layers: bool = True
    """Layers of the place before are held until the first commit in the new one."""
    joiner_is_witness: bool = True
    """Who takes its first place behind a commit has that commit's record."""


class Lack(Enum):
    """Why an engine could not do what it was told."""

    SOURCE = auto()
    """Nobody has a layer for it, or no more in time."""
    GROUPS = auto()
    """A group could not be made."""


class Start(Enum):
    """That an engine has started; what it says of itself is no part of a state."""

    READY = auto()


Said = Outcome | Lack | Start
"""What an engine answers, as far as a state has it."""


class Place(NamedTuple):
    """What an Activate says, made ready for use."""

    generation: int
    committed_steps: int
    chains: tuple[tuple[str, ...], ...]
    shares: tuple[frozenset[int], ...]
    step_shares: tuple[frozenset[int], ...]
    keeps: tuple[bool, ...]
    """Of each chain: whether its engines run it already."""
    layers: tuple[tuple[str, frozenset[int]], ...]
    """Of every engine in it, followers included."""


History = tuple[tuple[int, int], ...]
"""Of each step: the generation whose sums it committed, and the next generation it named."""


class Followed(NamedTuple):
    """A layer that an engine receives with every commit."""

    layer: int
    source: int
    history: History


class Member(NamedTuple):
    """A living engine that has started."""

    generation: int
    place: int = -1
    """Number of the Activate applied last."""
    is_fenced: bool = False
    is_parked: bool = False
    steps: int = 0
    gradients: frozenset[int] = frozenset()
    mark: int = 0
    """Generation of the Quiesce or Switch that waits for a commit; 0: none."""
    switches: bool = False
    """The mark is that of a Switch."""
    staged: int = -1
    """Number of the Activate whose place is made ready."""
    has_told: bool = False
    """It has answered that Activate."""
    sums: int = 0
    """Generation of the complete sums of the step in flight; 0: none."""
    layers: tuple["History | None", ...] = (None,) * NUM_LAYERS
    """What made each layer; None: not held."""
    followed: tuple["Followed", ...] = ()
    """The layers that the staged place lacks, beside those it holds."""
    record: tuple[int, int, int] | None = None
    """Step, generation and next generation of the last commit."""
    num_kept: int = 0
    """How often its pipeline's communicators were kept: each time it does one exchange more."""


class State(NamedTuple):
    """Everything, at one moment."""

    run: int
    stored: int
    members: tuple[Member | None, ...]
    to_engines: tuple[tuple[tuple[int, Command], ...], ...]
    to_coordinator: tuple[tuple[tuple[str, int, Said], ...], ...]
    joined: frozenset[tuple[int, int, int, frozenset[int]]]
    """(place, step, engine, gradients): what was given to sums."""
    claimed: frozenset[tuple[int, int, int, int]]
    """(place, step, engine, mark): what was sent into the exchange."""
    unnoticed: frozenset[int]
    """The dead that nobody has told the coordinator of."""
    question: int
    """Number of the question that the planner has; -1: none."""
    num_faults: int
    num_crashes: int
    num_failures: int
    """How often somebody may yet be unable to make its place ready."""
    num_lacks: int
    """How often somebody may yet be unable to make its groups, whoever lives."""


def make_place(generation: int, activate: Activate) -> Place:
    stages = {
        s.engine_id: frozenset(range(s.first_layer, s.first_layer + s.num_layers))
        for p in activate.pipelines
        for s in p.stages
    }
    stages.update({f.engine_id: frozenset(f.layers) for f in activate.followers})
    return Place(
        generation=generation,
        committed_steps=activate.committed_steps,
        chains=tuple(tuple(s.engine_id for s in p.stages) for p in activate.pipelines),
        shares=tuple(frozenset(p.microbatches) for p in activate.pipelines),
        step_shares=tuple(
            frozenset(p.step_microbatches or p.microbatches) for p in activate.pipelines
        ),
        keeps=tuple(p.keeps_step for p in activate.pipelines),
        layers=tuple(sorted(stages.items())),
    )


def without_staged(member: Member) -> Member:
    """A newer generation has come: what an older one has made ready is dropped."""
    return member._replace(mark=0, switches=False, staged=-1, has_told=False, followed=())


def held(member: Member) -> tuple[HeldLayer, ...]:
    return tuple(
        HeldLayer(layer=layer, version=len(made_by))
        for layer, made_by in enumerate(member.layers)
        if made_by is not None
    )


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
