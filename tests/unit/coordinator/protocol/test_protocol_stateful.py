"""Any order of steps, faults, requests and delays keeps the invariants, and comes to an end.

Engines and the database of the simulation check at every moment that nothing is told before it is
stored, that generations only grow, that no commit is split or taken back, and that a directive
takes effect once (invariants 2, 4, 5 and 7).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.engines.outcome import DirectiveResult
from planaria_coordinator.domain.job.job import Job, JobState
from unit.coordinator.simulation.agent import SimAgent
from unit.coordinator.simulation.world import World

NAMES = tuple(f"n{index}" for index in range(5))
KINDS = ("prepare", "quiesce", "roll_forward", "copy", "activate", "stage_plan", "switch")


class Cluster(RuleBasedStateMachine):
    """Some nodes and a job, of which nobody ends."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = self.do(self._world())
        self.num_down = 0
        self.results: list[DirectiveResult] = []

    async def _world(self) -> World:
        return World()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def call(self, act: Callable[[], object]) -> None:
        """Act inside the loop, and let everybody react."""

        async def inside() -> None:
            act()
            await self.world.settle()

        self.do(inside())

    def teardown(self) -> None:
        if self.world.job_id:
            self.do(self._heal())
        self.do(self.world.stop())
        self.loop.close()

    # -- training ----------------------------------------------------------------------------------

    @rule(num_steps=st.integers(1, 3))
    def train(self, num_steps: int) -> None:
        self.do(self.world.train(num_steps))

    # -- faults ------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        other=st.sampled_from(NAMES),
        failure=st.sampled_from(LinkFailure),
    )
    def lie(self, name: str, other: str, failure: LinkFailure) -> None:
        """An engine says of a peer that lives that their link failed."""
        agent, accused = self.world.agents.get(name), self.world.agents.get(other)
        if agent and agent.session and agent.engines and accused and accused.engines:
            liar, peer = next(iter(agent.engines)), next(iter(accused.engines))
            if liar != peer:
                self.call(lambda: self.world.tell_link_failed(agent, liar, peer, failure))

    @rule(name=st.sampled_from(NAMES))
    def end_a_session(self, name: str) -> None:
        if name in self.world.agents:
            self.call(self.world.agents[name].disconnect)

    @rule()
    def reconnect(self) -> None:
        self.do(self.world.reconnect())

    @rule()
    def crash_the_coordinator(self) -> None:
        self.do(self.world.crash_coordinator())
        self.do(self.world.reconnect())

    @rule(count=st.integers(1, 3))
    def fill_the_disk(self, count: int) -> None:
        self.world.database.num_failing_commits = count

    # -- delays ------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(KINDS))
    def hold_back(self, name: str, kind: str) -> None:
        if name in self.world.agents:
            self.world.agents[name].held_kinds.add(kind)

    @rule(name=st.sampled_from(NAMES))
    def let_go(self, name: str) -> None:
        if name in self.world.agents:
            self.call(self.world.agents[name].release)

    @rule(name=st.sampled_from(NAMES))
    def repeat_every_answer(self, name: str) -> None:
        """Late and repeated results mean nothing."""
        agent = self.world.agents.get(name)
        if agent is not None and agent.session is not None:
            self.call(lambda: self._repeat(agent, agent.session))

    def _repeat(self, agent: SimAgent, session: AgentSession | None) -> None:
        for engine in agent.engines.values():
            for directive_id, outcome in engine.results.items():
                result = DirectiveResult(
                    directive_id=directive_id, job_id=engine.job_id, outcome=outcome
                )
                if session is not None:
                    session.result(result)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.do(self.world.advance(seconds))

    # -- requests ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def add_a_node(self, name: str) -> None:
        if name not in self.world.agents:
            agent = SimAgent(self.world, name)
            self.world.agents[name] = agent
            self.do(self._connect(agent))

    async def _connect(self, agent: SimAgent) -> None:
        self.world.database.num_failing_commits = 0
        self.world.clock.advance(3.1)  # the name's former agent is dead and silent by then
        await agent.connect()
        await self.world.settle()

    @rule()
    def pause(self) -> None:
        self.do(self._user_request("pause"))

    @rule()
    def resume(self) -> None:
        self.do(self._user_request("resume"))

    async def _user_request(self, verb: str) -> None:
        self.world.database.num_failing_commits = 0
        if not (await self.world.job()).state.is_terminal:
            await getattr(self.world.coordinator.jobs, verb)(self.world.job_id)
            await self.world.settle()

    @precondition(lambda self: bool(self.world.job_id))
    @rule(name=st.sampled_from(NAMES), verb=st.sampled_from(["drain", "uncordon"]))
    def drain_or_keep(self, name: str, verb: str) -> None:
        self.do(self._change_node(name, verb))

    async def _change_node(self, name: str, verb: str) -> None:
        self.world.database.num_failing_commits = 0
        nodes = {node.id: node for node in self.world.coordinator.cluster.all()}
        if name in nodes and nodes[name].state != "LOST":
            await getattr(self.world.coordinator.cluster, verb)(name)
            await self.world.settle()

    # -- the end -----------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """When faults end, every transition does, and the job goes on or says why not."""
        world = self.world
        world.database.num_failing_commits = 0
        await world.reconnect()
        for name in NAMES:
            if name not in world.agents:
                agent = SimAgent(world, name)
                world.agents[name] = agent
                await self._connect(agent)
        await world.release()
        job = await world.job()
        if not job.state.is_terminal:
            await world.coordinator.jobs.resume(world.job_id)
        for node in world.coordinator.cluster.all():
            if node.state != "LOST":
                await world.coordinator.cluster.uncordon(node.id)
        for _ in range(60):
            await world.reconnect()
            await world.train(2)
            await world.advance(2)
            job = await world.job()
            if job.state.is_terminal:
                break
        assert not world.violations
        self.check_end(job)
        assert job.end_time is not None
        wall_seconds = (job.end_time - job.create_time).total_seconds()
        assert abs(sum(job.time_seconds.values()) - wall_seconds) < 1e-6

    def check_end(self, job: Job) -> None:
        """While nobody has ended, nothing that engines say of each other ends a job."""
        assert job.state is JobState.SUCCEEDED, (job.state, job.error, self.world.run.transition)
        assert job.step == 40


