"""Engines that cannot reach each other though all live: one word is not enough, and nobody ends."""

from collections.abc import Iterable

import pytest

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.engines.outcome import DirectiveResult, Failure
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.signals import Restarted
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World, running_world

ENDED, REFUSED, STALLED = LinkFailure.ENDED, LinkFailure.REFUSED, LinkFailure.STALLED
UNREACHABLE = LinkFailure.UNREACHABLE


def say(world: World, of: str, to: Iterable[str], failure: LinkFailure = ENDED) -> None:
    """The engine of a node says that its links with those of others failed."""
    for node_id in to:
        world.tell_link_failed(
            world.agents[of], world.engine_on(of).id, world.engine_on(node_id).id, failure
        )


def left_out(world: World) -> list[str]:
    return [event.node_id for event in world.events if event.type == "node_left_out"]


def others(world: World, node_id: str) -> list[str]:
    return [each for each in world.agents if each != node_id]


def refuse_what_is_held(agent: SimAgent) -> None:
    """Its engine cannot build the groups of a plan."""
    failure = Failure(reason=ErrorReason.UNAVAILABLE, message="a peer was lost", metadata={})
    held, agent.held = agent.held, []
    agent.held_kinds.clear()
    for directive in held:
        assert agent.session is not None
        agent.session.result(
            DirectiveResult(directive_id=directive.id, job_id=directive.job_id, outcome=failure)
        )


async def refuse_to_activate(world: World) -> None:
    """Nobody can; what comes next is held as well."""
    for agent in world.agents.values():
        refuse_what_is_held(agent)
    world.hold("activate")
    await world.settle()


@pytest.mark.parametrize("failure", [ENDED, REFUSED, STALLED])
async def test_who_accuses_all_others_is_left_out_itself(failure: LinkFailure) -> None:
    """Guard: the smallest cover."""
    world = await running_world(6)
    before = set(world.engines())
    say(world, "n3", others(world, "n3"), failure)
    await world.settle()
    assert set(world.engines()) == before
    await world.advance(2)
    assert left_out(world) == ["n3"]
    assert (await world.job()).state is JobState.RUNNING
    await world.train(3)
    assert len(world.members()) == 5
    assert "engine_lost" not in world.event_types()
    assert "communication_broke" not in world.event_types()


async def test_whom_all_accuse_is_lost_at_once() -> None:
    world = await running_world(6)
    accused = world.engine_on("n3").id
    for node_id in others(world, "n3"):
        say(world, node_id, ["n3"])
    await world.settle()
    assert accused not in world.run.engines
    assert left_out(world) == []
    await world.advance(3)
    assert (await world.job()).state is JobState.RUNNING


