"""What a plan means for one engine: its stage, the groups it joins and what it sums with whom.

Everything follows from the plan alone, so that all engines of a generation build the same groups in
the same order without asking each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria_worker.engine.groups.group_spec import GroupKind, GroupSpec
from planaria_worker.engine.plan.owned_layers import HostedLayers, OwnedLayers, find_owned_layers
from planaria_worker.engine.plan.plan import (
    FollowerAssignment,
    PipelineAssignment,
    PlanError,
    StageAssignment,
    check_plan,
    stage_assignments,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan, seen from one engine."""

    engine_id: str
    pipelines: tuple[PipelineAssignment, ...]
    followers: tuple[FollowerAssignment, ...]
    row: int
    """Its row among the votes: that of its pipeline; followers come after all pipelines."""
    stage_index: int
    """In its pipeline; 0 for a follower."""
    hosted_layers: tuple[int, ...]
    owned_layers: tuple[OwnedLayers, ...]
    """Those that this engine sums, in the order in which all engines sum them."""
    forward_group: GroupSpec | None
    """Activations; None for a pipeline of one stage."""
    backward_group: GroupSpec | None
    """Gradients; the same group unless directions are separate."""
    commit_group: GroupSpec | None
    """Votes and decisions. A group of its own, because a stage may send activations of the next
    round before it has passed on a decision, and neither may wait for the other."""
    owner_groups: tuple[GroupSpec, ...]
    """Gradient reduction; one for each set of owners with more than one member."""
    last_ranks_group: GroupSpec | None
    """Votes across pipelines and followers; None for stages before the last, and if there is only
    one pipeline and no follower."""

    @property
    def is_follower(self) -> bool:
        return self.row >= len(self.pipelines)

    @property
    def pipeline(self) -> PipelineAssignment:
        """Return that of this engine; IndexError for a follower."""
        return self.pipelines[self.row]

    @property
    def stage(self) -> StageAssignment:
        """Return that of this engine; IndexError for a follower."""
        return self.pipeline.stages[self.stage_index]

    @property
    def step_microbatches(self) -> tuple[int, ...]:
        """Return what it computes, or has computed, in the step in flight; none for a follower."""
        return () if self.is_follower else self.pipeline.step_microbatches

    @property
    def regular_microbatches(self) -> tuple[int, ...]:
        """Return what it computes in every later step; none for a follower."""
        return () if self.is_follower else self.pipeline.microbatches

    @property
    def computed_layers(self) -> range:
        """Return the layers whose gradients it computes: none for a follower."""
        return range(0) if self.is_follower else self.stage.layers

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_deciding(self) -> bool:
        """Whether it decides on commits, with others like it: a last stage or a follower."""
        return self.is_follower or self.stage_index == len(self.pipeline.stages) - 1

    @property
    def keeps_step(self) -> bool:
        return not self.is_follower and self.pipeline.keeps_step

    @property
    def is_resuming(self) -> bool:
        """Whether any pipeline keeps what it has computed of the step in flight."""
        return any(pipeline.keeps_step for pipeline in self.pipelines)

    @property
    def pipeline_groups(self) -> tuple[GroupSpec, ...]:
        """Return the groups along the pipeline: they stay if the pipeline is kept."""
        return _once(self.forward_group, self.backward_group, self.commit_group)

    @property
    def data_parallel_groups(self) -> tuple[GroupSpec, ...]:
        """Return the groups across the pipelines: they may be retained while they are idle."""
        return _once(*self.owner_groups, self.last_ranks_group)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Return all groups, each once, in the order in which every engine builds them."""
        return self.pipeline_groups + self.data_parallel_groups

    @property
    def peers(self) -> dict[str, str]:
        """Return the data addresses of the engines that it shares a group with, by engine id."""
        ids = {member for group in self.groups for member in group.members} - {self.engine_id}
        assignments: list[StageAssignment | FollowerAssignment] = [
            *stage_assignments(self.pipelines),
            *self.followers,
        ]
        return {each.engine_id: each.data_address for each in assignments if each.engine_id in ids}

    def owner_group(self, owned: OwnedLayers) -> GroupSpec | None:
        """Return the group that sums these layers; None if this engine is their only owner."""
        return next((group for group in self.owner_groups if group.members == owned.owners), None)


def view_plan(
    pipelines: Sequence[PipelineAssignment],
    engine_id: str,
    *,
    num_layers: int,
    num_microbatches: int,
    hosted_layers: HostedLayers,
    followers: Sequence[FollowerAssignment] = (),
    separate_directions: bool = False,
) -> PlanView:
    """Find an engine's assignment in a plan.

    Args:
        pipelines: the plan.
        engine_id: of the engine.
        num_layers: layers of the model.
        num_microbatches: microbatches of a step.
        hosted_layers: layers whose state a stage needs.
        followers: engines that reduce and vote without computing.
        separate_directions: whether activations and gradients need groups of their own, because the
            transport does the operations of one group strictly one after the other (NCCL): there,
            two neighbours that send to each other in one group would wait for each other.

    Raises:
        PlanError: the plan leaves out or repeats a layer, a microbatch or an engine, or has no
            assignment for this one.
    """
    check_plan(pipelines, followers, num_layers=num_layers, num_microbatches=num_microbatches)
    row, stage_index = _find(pipelines, followers, engine_id)
    if row < len(pipelines):
        stage = pipelines[row].stages[stage_index]
        hosted = tuple(hosted_layers(stage.first_layer, stage.num_layers))
    else:
        hosted = followers[row - len(pipelines)].layers
    owned_layers = find_owned_layers(pipelines, num_layers, hosted_layers, followers)
    forward_group = _link(pipelines, row, "forward", GroupKind.ACTIVATIONS)
    backward_group = forward_group
    if separate_directions:
        backward_group = _link(pipelines, row, "backward", GroupKind.GRADIENTS)
    return PlanView(
        engine_id=engine_id,
        pipelines=tuple(pipelines),
        followers=tuple(followers),
        row=row,
        stage_index=stage_index,
        hosted_layers=hosted,
        owned_layers=tuple(each for each in owned_layers if engine_id in each.owners),
        forward_group=forward_group,
        backward_group=backward_group,
        commit_group=_link(pipelines, row, "exchange", GroupKind.COMMIT_MESSAGES),
        owner_groups=tuple(g for g in _owner_groups(owned_layers) if engine_id in g.members),
        last_ranks_group=_last_ranks_group(pipelines, followers, engine_id),
    )


def _find(
    pipelines: Sequence[PipelineAssignment], followers: Sequence[FollowerAssignment], engine_id: str
) -> tuple[int, int]:
    """Return the row among the votes, and the stage."""
    for row, pipeline in enumerate(pipelines):
        for stage_index, stage in enumerate(pipeline.stages):
            if stage.engine_id == engine_id:
                return row, stage_index
    for row, follower in enumerate(followers, start=len(pipelines)):
        if follower.engine_id == engine_id:
            return row, 0
    raise PlanError(f"engine_id: the plan has no assignment for {engine_id}")


def _link(
    pipelines: Sequence[PipelineAssignment], row: int, name: str, kind: GroupKind
) -> GroupSpec | None:
    if row >= len(pipelines):
        return None
    members = tuple(stage.engine_id for stage in pipelines[row].stages)
    if len(members) < 2:
        return None
    return GroupSpec(name=f"{name}-{row}", kind=kind, members=members)


def _owner_groups(owned_layers: Iterable[OwnedLayers]) -> tuple[GroupSpec, ...]:
    """Return one group for each set of owners, named after the first of its layers."""
    groups: dict[tuple[str, ...], GroupSpec] = {}
    for owned in owned_layers:
        if len(owned.owners) > 1 and owned.owners not in groups:
            name = f"owners-{owned.layers[0]}"
            groups[owned.owners] = GroupSpec(
                name=name, kind=GroupKind.GRADIENT_SUM, members=owned.owners
            )
    return tuple(groups.values())


def _once(*groups: GroupSpec | None) -> tuple[GroupSpec, ...]:
    return tuple(dict.fromkeys(group for group in groups if group is not None))


def _last_ranks_group(
    pipelines: Sequence[PipelineAssignment], followers: Sequence[FollowerAssignment], engine_id: str
) -> GroupSpec | None:
    """Return the group of all voters across, in the order of rows; None if it has one member."""
    members = tuple(pipeline.stages[-1].engine_id for pipeline in pipelines)
    members += tuple(follower.engine_id for follower in followers)
    if len(members) < 2 or engine_id not in members:
        return None
    return GroupSpec(name="last-ranks", kind=GroupKind.VOTE_SUM, members=members)
