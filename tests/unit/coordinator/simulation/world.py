"""A world: a coordinator over fakes, agents and engines, and the training they do.

Engines check what they are told: a directive that is not yet in the database, a generation that
shrinks, a place whose layers are not there in the version named, or a step taken back fails the
test that caused it (invariants 2, 4 and 7).
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from operator import methodcaller
from typing import Any, ClassVar

from planaria_common.errors import UnavailableError
from planaria_coordinator.application.agents.agent_messages import LinkFailed, StepReport
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.scheduling.policy import BuiltInPolicy
from planaria_coordinator.domain.engines.directive import CommitRecord, Directive
from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.links import LinkDirection, LinkFailure
from planaria_coordinator.domain.engines.outcome import Outcome
from planaria_coordinator.domain.engines.silence import Reach
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.domain.job.job import Job
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.recovery.recovery_record import Recovery
from planaria_coordinator.domain.recovery.transition import Phase
from support.clock import FakeClock
from support.repository import ROOT
from unit.coordinator.protocol.engine_model import EngineModel
from unit.coordinator.protocol.engine_state import Member, Plans
from unit.coordinator.simulation.agent import NUM_LAYERS, SimAgent
from unit.coordinator.simulation.engine import SimEngine
from unit.coordinator.simulation.fake_database import FakeDatabase
from unit.coordinator.simulation.fake_planner import FakePlanner
from unit.coordinator.simulation.job_documents import job_document

_EVENTS_PAGE = ROOT / "docs" / "reference" / "events.md"
DOCUMENTED_EVENTS = frozenset(re.findall(r"`([a-z_]+)`", _EVENTS_PAGE.read_text()))


class World:
    """A coordinator, its agents, and the training they do."""

    running: ClassVar[list["World"]] = []
    """Those that are not stopped yet: a fixture stops them after the test."""

    def __init__(self, *, num_accelerators: int = 1) -> None:
        self.num_accelerators = num_accelerators
        """Of each node: it has an engine for each."""
        self.clock = FakeClock()
        self.database = FakeDatabase()
        self.database.on_event = self._check_event
        self.planner = FakePlanner()
        self.policy: Any = BuiltInPolicy()
        self.agents: dict[str, SimAgent] = {}
        self.reaches: dict[str, Reach] = {}
        """By node: how its machine answers others, where that is not how it looks."""
        self.violations: list[str] = []
        self.plans = Plans()
        self.counter = count(1)
        self.steps = 100
        self.num_commits = 100
        self.evaluates_every = 0
        self.skipped: frozenset[int] = frozenset()
        """Steps that have a gradient out of range."""
        self.ties_embeddings = False
        """What engines say of the model."""
        self.job_id = ""
        self.on_commit: Callable[[SimEngine], None] = lambda _engine: None
        """Called when an engine has entered a commit, before it says anything of it."""
        self.next_generation = 0
        """What everybody holds a mark for, at the exchange of the step in flight."""
        self.coordinator = self._new_coordinator()
        self.running.append(self)

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(
            database=self.database.open(),
            planner=self.planner,
            policy=self.policy,
            clock=self.clock,
            options=Options(store_retry_seconds=0.0, planner_retry_seconds=0.0),
            new_id=lambda kind: f"{kind}-{next(self.counter)}",
        )

    # -- the world's time --------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everybody do what there is to do."""
        quiet, nodes = 0, self.coordinator._state.nodes
        for _ in range(20_000):
            await asyncio.sleep(0)
            if nodes.look_wanted.is_set():  # the coordinator's own loop looks at once
                nodes.look_wanted.clear()
                quiet = 0
                with suppress(UnavailableError):
                    await self.coordinator.tick()
            idle = self.coordinator.is_idle or not self.planner.is_open.is_set()
            quiet = quiet + 1 if idle else 0
            if quiet > (30 if self.planner.is_open.is_set() else 1000):
                assert not self.violations, self.violations
                return
        raise AssertionError("the coordinator does not come to rest")

    async def advance(self, seconds: float, *, tick_seconds: float = 0.5) -> None:
        """Let time pass: agents beat, and the coordinator looks at the clock."""
        for _ in range(round(seconds / tick_seconds)):
            self.clock.advance(tick_seconds)
            for agent in self.agents.values():
                agent.beat()
            await self._tick()

    async def _tick(self) -> None:
        with suppress(UnavailableError):  # the coordinator's own loop logs it and tries again
            await self.coordinator.tick()
        await self.settle()

    # -- nodes -------------------------------------------------------------------------------------

    async def start(self, num_nodes: int) -> None:
        await self.coordinator.start(with_clock=False)
        for index in range(num_nodes):
            await self.add_node(f"n{index}")
        await self.settle()

    async def add_node(self, node_id: str, *held_kinds: str) -> SimAgent:
        """An agent connects; commands of these kinds it takes, and answers when it is released."""
        agent = SimAgent(self, node_id)
        agent.held_kinds.update(held_kinds)
        self.agents[node_id] = agent
        await agent.connect()
        await self.settle()
        return agent

    def hold(self, kind: str, *node_ids: str) -> None:
        """From now on all agents, or these, take commands of a kind without an answer."""
        for node_id in node_ids or tuple(self.agents):
            self.agents[node_id].held_kinds.add(kind)

    async def release(self) -> None:
        """Let all agents answer what they have held back."""
        for agent in self.agents.values():
            agent.release()
        await self.settle()

    async def kill_node(self, node_id: str, *, seen_by_peers: bool = True) -> None:
        """Agent and engines are killed at once; peers see the ends of their connections."""
        agent = self.agents.pop(node_id)
        dead = list(agent.engines)
        agent.disconnect()
        if seen_by_peers:
            for engine_id in dead:
                self.tell_peer_lost(engine_id)
        await self.settle()

    def tell_peer_lost(self, engine_id: str) -> None:
        for agent in self.agents.values():
            for engine in agent.engines.values():
                self.tell_link_failed(agent, engine.id, engine_id, LinkFailure.ENDED)

    def tell_link_failed(
        self, agent: SimAgent, engine_id: str, peer_engine_id: str, failure: LinkFailure
    ) -> None:
        """An engine of an agent says that its link with a peer failed."""
        failed = LinkFailed(
            job_id=self.job_id,
            engine_id=engine_id,
            peer_engine_id=peer_engine_id,
            direction=LinkDirection.OUTGOING,
            failure=failure,
            detect_time=self.clock.now(),
        )
        agent.say(methodcaller("link_failed", failed))

    async def crash_coordinator(self) -> None:
        """Kill it without a word, and start another one on the same database."""
        for task in self.coordinator._tasks:
            task.cancel()
        for actor in tuple(self.coordinator._state.actors.values()):
            await actor.stop()
        for agent in self.agents.values():
            agent.disconnect()
        await self.replace_coordinator()

    async def replace_coordinator(self) -> Coordinator:
        """Another one opens the database; return the old one, which knows nothing of it."""
        old = self.coordinator
        self.coordinator = self._new_coordinator()
        await self.coordinator.start(with_clock=False)
        return old

    async def reconnect(self) -> None:
        for agent in self.agents.values():
            while agent.session is None and agent.talks:
                await agent.connect()
        await self.settle()

    async def reconnect_once(self) -> None:
        """Every agent without a session tries to open one."""
        for agent in self.agents.values():
            if agent.session is None:
                await agent.connect()
        await self.settle()

    async def stop(self) -> None:
        """Come to rest; fails if an engine was told what it must not be."""
        self.running.remove(self)
        await self.settle()
        unknown = {event.type for event in self.events} - DOCUMENTED_EVENTS
        assert not unknown, f"docs/reference/events.md lacks {unknown}"
        for agent in self.agents.values():
            agent.disconnect()
        await self.coordinator.stop()

    def check_stored(self, directive: Directive) -> None:
        """What is told has been written before, the generation first [4, 7]."""
        if directive.id.startswith("stop/"):
            return  # to an engine that no job counts on
        tables = self.database.tables
        if directive.id not in tables.directives:
            self.violations.append(f"{directive.id} was sent before it was stored")
        if (directive.job_id, directive.generation) not in tables.generations:
            self.violations.append(f"generation {directive.generation} was not stored")

    def _check_event(self, event: Event) -> None:
        """State is only lost when no survivor has it, nor the sums to make it from [5]."""
        if event.type != "job_failed" or event.details.get("reason") != "STATE_LOST":
            return
        transition = self.run.transition
        if transition is None or transition.generation != event.generation:
            return  # those who were told were declared lost in the same decision
        everyone = self.engines()
        survivors = [everyone[e] for e in transition.participants if e in everyone]
        target = max((engine.committed_steps for engine in survivors), default=0)
        available = {
            layer
            for engine in survivors
            for layer, version in engine.layers.items()
            if version == target or (version == target - 1 and engine.has_sums)
        }
        if survivors and available == set(range(NUM_LAYERS)):
            self.violations.append(f"the state of step {target} was there: {event.message}")

    # -- jobs --------------------------------------------------------------------------------------

    async def submit(self, **changes: Any) -> str:
        document = job_document(**changes)
        self.steps = document["training"]["steps"]
        self.evaluates_every = document.get("evaluation", {}).get("every_steps", 0)
        self.num_commits = self.steps + bool(self.evaluates_every)
        self.job_id = (await self.coordinator.jobs.create(document)).job.id
        await self.settle()
        return self.job_id

    async def job(self) -> Job:
        return await self.coordinator.jobs.get(self.job_id)

    @property
    def run(self) -> JobRun:
        return self.coordinator._state.actors[self.job_id].run

    @property
    def phase(self) -> Phase | None:
        """Of the transition under way."""
        return self.run.transition.phase if self.run.transition is not None else None

    @property
    def events(self) -> list[Event]:
        return self.database.tables.events

    def event_types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def recoveries(self) -> list[Recovery]:
        return self.database.tables.recoveries

    # -- training ----------------------------------------------------------------------------------

    def engines(self) -> dict[str, SimEngine]:
        return {e.id: e for agent in self.agents.values() for e in agent.engines.values()}

    def engine_on(self, node_id: str) -> SimEngine:
        """Return the first engine of a node."""
        return next(iter(self.agents[node_id].engines.values()))

    def new_engine(self, directive: Directive) -> SimEngine:
        """Start an engine, parked, with no layers."""
        model = EngineModel(
            directive.engine_id,
            self.plans,
            self.num_commits,
            now=self.clock.now,
            make_record=self._record,
        )
        member = Member(
            layers=(None,) * NUM_LAYERS, generation=directive.generation, is_parked=True
        )
        return SimEngine(
            job_id=directive.job_id,
            clock=self.clock,
            steps=self.steps,
            violations=self.violations,
            model=model,
            member=member,
            peers=self._member_at,
        )

    def reach(self, address: str) -> Reach:
        """Say how a machine answers another node; one that is gone does not."""
        node_id = node_of(address.removeprefix("data:"))
        agent = self.agents.get(node_id)
        if node_id in self.reaches:
            return self.reaches[node_id]
        if agent is None or agent.is_silent:
            return Reach.UNREACHABLE
        has_engine = address.removeprefix("data:") in agent.engines
        return Reach.REACHABLE if has_engine else Reach.REFUSED

    def _member_at(self, address: str) -> Member | None:
        engine = self.engines().get(address.removeprefix("data:"))
        return None if engine is None else engine.member

    def members(self) -> list[SimEngine]:
        """The engines of the newest plan; empty unless all of them train."""
        engines = self.engines()
        numbers = [e.member.plan for e in engines.values() if e.member.plan >= 0]
        if not numbers:
            return []
        newest = max(numbers, key=lambda number: self.plans[number].generation)
        plan = self.plans[newest]
        chained = [engine_id for chain in plan.chains for engine_id in chain]
        ids = [*chained, *(e for e, _ in plan.layers if e not in chained)]
        members = [engines[engine_id] for engine_id in ids if engine_id in engines]
        complete = len(members) == len(ids) and all(
            e.takes_part and e.member.plan == newest for e in members
        )
        return members if complete else []

    def begin_step(self) -> list[SimEngine]:
        """Everyone computes the step and has all its sums; nobody has voted yet."""
        members = self.members()
        marks = {e.member.mark for e in members}
        self.next_generation = marks.pop() if len(marks) == 1 else 0
        for engine in members:
            engine.compute()
        self._check_sums(members)
        return members

    def _check_sums(self, members: list[SimEngine]) -> None:
        """Each microbatch is in each layer's sum exactly once [1]."""
        for layer in range(NUM_LAYERS):
            summed = sorted(m for e in members if layer in e.owned for m in e.gradients)
            if members and summed != list(range(len(summed))):
                self.violations.append(f"layer {layer} sums {summed} [1]")

    async def commit_unreported(self) -> None:
        """Everybody commits the step in flight; the reports are lost, heartbeats come again."""
        members = self.begin_step()
        for agent in self.agents.values():
            agent.is_silent = True
        self.pass_exchange(members)
        for agent in self.agents.values():
            agent.is_silent = False
            agent.outbox.clear()
            agent.beat()
        await self.settle()

    def pass_exchange(self, engines: Iterable[SimEngine]) -> None:
        """These learn that everyone has the sums, and commit."""
        for engine in engines:
            record = self._record(
                engine.committed_steps, engine.active_generation, self.next_generation
            )
            report = engine.commit(record)
            agent = self._agent_of(engine)
            self.on_commit(engine)
            self._report_step(agent, engine, record)
            if report is not None:
                self._answer(engine, report)
        self.switch_engines()

    def _record(self, step: int, generation: int, next_generation: int) -> CommitRecord:
        trains = step < self.steps
        evaluates = self.evaluates_every and (not trains or step % self.evaluates_every == 0)
        return CommitRecord(
            step=step,
            generation=generation,
            gradient_norm=1.0 if trains else 0.0,
            loss=1.0 / (1 + step) if trains and step not in self.skipped else 0.0,
            num_tokens=128 if trains else 0,
            next_generation=next_generation,
            evaluation_loss=2.0 / (1 + step) if evaluates else None,
            num_skipped=1 if step in self.skipped else 0,
            skipped_layer=2 if step in self.skipped else 0,
        )

    def switch_engines(self) -> None:
        """Let every engine switch that has all it needs."""
        for engine in self.engines().values():
            answer = engine.switch()
            if answer is not None and engine.pending is not None:
                self._answer(engine, answer)

    def _answer(self, engine: SimEngine, outcome: Outcome) -> None:
        """Answer the directive that waited for a commit."""
        directive, engine.pending = engine.pending, None
        assert directive is not None
        engine.results[directive.id] = outcome
        self._agent_of(engine).answer(directive, outcome)

    def _report_step(self, agent: SimAgent, engine: SimEngine, record: CommitRecord) -> None:
        report = StepReport(
            job_id=engine.job_id,
            record=record,
            learning_rate=0.1,
            step_seconds=1.0,
            commit_time=self.clock.now(),
        )
        agent.report(lambda session: session.step_report(report))

    def _agent_of(self, engine: SimEngine) -> SimAgent:
        return next(a for a in self.agents.values() if engine.id in a.engines)

    async def train(self, num_steps: int = 1) -> None:
        """Train whole steps; parked engines do not."""
        for _ in range(num_steps):
            self.clock.advance(1.0)
            for agent in self.agents.values():
                agent.beat()
            self.pass_exchange(self.begin_step())
            await self._tick()


async def running_world(num_nodes: int = 4, num_accelerators: int = 1, /, **changes: Any) -> World:
    """Return a world whose job trains on all its nodes."""
    world = World(num_accelerators=num_accelerators)
    await world.start(num_nodes)
    await world.submit(**changes)
    await world.train()
    return world