async def test_whom_nothing_reaches_is_left_out() -> None:
    """Its agent answers: the machine is there, and only its engine's messages are not."""
    world = await running_world(6)
    for node_id in others(world, "n3"):
        say(world, node_id, ["n3"], UNREACHABLE)
    await world.advance(2)
    assert world.run.transition is None
    for node_id in others(world, "n3"):
        say(world, node_id, ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n3"]
    assert (await world.job()).state is JobState.RUNNING


async def test_a_single_broken_link_costs_one_of_its_ends() -> None:
    """Guard: `choose_to_leave_out`, without which the same plan is made again and again."""
    world = await running_world(6)
    say(world, "n4", ["n2"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n2"]
    await world.train(2)
    assert len(world.members()) == 5


async def test_a_link_that_was_given_up_is_not_only_unreachable_again() -> None:
    """Its engine connects again, and finds the peer unreachable. Guard: `_with`."""
    world = await running_world(6)
    say(world, "n4", ["n2"], STALLED)
    say(world, "n4", ["n2"], UNREACHABLE)
    await world.advance(2)
    assert left_out(world) == ["n2"]
    assert "communication_broke" not in world.event_types()


async def test_unreachable_peers_show_which_end_it_was() -> None:
    """The first link is given up before others are. Guard: they count as well."""
    world = await running_world(6)
    for node_id in others(world, "n3"):
        say(world, node_id, ["n3"], UNREACHABLE)
    say(world, "n0", ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n3"]


async def test_others_have_time_to_say_what_stalls_for_them() -> None:
    """Guard: `_wait_for_others`."""
    world = await running_world(6)
    say(world, "n0", ["n3"], STALLED)
    await world.advance(0.5)
    say(world, "n1", ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n3"]


async def test_a_process_that_ended_is_believed_of_its_agent() -> None:
    world = await running_world(6)
    dead = world.engine_on("n3").id
    say(world, "n1", ["n3"])
    world.agents["n3"].lose_engine(dead)
    await world.advance(3)
    assert left_out(world) == []
    assert dead not in world.run.engines
    assert (await world.job()).state is JobState.RUNNING


async def test_a_job_that_cannot_do_without_waits_and_says_why() -> None:
    """Two nodes hold the model, and they cannot reach each other."""
    world = await running_world(
        2, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0}
    )
    say(world, "n0", ["n1"], STALLED)
    await world.advance(1.5)
    job = await world.job()
    assert job.state is JobState.WAITING
    assert "n0 and n1 cannot reach each other" in job.waiting_reason
    assert left_out(world) == []
    await world.advance(3)
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)


@pytest.mark.parametrize("failure", [ENDED, REFUSED])
@pytest.mark.parametrize("accusers", [("n0",), ("n0", "n2")])
async def test_what_others_say_does_not_end_the_only_replica_of_a_layer(
    failure: LinkFailure, accusers: tuple[str, ...]
) -> None:
    """Whether the accused has ended, its agent says. Guard: `is_spare`."""
    world = await running_world(
        3, resources={"min_nodes_per_pipeline": 3}, resilience={"fault_tolerance": 0}
    )
    before = set(world.engines())
    for node_id in accusers:
        say(world, node_id, ["n1"], failure)
    await world.advance(5)
    assert set(world.engines()) == before
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)


async def test_the_only_holder_of_a_layer_is_asked_again_when_it_does_not_answer() -> None:
    """It may be slow, and with it the state would end. Guard: `_is_asked_again`."""
    world = await running_world(
        2, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0}
    )
    before = set(world.engines())
    world.hold("quiesce", "n1")
    say(world, "n0", ["n1"], STALLED)
    await world.advance(100)
    assert set(world.engines()) == before
    await world.release()
    await world.advance(70)
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)


async def test_the_only_holder_of_a_layer_is_asked_again_later_when_it_refuses() -> None:
    """What failed may succeed the next time. Guards: `_is_asked_again`; the pause before it is."""
    world = await running_world(
        2, resources={"min_nodes_per_pipeline": 2}, resilience={"fault_tolerance": 0}
    )
    before, generation = set(world.engines()), world.run.generation
    world.hold("quiesce", "n1")
    say(world, "n0", ["n1"], STALLED)
    await world.advance(2)
    for _ in range(20):
        refuse_what_is_held(world.agents["n1"])
        world.hold("quiesce", "n1")
        await world.settle()
    assert world.run.generation == generation + 1
    await world.release()
    world.agents["n1"].held_kinds.clear()
    await world.advance(70)
    assert set(world.engines()) == before
    assert (await world.job()).state is JobState.RUNNING
    await world.train(2)


@pytest.mark.parametrize("accused", [("n3", "n4"), ("n4", "n3")])
async def test_what_an_engine_said_before_it_ended_keeps_nobody(accused: Iterable[str]) -> None:
    """Guard: all are judged again once one is believed to have ended."""
    world = await running_world(6)
    gone = {world.engine_on(node_id).id for node_id in accused}
    for node_id in accused:
        for other in others(world, node_id):
            if other != "n3":
                say(world, other, [node_id])
    await world.settle()
    assert gone.isdisjoint(world.run.engines)


async def test_a_link_that_no_step_uses_disturbs_nobody() -> None:
    """Neither a pipeline nor a sum goes over it. Guard: `_in_use`."""
    world = await running_world(4, resources={"min_nodes_per_pipeline": 2})
    generation = world.run.generation
    say(world, "n0", ["n3"], STALLED)
    say(world, "n3", ["n0"])
    await world.advance(3)
    assert left_out(world) == []
    assert world.run.generation == generation
    await world.train(2)
    assert len(world.members()) == 4


async def test_once_one_link_is_given_up_all_count() -> None:
    """The others show which end it is, though their time is not over."""
    world = await running_world(6)
    say(world, "n3", ["n0"])
    await world.settle()
    world.clock.advance(0.2)
    say(world, "n3", ["n1", "n2"])
    await world.settle()
    await world.advance(0.1, tick_seconds=0.1)
    assert left_out(world) == ["n3"]