class Liars(Cluster):
    """Engines accuse each other; also those that alone hold their layers."""

    @initialize(
        num_nodes=st.integers(2, 5), size=st.integers(1, 2), fault_tolerance=st.integers(0, 1)
    )
    def begin(self, num_nodes: int, size: int, fault_tolerance: int) -> None:
        self.do(self.world.start(max(num_nodes, size * (1 + fault_tolerance))))
        self.do(
            self.world.submit(
                resilience={"fault_tolerance": fault_tolerance},
                resources={"min_nodes_per_pipeline": size},
                training={"steps": 40},
            )
        )


class Mortals(Cluster):
    """A cluster of five nodes whose job wants to survive the loss of any two; some die."""

    @initialize(num_nodes=st.integers(3, 5), size=st.integers(1, 2), plans_ahead=st.booleans())
    def begin(self, num_nodes: int, size: int, plans_ahead: bool) -> None:
        """Pipelines of one node survive the loss of any two, pipelines of two nodes of any one."""
        self.world.planner.plans_ahead = plans_ahead
        self.do(self.world.start(max(num_nodes, 2 * size)))
        self.do(
            self.world.submit(
                resilience={"fault_tolerance": 2 if size == 1 else 1},
                resources={"min_nodes_per_pipeline": size},
                training={"steps": 40},
            )
        )

    @rule(share=st.integers(0, 5))
    def break_off_a_step(self, share: int) -> None:
        """Some engines have passed the exchange, the others never will."""
        members = self.world.begin_step()
        self.call(lambda: self.world.pass_exchange(members[:share]))
        if members and share and share < len(members):
            self._someone_is_lost(node_of(members[share].id))

    def _someone_is_lost(self, node_id: str) -> None:
        """A step is broken off only because somebody died."""
        if node_id in self.world.agents:
            self.do(self.world.kill_node(node_id))

    @rule(name=st.sampled_from(NAMES), seen=st.booleans())
    def kill_a_node(self, name: str, seen: bool) -> None:
        if name in self.world.agents:
            self.do(self.world.kill_node(name, seen_by_peers=seen))

    @rule(name=st.sampled_from(NAMES))
    def kill_an_engine(self, name: str) -> None:
        agent = self.world.agents.get(name)
        if agent is not None and agent.engines:
            self.call(lambda: agent.lose_engine(next(iter(agent.engines))))

    def check_end(self, job: Job) -> None:
        if job.state is not JobState.FAILED:
            super().check_end(job)
            return
        assert job.error is not None
        assert job.error.reason in ("STATE_LOST", "ENGINE_FAILED"), job.error


SETTINGS = settings(
    max_examples=20,
    stateful_step_count=30,
    derandomize=True,  # a find is reproduced; run it at random by hand
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestLiars = Liars.TestCase
TestLiars.settings = SETTINGS
TestMortals = Mortals.TestCase
TestMortals.settings = SETTINGS
