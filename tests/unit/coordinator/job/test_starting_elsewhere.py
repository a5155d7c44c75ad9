"""A job that cannot start on the nodes that it was given is started on others."""

from collections.abc import Collection

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import Copy, Directive, Prepare
from planaria_coordinator.domain.engines.outcome import DirectiveResult, Failure, Outcome
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World


def without_data(patch: pytest.MonkeyPatch, nodes: Collection[str]) -> None:
    """Let some nodes lack the file that the job trains on."""
    prepare = SimAgent._prepare

    def fail(self: SimAgent, directive: Directive, command: Prepare) -> Outcome:
        if self.node_id not in nodes:
            return prepare(self, directive, command)
        message = f"{self.node_id}: no such file"
        return Failure(reason=ErrorReason.DATA_UNUSABLE, message=message)

    patch.setattr(SimAgent, "_prepare", fail)


async def submitted(num_nodes: int) -> World:
    """Return a world with a job that has two nodes at most."""
    world = World()
    await world.start(num_nodes)
    await world.submit(
        resources={"min_nodes": 1, "max_nodes": 2}, resilience={"fault_tolerance": 0}
    )
    await world.advance(5)
    return world


async def test_other_nodes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """[10] It fails only when its data can be read nowhere. Guard: `_wait_for_others`."""
    without_data(monkeypatch, {"n0", "n1", "n2"})
    world = await submitted(6)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert set(world.run.nodes) == {"n3", "n4"}
    assert set(world.run.refused) == {"n0", "n1", "n2"}


async def test_a_job_waits_for_a_node_that_another_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    without_data(monkeypatch, ())
    world = await submitted(4)
    without_data(monkeypatch, {"n2", "n3"})
    first = world.job_id
    await world.submit(
        resources={"min_nodes": 1, "max_nodes": 2}, resilience={"fault_tolerance": 0}
    )
    await world.advance(5)
    job = await world.job()
    assert job.state is JobState.PENDING
    assert "refused: n2: no such file; n3: no such file" in job.waiting_reason
    await world.coordinator.jobs.cancel(first)
    await world.advance(5)
    assert (await world.job()).state is JobState.RUNNING


async def test_a_job_that_no_node_can_start_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_data(monkeypatch, {f"n{index}" for index in range(6)})
    world = await submitted(5)
    job = await world.job()
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error.reason is ErrorReason.DATA_UNUSABLE
    assert job.error.message == "n4: no such file"
    assert world.event_types().count("node_refused") == 5


async def test_a_job_waits_while_there_are_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """[10] That some could not start it says nothing of those that come."""
    without_data(monkeypatch, {"n0", "n1"})
    world = World()
    await world.start(4)
    world.hold("prepare", "n2", "n3")
    await world.submit(
        resources={"min_nodes": 1, "max_nodes": 2}, resilience={"fault_tolerance": 0}
    )
    await world.advance(5)
    assert set(world.run.nodes) == {"n2", "n3"}
    for node_id in tuple(world.agents):
        world.agents.pop(node_id).disconnect()
        await world.coordinator.cluster.evict(node_id)
    await world.advance(5)
    assert (await world.job()).state is JobState.PENDING
    await world.add_node("n9")
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert world.run.start_failure is None


def without_initial_state(patch: pytest.MonkeyPatch, nodes: Collection[str]) -> None:
    """Let some nodes find the state that the job begins with damaged."""
    carry_out = SimAgent.carry_out

    def fail_to_copy(self: SimAgent, directive: Directive) -> None:
        if self.node_id not in nodes or not isinstance(directive.command, Copy):
            carry_out(self, directive)
            return
        outcome = Failure(reason=ErrorReason.INIT_UNUSABLE, message=f"{self.node_id}: damaged")
        result = DirectiveResult(
            directive_id=directive.id, job_id=directive.job_id, outcome=outcome
        )
        if self.session is not None:
            self.session.result(result)

    patch.setattr(SimAgent, "carry_out", fail_to_copy)


@pytest.mark.parametrize("num_unable", [2, 4])
async def test_others_read_the_initial_state(
    monkeypatch: pytest.MonkeyPatch, num_unable: int
) -> None:
    """[10] It fails only when no node can read it. Guard: `initial_state_failed`."""
    unable = {f"n{index}" for index in range(num_unable)}
    without_initial_state(monkeypatch, unable)
    world = await submitted(6)
    await world.train(2)
    assert (await world.job()).state is JobState.RUNNING
    assert set(world.run.refused) == unable


@pytest.mark.parametrize("event", ["answer", "loss", "loss of the last", "restart", "pause"])
async def test_what_happens_before_the_others_have_read_it(
    monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A plan's node has been refused, and others still read: the next plan is without it."""
    without_initial_state(monkeypatch, {"n0"})
    world = World()
    await world.start(6)
    world.hold("copy", "n1", "n2", "n3")
    await world.submit(
        resources={"min_nodes_per_pipeline": 2, "max_nodes": 4}, resilience={"fault_tolerance": 1}
    )
    await world.settle()
    assert set(world.run.refused) == {"n0"}
    match event:
        case "loss":
            await world.kill_node("n1")
        case "loss of the last":
            for node_id in ("n1", "n2", "n3"):
                await world.kill_node(node_id)
        case "restart":
            await world.crash_coordinator()
            await world.reconnect()
        case "pause":
            await world.coordinator.jobs.pause(world.job_id)
    await world.release()
    await world.advance(10)
    if event == "pause":
        assert (await world.job()).state is JobState.PAUSED
        await world.coordinator.jobs.resume(world.job_id)
        await world.advance(5)
    if event != "loss of the last":
        await world.train(2)
        assert (await world.job()).state is JobState.RUNNING
        assert "n0" not in world.run.nodes
    else:
        assert (await world.job()).state is JobState.PENDING
