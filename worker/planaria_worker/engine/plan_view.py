"""What a plan means for one engine: its stage, the groups it joins and what it sums with whom.

Everything follows from the plan alone, so that all engines of a generation name the same groups in
the same order without talking to each other first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

HostedLayers = Callable[[int, int], Sequence[int]]
"""From (first layer, number of layers) of a stage to the layers whose state it needs: its own, and
the owner of a parameter that is tied to one of them (`models.stage.hosted_layers`)."""


_DIGIT = 1024
"""Base of the counts; the sum of two digits is exact in float32."""


class PlanError(ValueError):
    """A plan that cannot be run; one line that says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """A stage and the engine that runs it."""

    engine_id: str
    data_address: str
    first_layer: int
    num_layers: int

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A pipeline's stages in layer order, and the microbatches it runs in each step."""

    stages: tuple[StagePlace, ...]
    microbatches: tuple[int, ...]
    step_microbatches: tuple[int, ...] = ()
    """Those of the step in flight, when they are others than `microbatches`."""
    keeps_step: bool = False
    """The pipeline is the one that its engines run now, with what they have computed."""

    @property
    def first_microbatches(self) -> tuple[int, ...]:
        """What it runs, or has run, in the step in flight."""
        return self.step_microbatches or self.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerPlace:
    """An engine that holds layers and computes nothing: it adds zero to their sums."""

    engine_id: str
    data_address: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group to be made; the ranks are the places in `members`."""

    name: str
    members: tuple[str, ...]
    is_line: bool = False
    """Whether members send messages to their neighbours, and sum nothing: a pipeline's group."""

    def rank(self, engine_id: str) -> int:
        return self.members.index(engine_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Layers that the same engines own, summed by one all-reduce.

    A layer that owns a tied parameter gets a gradient from each of the layers that use it, so every
    microbatch is counted once for each use, in a digit of its own: two of one use are not mistaken
    for one of each.
    """

    layers: tuple[int, ...]
    owners: tuple[str, ...]
    """Engine ids in the order of pipelines and stages, then of followers."""
    users: tuple[int, ...]
    """Layers that use the run's parameters: only a tied layer has more than itself."""

    @property
    def is_tied(self) -> bool:
        """Whether several layers use its parameters."""
        return len(self.users) > 1

    @property
    def whole_count(self) -> int:
        """What a microbatch counts when it is in the sum once for each use."""
        return self.count(range(max(self.users) + 1))

    def count(self, own_layers: range) -> int:
        """What a microbatch counts that an engine with these layers adds."""
        if not self.is_tied:
            return 1
        return sum(_DIGIT**place for place, user in enumerate(self.users) if user in own_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan, seen from one engine."""

    engine_id: str
    pipelines: tuple[PipelinePlan, ...]
    followers: tuple[FollowerPlace, ...]
    row: int
    """Its place in the exchange across: its pipeline's, or a follower's behind all of them."""
    stage_index: int
    """In its pipeline; 0 for a follower."""
    hosted_layers: tuple[int, ...]
    runs: tuple[Run, ...]
    """Those this engine sums, in the order in which everybody sums them."""
    forward_group: GroupSpec | None
    """Activations, and the exchange on its way up; None for a pipeline of one stage."""
    backward_group: GroupSpec | None
    """Gradients, and the verdict on its way down; the same group unless directions are separate."""
    owner_groups: tuple[GroupSpec, ...]
    """All-reduce of runs; one for each set of owners with more than one member."""
    last_ranks_group: GroupSpec | None
    """Exchange across pipelines and followers; None for other stages than the last, and where one
    pipeline is alone."""

    @property
    def is_follower(self) -> bool:
        return self.row >= len(self.pipelines)

    @property
    def pipeline(self) -> PipelinePlan:
        """That of this engine; IndexError for a follower."""
        return self.pipelines[self.row]

    @property
    def stage(self) -> StagePlace:
        """That of this engine; IndexError for a follower."""
        return self.pipeline.stages[self.stage_index]

    @property
    def computed_layers(self) -> range:
        """Layers whose gradients it computes: none for a follower."""
        return range(0) if self.is_follower else self.stage.layers

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether nobody is above it in the exchange."""
        return self.is_follower or self.stage_index == len(self.pipeline.stages) - 1

    @property
    def keeps_step(self) -> bool:
        return not self.is_follower and self.pipeline.keeps_step

    @property
    def pipeline_groups(self) -> tuple[GroupSpec, ...]:
        """Those along the pipeline: they outlive the generation when the pipeline is kept."""
        return _once(self.forward_group, self.backward_group)

    @property
    def sum_groups(self) -> tuple[GroupSpec, ...]:
        """Those across the pipelines, made anew in every generation."""
        return _once(*self.owner_groups, self.last_ranks_group)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """All groups, each once, in the one order in which every engine makes its groups."""
        return self.pipeline_groups + self.sum_groups

    @property
    def peers(self) -> dict[str, str]:
        """Data addresses of the engines it shares a group with, by engine id."""
        ids = {member for group in self.groups for member in group.members} - {self.engine_id}
        places: list[StagePlace | FollowerPlace] = [*_places(self.pipelines), *self.followers]
        return {place.engine_id: place.data_address for place in places if place.engine_id in ids}

    def owner_group(self, run: Run) -> GroupSpec | None:
        """The group that sums a run; None when this engine alone owns it."""
        return next((group for group in self.owner_groups if group.members == run.owners), None)


def view_plan(
    pipelines: Sequence[PipelinePlan],
    engine_id: str,
    *,
    num_layers: int,
    num_microbatches: int,
    hosted_layers: HostedLayers,
    followers: Sequence[FollowerPlace] = (),
    separate_directions: bool = False,
) -> PlanView:
    """Finds an engine's place in a plan.

    Args:
        pipelines: the plan.
        engine_id: who asks.
        num_layers: layers of the model.
        num_microbatches: microbatches of a step.
        hosted_layers: layers whose state a stage needs.
        followers: engines that take part in sums and exchange without computing.
        separate_directions: whether activations and gradients need groups of their own, because the
            transport does the operations of one group strictly one after the other (NCCL): there,
            two neighbours that send to each other in one group would wait for each other.

    Raises:
        PlanError: the plan leaves out or repeats a layer, a microbatch or an engine, or has no
            place for this one.
    """
    check_plan(pipelines, followers, num_layers=num_layers, num_microbatches=num_microbatches)
    row, stage_index = _find(pipelines, followers, engine_id)
    if row < len(pipelines):
        stage = pipelines[row].stages[stage_index]
        hosted = tuple(hosted_layers(stage.first_layer, stage.num_layers))
    else:
        hosted = followers[row - len(pipelines)].layers
    runs = find_runs(pipelines, num_layers, hosted_layers, followers)

    forward_group = _pipeline_group(pipelines, row, "forward")
    backward_group = forward_group
    if separate_directions:
        backward_group = _pipeline_group(pipelines, row, "backward")
    last_ranks = _last_ranks_group(pipelines, followers)
    if last_ranks is not None and engine_id not in last_ranks.members:
        last_ranks = None
    return PlanView(
        engine_id=engine_id,
        pipelines=tuple(pipelines),
        followers=tuple(followers),
        row=row,
        stage_index=stage_index,
        hosted_layers=hosted,
        runs=tuple(run for run in runs if engine_id in run.owners),
        forward_group=forward_group,
        backward_group=backward_group,
        owner_groups=tuple(g for g in _owner_groups(runs) if engine_id in g.members),
        last_ranks_group=last_ranks,
    )


def find_runs(
    pipelines: Sequence[PipelinePlan],
    num_layers: int,
    hosted_layers: HostedLayers,
    followers: Sequence[FollowerPlace] = (),
) -> tuple[Run, ...]:
    """Cuts the model where the set of owners changes; the run with the highest first layer first.

    One order for all, or two pipelines that are cut differently wait for each other for ever
    (ALGORITHMS.md 6).
    """
    owners: list[list[str]] = [[] for _ in range(num_layers)]
    for place in _places(pipelines):
        for layer in hosted_layers(place.first_layer, place.num_layers):
            owners[layer].append(place.engine_id)
    for follower in followers:
        for layer in follower.layers:
            owners[layer].append(follower.engine_id)
    users = [_users(layer, num_layers, hosted_layers) for layer in range(num_layers)]
    cuts = groupby(range(num_layers), key=lambda layer: (owners[layer], len(users[layer])))
    groups = [tuple(layers) for _, layers in cuts]
    return tuple(
        Run(layers=layers, owners=tuple(owners[layers[0]]), users=users[layers[0]])
        for layers in reversed(groups)
    )


def check_plan(
    pipelines: Sequence[PipelinePlan],
    followers: Sequence[FollowerPlace] = (),
    *,
    num_layers: int,
    num_microbatches: int,
) -> None:
    """Makes sure that every pipeline holds every layer once, and that each microbatch is run once.

    Of each step, and also of the one in flight.

    Raises:
        PlanError: says what is missing or repeated.
    """
    if not pipelines:
        raise PlanError("pipelines: a plan has at least one")
    for index, pipeline in enumerate(pipelines):
        placed = list(chain.from_iterable(place.layers for place in pipeline.stages))
        if placed != list(range(num_layers)) or any(p.num_layers < 1 for p in pipeline.stages):
            raise PlanError(
                f"pipelines[{index}].stages: layers {placed} are not 0..{num_layers - 1} in order"
            )
        if not pipeline.microbatches:
            raise PlanError(f"pipelines[{index}].microbatches: a pipeline runs at least one")
    _check_microbatches("microbatches", (p.microbatches for p in pipelines), num_microbatches)
    in_flight = (pipeline.first_microbatches for pipeline in pipelines)
    _check_microbatches("step_microbatches", in_flight, num_microbatches)
    for index, follower in enumerate(followers):
        if not follower.layers or not set(follower.layers) <= set(range(num_layers)):
            raise PlanError(f"followers[{index}].layers: not of 0..{num_layers - 1}, or none")
    engines = [place.engine_id for place in _places(pipelines)]
    engines += [follower.engine_id for follower in followers]
    if len(set(engines)) < len(engines):
        raise PlanError("engine_id: an engine has more than one place")


def _check_microbatches(field: str, parts: Iterable[Sequence[int]], num_microbatches: int) -> None:
    run = sorted(chain.from_iterable(parts))
    if run != list(range(num_microbatches)):
        raise PlanError(f"{field}: {run} are not each of 0..{num_microbatches - 1} once")


def _users(layer: int, num_layers: int, hosted_layers: HostedLayers) -> tuple[int, ...]:
    """Layers that use the parameters of a layer: itself, and the one tied to it."""
    return tuple(user for user in range(num_layers) if layer in hosted_layers(user, 1))


def _places(pipelines: Iterable[PipelinePlan]) -> Iterator[StagePlace]:
    return chain.from_iterable(pipeline.stages for pipeline in pipelines)


def _find(
    pipelines: Sequence[PipelinePlan], followers: Sequence[FollowerPlace], engine_id: str
) -> tuple[int, int]:
    """Row in the exchange, and stage."""
    for row, pipeline in enumerate(pipelines):
        for stage_index, place in enumerate(pipeline.stages):
            if place.engine_id == engine_id:
                return row, stage_index
    for row, follower in enumerate(followers, start=len(pipelines)):
        if follower.engine_id == engine_id:
            return row, 0
    raise PlanError(f"engine_id: the plan has no place for {engine_id}")


def _pipeline_group(
    pipelines: Sequence[PipelinePlan], row: int, direction: str
) -> GroupSpec | None:
    if row >= len(pipelines):
        return None
    members = tuple(place.engine_id for place in pipelines[row].stages)
    if len(members) < 2:
        return None
    return GroupSpec(name=f"{direction}-{row}", members=members, is_line=True)


def _owner_groups(runs: Iterable[Run]) -> tuple[GroupSpec, ...]:
    """One group for each set of owners, named after its first run."""
    groups: dict[tuple[str, ...], GroupSpec] = {}
    for run in runs:
        if len(run.owners) > 1 and run.owners not in groups:
            name = f"owners-{run.layers[0]}"
            groups[run.owners] = GroupSpec(name=name, members=run.owners)
    return tuple(groups.values())


def _once(*groups: GroupSpec | None) -> tuple[GroupSpec, ...]:
    return tuple(dict.fromkeys(group for group in groups if group is not None))


def _last_ranks_group(
    pipelines: Sequence[PipelinePlan], followers: Sequence[FollowerPlace]
) -> GroupSpec | None:
    """In the order of the rows of the exchange."""
    members = tuple(pipeline.stages[-1].engine_id for pipeline in pipelines)
    members += tuple(follower.engine_id for follower in followers)
    return GroupSpec(name="last-ranks", members=members) if len(members) > 1 else None
