"""What the model of an engine knows: its plan, its layers, the step in flight, the next plan."""

from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import NamedTuple

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import Activate, PlanCommand, StagePlan
from planaria_coordinator.domain.engines.outcome import Failure, HeldLayer, Outcome

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class ViolationError(AssertionError):
    """The protocol allowed what must never happen."""


class Rules:
    """What engines guarantee; `unit.guards.protocol` switches off one at a time."""

    void_sums: bool = True
    """An Activate voids the sums of attempts that did not commit."""
    fence: bool = True
    """After its report an engine joins no sum and no commit until the next Activate."""
    clear_broken: bool = True
    """An Activate that does not keep the step clears the gradients."""
    followers_sum: bool = True
    """Followers take part in the vote, and so commit with everybody."""
    refuse_stale: bool = True
    """A directive of an older generation than the newest seen has no effect."""
    all_hold_the_mark: bool = True
    """A commit names a next generation only when every vote carried its mark."""
    follow_to_the_commit: bool = True
    """An engine switches only when the layers it follows have reached the commit."""
    keep_old_layers: bool = True
    """An engine keeps the layers of its old assignment until the first commit in the new one."""
    joiner_is_witness: bool = True
    """An engine that joins at a commit has that commit's record."""


class Lack(Enum):
    """Why an engine could not carry out a directive."""

    SOURCE = auto()
    """No engine serves a layer."""
    GROUPS = auto()
    """A group could not be made."""


FAILURES = {
    Lack.SOURCE: Failure(reason=ErrorReason.COPY_FAILED, message="no source has the layer"),
    Lack.GROUPS: Failure(reason=ErrorReason.UNAVAILABLE, message="a peer was not there"),
}


class Start(Enum):
    """An engine has started; its description is not part of a state."""

    READY = auto()


Said = Outcome | Lack | Start
"""What an engine answers, as far as a state has it."""


class EnginePlan(NamedTuple):
    """What an Activate or a StagePlan tells every engine."""

    generation: int
    committed_steps: int
    chains: tuple[tuple[str, ...], ...]
    shares: tuple[frozenset[int], ...]
    step_shares: tuple[frozenset[int], ...]
    """Of each chain: its microbatches of the step in flight."""
    keeps: tuple[bool, ...]
    """Of each chain: whether its engines run it already."""
    layers: tuple[tuple[str, frozenset[int]], ...]
    """By engine, followers included."""


class Plans:
    """The plans that engines have been given, by number."""

    def __init__(self) -> None:
        self._plans: list[EnginePlan] = []
        self._numbers: dict[tuple[int, PlanCommand], int] = {}

    def number(self, generation: int, command: PlanCommand) -> int:
        """Return the number of a plan; which layers each engine lacks makes no difference."""
        shared = replace(command, layers=()) if isinstance(command, StagePlan) else command
        key = (generation, shared)
        number = self._numbers.setdefault(key, len(self._plans))
        if number == len(self._plans):
            self._plans.append(_plan(generation, command))
        return number

    def __getitem__(self, number: int) -> EnginePlan:
        return self._plans[number]


History = tuple[tuple[int, int], ...]
"""Of each step: the generation whose sums it committed, and the next generation it named."""


class Followed(NamedTuple):
    """A layer that an engine receives with every commit."""

    layer: int
    source: str
    """Address of the engine that sends it."""
    history: History


class Member(NamedTuple):
    """A living engine that has started."""

    layers: tuple[History | None, ...]
    """What made each layer; None: not held."""
    generation: int
    plan: int = -1
    """Number of the plan in force."""
    is_fenced: bool = False
    is_parked: bool = False
    steps: int = 0
    gradients: frozenset[int] = frozenset()
    """The microbatches of the step in flight in its local gradients."""
    mark: int = 0
    """Generation of the Quiesce or Switch that waits for a commit; 0: none."""
    switches: bool = False
    """The mark is that of a Switch."""
    staged: int = -1
    """Number of the plan that is staged."""
    has_told: bool = False
    """It has answered that StagePlan."""
    sums: int = 0
    """Generation of the complete sums of the step in flight; 0: none."""
    followed: tuple[Followed, ...] = ()
    """The layers that it lacks for the staged plan."""
    record: tuple[int, int, int] | None = None
    """Step, generation and next generation of the last commit."""
    is_back: bool = False
    """It was out of reach, and has had no assignment since."""
    num_kept: int = 0
    """How often its pipeline's communicators were kept: one more vote each time."""

    @property
    def is_training(self) -> bool:
        """Whether it has an assignment and is not parked; its steps may all be done."""
        return not self.is_parked and self.plan >= 0

    def without_staged(self) -> "Member":
        """Drop what an older generation has staged."""
        return self._replace(mark=0, switches=False, staged=-1, has_told=False, followed=())

    def held(self) -> tuple[HeldLayer, ...]:
        return tuple(
            HeldLayer(layer=layer, version=len(made_by))
            for layer, made_by in enumerate(self.layers)
            if made_by is not None
        )


def _plan(generation: int, command: PlanCommand) -> EnginePlan:
    layers = {
        s.engine_id: frozenset(range(s.first_layer, s.first_layer + s.num_layers))
        for p in command.pipelines
        for s in p.stages
    }
    layers.update({f.engine_id: frozenset(f.layers) for f in command.followers})
    return EnginePlan(
        generation=generation,
        committed_steps=command.committed_steps if isinstance(command, Activate) else 0,
        chains=tuple(tuple(s.engine_id for s in p.stages) for p in command.pipelines),
        shares=tuple(frozenset(p.microbatches) for p in command.pipelines),
        step_shares=tuple(
            frozenset(p.step_microbatches or p.microbatches) for p in command.pipelines
        ),
        keeps=tuple(p.keeps_step for p in command.pipelines),
        layers=tuple(sorted(layers.items())),
    )
