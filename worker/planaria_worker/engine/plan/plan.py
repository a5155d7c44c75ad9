"""A plan as every engine gets it: pipelines of stages, and followers; and the check of a plan."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain


class PlanError(ValueError):
    """A plan that cannot be run; the message names the field and what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAssignment:
    """A stage and the engine that runs it."""

    engine_id: str
    data_address: str
    first_layer: int
    num_layers: int

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineAssignment:
    """A pipeline's stages in layer order, and the microbatches it runs in each step."""

    stages: tuple[StageAssignment, ...]
    microbatches: tuple[int, ...]
    changed_microbatches: tuple[int, ...] = ()
    """Those of the step in flight, if they differ from `microbatches`."""
    keeps_step: bool = False
    """Its engines already run this pipeline, and keep what they have computed of the step."""

    @property
    def step_microbatches(self) -> tuple[int, ...]:
        """Return what it runs, or has run, in the step in flight."""
        return self.changed_microbatches or self.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAssignment:
    """An engine that holds layers and computes nothing: it adds zero to their sums."""

    engine_id: str
    data_address: str
    layers: tuple[int, ...]


def stage_assignments(pipelines: Iterable[PipelineAssignment]) -> Iterator[StageAssignment]:
    """Return all stages, pipeline by pipeline."""
    return chain.from_iterable(pipeline.stages for pipeline in pipelines)


def check_plan(
    pipelines: Sequence[PipelineAssignment],
    followers: Sequence[FollowerAssignment] = (),
    *,
    num_layers: int,
    num_microbatches: int,
) -> None:
    """Make sure that every pipeline holds every layer once, and that each microbatch is run once.

    This holds for each later step, and for the one in flight.

    Raises:
        PlanError: says what is missing or repeated.
    """
    if not pipelines:
        raise PlanError("pipelines: a plan has at least one")
    for index, pipeline in enumerate(pipelines):
        layers = list(chain.from_iterable(stage.layers for stage in pipeline.stages))
        if layers != list(range(num_layers)) or any(s.num_layers < 1 for s in pipeline.stages):
            raise PlanError(
                f"pipelines[{index}].stages: layers {layers} are not 0..{num_layers - 1} in order"
            )
        if not pipeline.microbatches:
            raise PlanError(f"pipelines[{index}].microbatches: a pipeline runs at least one")
    _check_microbatches("microbatches", (p.microbatches for p in pipelines), num_microbatches)
    in_flight = (pipeline.step_microbatches for pipeline in pipelines)
    _check_microbatches("step_microbatches", in_flight, num_microbatches)
    for index, follower in enumerate(followers):
        if not follower.layers or not set(follower.layers) <= set(range(num_layers)):
            raise PlanError(f"followers[{index}].layers: not of 0..{num_layers - 1}, or none")
    engines = [stage.engine_id for stage in stage_assignments(pipelines)]
    engines += [follower.engine_id for follower in followers]
    if len(set(engines)) < len(engines):
        raise PlanError("engine_id: an engine has more than one assignment")


def _check_microbatches(field: str, parts: Iterable[Sequence[int]], num_microbatches: int) -> None:
    given = sorted(chain.from_iterable(parts))
    if given != list(range(num_microbatches)):
        raise PlanError(f"{field}: {given} are not each of 0..{num_microbatches - 1} once")
