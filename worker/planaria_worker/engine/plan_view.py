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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group to be made; the ranks are the places in `members`."""

    name: str
    members: tuple[str, ...]

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
    """Engine ids in the order of pipelines and stages."""
    users: tuple[int, ...]
    """Layers that use the run's parameters: only a tied layer has more than itself."""

    @property
    def whole_count(self) -> int:
        """What a microbatch counts when it is in the sum once for each use."""
        return self.count(range(max(self.users) + 1))

    def count(self, own_layers: range) -> int:
        """What a microbatch counts that an engine with these layers adds."""
        if len(self.users) == 1:
            return 1
        return sum(_DIGIT**place for place, user in enumerate(self.users) if user in own_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan, seen from one engine."""

    engine_id: str
    pipelines: tuple[PipelinePlan, ...]
    pipeline_index: int
    stage_index: int
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
    """Exchange across the pipelines; None for other stages than the last, and for one pipeline."""
    groups: tuple[GroupSpec, ...]
    """All of the above, each once, in the one order in which every engine makes its groups."""

    @property
    def pipeline(self) -> PipelinePlan:
        return self.pipelines[self.pipeline_index]

    @property
    def stage(self) -> StagePlace:
        return self.pipeline.stages[self.stage_index]

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == len(self.pipeline.stages) - 1

    @property
    def peers(self) -> dict[str, str]:
        """Data addresses of the engines it shares a group with, by engine id."""
        ids = {member for group in self.groups for member in group.members} - {self.engine_id}
        places = chain.from_iterable(pipeline.stages for pipeline in self.pipelines)
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
    separate_directions: bool = False,
) -> PlanView:
    """Finds an engine's place in a plan.

    Args:
        pipelines: the plan.
        engine_id: who asks.
        num_layers: layers of the model.
        num_microbatches: microbatches of a step.
        hosted_layers: layers whose state a stage needs.
        separate_directions: whether activations and gradients need groups of their own, because the
            transport does the operations of one group strictly one after the other (NCCL): there,
            two neighbours that send to each other in one group would wait for each other.

    Raises:
        PlanError: the plan leaves out or repeats a layer, a microbatch or an engine, or has no
            place for this one.
    """
    check_plan(pipelines, num_layers=num_layers, num_microbatches=num_microbatches)
    pipeline_index, stage_index = _find(pipelines, engine_id)
    place = pipelines[pipeline_index].stages[stage_index]
    runs = find_runs(pipelines, num_layers, hosted_layers)
    mine = tuple(run for run in runs if engine_id in run.owners)

    forward_group = _pipeline_group(pipelines, pipeline_index, "forward")
    backward_group = forward_group
    if separate_directions:
        backward_group = _pipeline_group(pipelines, pipeline_index, "backward")
    owner_groups = tuple(g for g in _owner_groups(runs) if engine_id in g.members)
    last_ranks = _last_ranks_group(pipelines)
    if last_ranks is not None and engine_id not in last_ranks.members:
        last_ranks = None
    return PlanView(
        engine_id=engine_id,
        pipelines=tuple(pipelines),
        pipeline_index=pipeline_index,
        stage_index=stage_index,
        hosted_layers=tuple(hosted_layers(place.first_layer, place.num_layers)),
        runs=mine,
        forward_group=forward_group,
        backward_group=backward_group,
        owner_groups=owner_groups,
        last_ranks_group=last_ranks,
        groups=_once(forward_group, backward_group, *owner_groups, last_ranks),
    )


def find_runs(
    pipelines: Sequence[PipelinePlan], num_layers: int, hosted_layers: HostedLayers
) -> tuple[Run, ...]:
    """Cuts the model where the set of owners changes; the run with the highest first layer first.

    One order for all, or two pipelines that are cut differently wait for each other for ever
    (ALGORITHMS.md 6).
    """
    owners: list[list[str]] = [[] for _ in range(num_layers)]
    for place in _places(pipelines):
        for layer in hosted_layers(place.first_layer, place.num_layers):
            owners[layer].append(place.engine_id)
    users = [_users(layer, num_layers, hosted_layers) for layer in range(num_layers)]
    cuts = groupby(range(num_layers), key=lambda layer: (owners[layer], len(users[layer])))
    groups = [tuple(layers) for _, layers in cuts]
    return tuple(
        Run(layers=layers, owners=tuple(owners[layers[0]]), users=users[layers[0]])
        for layers in reversed(groups)
    )


def check_plan(
    pipelines: Sequence[PipelinePlan], *, num_layers: int, num_microbatches: int
) -> None:
    """Makes sure that every pipeline holds every layer once, and that each microbatch is run once.

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
    run = sorted(chain.from_iterable(pipeline.microbatches for pipeline in pipelines))
    if run != list(range(num_microbatches)):
        raise PlanError(f"microbatches: {run} are not each of 0..{num_microbatches - 1} once")
    engines = [place.engine_id for place in _places(pipelines)]
    if len(set(engines)) < len(engines):
        raise PlanError("engine_id: an engine has more than one place")


def _users(layer: int, num_layers: int, hosted_layers: HostedLayers) -> tuple[int, ...]:
    """Layers that use the parameters of a layer: itself, and the one tied to it."""
    return tuple(user for user in range(num_layers) if layer in hosted_layers(user, 1))


def _places(pipelines: Iterable[PipelinePlan]) -> Iterator[StagePlace]:
    return chain.from_iterable(pipeline.stages for pipeline in pipelines)


def _find(pipelines: Sequence[PipelinePlan], engine_id: str) -> tuple[int, int]:
    for pipeline_index, pipeline in enumerate(pipelines):
        for stage_index, place in enumerate(pipeline.stages):
            if place.engine_id == engine_id:
                return pipeline_index, stage_index
    raise PlanError(f"engine_id: the plan has no place for {engine_id}")


def _pipeline_group(
    pipelines: Sequence[PipelinePlan], index: int, direction: str
) -> GroupSpec | None:
    members = tuple(place.engine_id for place in pipelines[index].stages)
    return GroupSpec(name=f"{direction}-{index}", members=members) if len(members) > 1 else None


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


def _last_ranks_group(pipelines: Sequence[PipelinePlan]) -> GroupSpec | None:
    members = tuple(pipeline.stages[-1].engine_id for pipeline in pipelines)
    return GroupSpec(name="last-ranks", members=members) if len(members) > 1 else None
