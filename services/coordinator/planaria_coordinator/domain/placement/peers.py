"""Which engines of a placement send to each other in a step, and what is held without some."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from planaria_coordinator.domain.job.requirements import Requirements
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What an engine does in a placement."""

    layers: frozenset[int]
    """It sums their gradients with the others that hold them."""
    votes: bool
    """Whether it votes on commits: last stages do, and followers."""
    pipeline: int = -1
    """The number of its pipeline; -1: it is a follower."""
    stage: int = 0

    def sends_to(self, other: "Role") -> bool:
        """Whether they are neighbours in a pipeline, sum a layer together, or vote together."""
        is_next = self.pipeline == other.pipeline and abs(self.stage - other.stage) == 1
        return is_next or (self.votes and other.votes) or not self.layers.isdisjoint(other.layers)


def roles_of(
    placement: Placement, engine_ids: Collection[str], requirements: Requirements
) -> dict[str, Role]:
    """Return what some engines do in a placement; those that are not in it are left out."""
    roles = {
        engine_ids_of[at]: Role(
            layers=frozenset(requirements.layers_of(stage)),
            votes=at == len(engine_ids_of) - 1,
            pipeline=number,
            stage=at,
        )
        for number, (stages, engine_ids_of) in enumerate(_pipelines(placement))
        for at, stage in enumerate(stages)
        if engine_ids_of[at] in engine_ids
    }
    followers = {e: v for e, v in placement.followers.items() if e in engine_ids}
    return roles | {e: Role(layers=frozenset(v), votes=True) for e, v in followers.items()}


def holds_every_layer(
    placement: Placement, is_there: Callable[[str], bool], requirements: Requirements
) -> bool:
    """Whether the engines that are there hold all layers; looks at no more than it takes to say."""
    missing = set(range(requirements.num_layers))
    for stages, engine_ids in _pipelines(placement):
        for stage, engine_id in zip(stages, engine_ids, strict=True):
            if is_there(engine_id):
                missing.difference_update(requirements.layers_of(stage))
        if not missing:
            return True
    for engine_id, layers in placement.followers.items():
        if is_there(engine_id):
            missing.difference_update(layers)
    return not missing


def _pipelines(placement: Placement) -> Iterator[tuple[tuple[Stage, ...], tuple[str, ...]]]:
    for pipeline, engine_ids in zip(placement.plan.pipelines, placement.stage_engines, strict=True):
        yield pipeline.stages, engine_ids
