"""No engine that trains is lost for a change that it has no memory for, and no job fails for it."""

from collections.abc import Callable

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import Activate, Copy, Directive, StagePlan
from planaria_coordinator.domain.engines.outcome import Failure, Outcome
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.engine import SimEngine
from unit.coordinator.simulation.world import World, running_world

NO_MEMORY = Failure(reason=ErrorReason.ENGINE_FAILED, message="MemoryError: no memory")
Lacks = Callable[[SimEngine, Directive], bool]


def without_memory(patch: pytest.MonkeyPatch, lacks: Lacks) -> None:
    """Let engines fail with directives for which they lack memory."""
    handle = SimEngine.handle

    def fail(self: SimEngine, directive: Directive) -> Outcome | None:
        return NO_MEMORY if lacks(self, directive) else handle(self, directive)

    patch.setattr(SimEngine, "handle", fail)


async def grow(world: World) -> set[str]:
    """Let n9 join; return the engines that were there before."""
    await world.train(2)
    before = set(world.engines())
    await world.add_node("n9")
    for _ in range(8):
        await world.train()
        await world.advance(1)
    return before


def names_n9(command: Activate | StagePlan) -> bool:
    places = [stage.engine_id for pipeline in command.pipelines for stage in pipeline.stages]
    return any("/n9/" in engine_id for engine_id in places)


async def test_a_change_that_cannot_be_staged_is_made_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_memory(monkeypatch, lambda _, directive: isinstance(directive.command, StagePlan))
    world = await running_world(4)
    before = await grow(world)
    assert before < set(world.engines())
    job = await world.job()
    assert (job.state, world.engine_on("n9").takes_part) == (JobState.RUNNING, True)
    assert "engine_lost" not in world.event_types()


async def test_a_node_without_memory_for_its_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks(engine: SimEngine, directive: Directive) -> bool:
        return "/n9/" in engine.id and isinstance(directive.command, StagePlan | Copy)

    without_memory(monkeypatch, lacks)
    world = await running_world(4)
    before = await grow(world)
    for _ in range(10):
        await world.train()
        await world.advance(1)
    assert set(world.engines()) == before
    assert world.run.refused.keys() == {"n9"}
    assert (await world.job()).state is JobState.RUNNING


@pytest.mark.parametrize("kind", [Copy, Activate])
async def test_a_node_is_left_out_if_the_others_lack_memory_for_its_joining(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """They live, and train in a plan without it. Guards: who cannot copy layers to those that it
    has is not lost; a node that joins is left out before the job waits."""

    def lacks(engine: SimEngine, directive: Directive) -> bool:
        command = directive.command
        if "/n9/" in engine.id or directive.generation == 1:
            return False
        if isinstance(command, Activate | StagePlan):
            return names_n9(command) and (kind is Activate or isinstance(command, StagePlan))
        return kind is Copy and isinstance(command, Copy)

    without_memory(monkeypatch, lacks)
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    before = await grow(world)
    assert before == set(world.engines())
    assert (await world.job()).state is JobState.RUNNING
    told = world.event_types()
    assert "node_left_out" in told
    assert not {"engine_lost", "job_failed", "job_waiting"} & set(told)