async def test_links_that_are_well_again_cost_nobody() -> None:
    """Peers that were unreachable lately show which end of a failed link it is, and no more."""
    world = await running_world(6)
    say(world, "n5", ["n4"], UNREACHABLE)
    say(world, "n0", ["n2"], UNREACHABLE)
    say(world, "n4", ["n3"], UNREACHABLE)
    say(world, "n1", ["n3"], STALLED)
    await world.advance(2)
    assert left_out(world) == ["n3"]
    assert len(world.engines()) == 5


@pytest.mark.parametrize("failure", [ENDED, STALLED])
async def test_if_all_links_fail_at_once_groups_are_built_again_first(failure: LinkFailure) -> None:
    """Five of six nodes would be left out. Guard: no more than the job is to survive."""
    world = await running_world(6)
    before = set(world.engines())
    for node_id in world.agents:
        say(world, node_id, others(world, node_id), failure)
    await world.advance(3)
    assert left_out(world) == []
    await world.train(2)
    assert {engine.id for engine in world.members()} == before


async def test_a_switch_that_is_dead_for_seconds_costs_nobody() -> None:
    """Groups cannot be built again at first; at the last try it counts. Guard: `is_likely`."""
    world = await running_world(6)
    before = set(world.engines())
    world.hold("activate")
    for node_id in world.agents:
        say(world, node_id, others(world, node_id), STALLED)
    await world.advance(2)
    for _ in range(2):
        await refuse_to_activate(world)
        assert set(world.engines()) == before
    await refuse_to_activate(world)
    assert len(left_out(world)) == 5
    await world.release()
    await world.train(2)
    assert len(world.members()) == 1


async def test_of_two_ends_the_one_is_left_out_of_which_nothing_is_heard() -> None:
    """What it holds may be gone. Guard: `absent_nodes`."""
    world = await running_world(2)
    world.agents["n1"].disconnect()
    say(world, "n0", ["n1"], STALLED)
    await world.advance(1.5)
    assert left_out(world) == ["n1"]


async def test_links_are_whole_after_a_commit() -> None:
    world = await running_world(6)
    say(world, "n1", ["n3"], UNREACHABLE)
    await world.settle()
    assert world.run.failed_links
    await world.train(1)
    assert world.run.failed_links == ()


async def test_losses_that_are_seen_together_open_one_generation() -> None:
    """Guard: `seen_together`."""
    world = await running_world(6, resilience={"fault_tolerance": 2})
    generation = world.run.generation
    for node_id in ("n1", "n3"):
        world.agents[node_id].lose_engine(world.engine_on(node_id).id)
    await world.settle()
    recoveries = [e for e in world.events if e.type == "recovery_started"]
    assert [event.generation for event in recoveries] == [generation + 1]
    assert (await world.job()).state is JobState.RUNNING


async def test_an_engine_that_no_job_counts_on_accuses_nobody() -> None:
    """What it could not say while its node was cut off is sent when the node is back."""
    world = await running_world(6)
    stranger, accused = world.engine_on("n1").id, world.engine_on("n3").id
    world.agents["n1"].lose_engine(stranger)
    await world.settle()
    for failure in (UNREACHABLE, ENDED):
        world.tell_link_failed(world.agents["n1"], stranger, accused, failure)
    await world.settle()
    entry = world.coordinator._state.nodes.require("n3")
    assert entry.suspected_seconds is None
    assert not entry.peers_lost


async def test_a_report_that_an_agent_contradicts_is_forgotten() -> None:
    """Its agent may crash later: that is no loss of the node. Guard: `_contradict`."""
    world = await running_world(6)
    say(world, "n1", ["n2", "n3"])
    await world.settle()
    entry = world.coordinator._state.nodes.require("n3")
    assert entry.peers_lost
    await world.advance(3)
    assert not entry.peers_lost


async def test_failed_links_count_from_the_start_of_another_coordinator() -> None:
    """Its clock is another one."""
    world = await running_world(6)
    say(world, "n1", ["n3"], UNREACHABLE)
    await world.settle()
    before = world.run.failed_links[0].since_seconds
    world.clock.advance(5)
    world.coordinator._state.actors[world.job_id].post(Restarted())
    await world.settle()
    assert [link.since_seconds > before for link in world.run.failed_links] == [True]
