"""A job that is checkpointed, and what its engines say of their layers."""

from typing import Any

from planaria_common.errors import ErrorReason
from planaria_coordinator.application.agents.agent_messages import CheckpointReport
from planaria_coordinator.domain.checkpoint.checkpoint import Checkpoint
from planaria_coordinator.domain.engines.directive import LayerWritten
from planaria_coordinator.domain.engines.outcome import CheckpointTaken, Failure
from planaria_coordinator.domain.job.event import Event
from unit.coordinator.simulation.agent import NUM_LAYERS
from unit.coordinator.simulation.engine import SimEngine
from unit.coordinator.simulation.world import World, running_world

ALL = tuple(range(NUM_LAYERS))
IN_PAIRS = {"min_nodes_per_pipeline": 2}
LATE = Failure(reason=ErrorReason.UNAVAILABLE, message="layer-0000 is not written: the disk hangs")
FULL = Failure(reason=ErrorReason.CHECKPOINT_FAILED, message="cannot write: disk full")


async def checkpointed_world(**changes: Any) -> World:
    """Four nodes in two pipelines, at step 1; every second step is written."""
    checkpoint = {"path": "runs", "every_steps": 2}
    return await running_world(checkpoint=checkpoint, resources=IN_PAIRS, **changes)


def tell(world: World, engine: SimEngine, version: int, report: Any) -> None:
    agent = next(a for a in world.agents.values() if engine.id in a.engines)
    message = CheckpointReport(
        job_id=engine.job_id, engine_id=engine.id, version=version, report=report
    )
    agent.report(lambda session: session.checkpoint_report(message))


def written(layer: int) -> LayerWritten:
    return LayerWritten(layer=layer, num_bytes=10, sha256=f"{layer:064x}")


def parts(world: World) -> dict[str, tuple[int, ...]]:
    """Each layer to one of the engines that hold it, in turn."""
    engines = sorted(world.engines().values(), key=lambda engine: engine.id)
    shares: dict[str, tuple[int, ...]] = {engine.id: () for engine in engines}
    for layer in ALL:
        holders = [engine for engine in engines if layer in engine.layers]
        if holders:
            chosen = holders[layer % len(holders)].id
            shares[chosen] = (*shares[chosen], layer)
    return shares


def announce(world: World, version: int) -> dict[str, tuple[int, ...]]:
    shares = parts(world)
    for engine_id, layers in shares.items():
        tell(world, world.engines()[engine_id], version, CheckpointTaken(layers=layers))
    return shares


async def write(world: World, version: int, shares: dict[str, tuple[int, ...]]) -> None:
    for engine_id, layers in shares.items():
        engine = world.engines().get(engine_id)
        for layer in layers if engine is not None else ():
            assert engine is not None
            tell(world, engine, version, written(layer))
    await world.settle()


def checkpoint_events(world: World) -> list[tuple[str, int]]:
    return [(e.type, e.details["step"]) for e in events_of(world, "checkpoint_")]


def events_of(world: World, prefix: str) -> list[Event]:
    return [event for event in world.events if event.type.startswith(prefix)]


def writers(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    shares: dict[str, tuple[int, ...]] = {}
    for layer, engine_id in checkpoint.writers.items():
        if layer not in checkpoint.written:
            shares[engine_id] = (*shares.get(engine_id, ()), layer)
    return shares
