"""Agents and engines that keep the protocol's promises, and a world to put them in.

Engines check what they are told: a directive that is not yet in the database, a generation that
shrinks, a place whose layers are not there in the version named, or a step taken back fails the
test that caused it (invariants 2, 4 and 7).
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from operator import methodcaller
from typing import Any

from planaria_common.clock import FakeClock
from planaria_common.errors import ErrorReason, UnavailableError
from planaria_coordinator.application.agents import (
    EngineExited,
    Hello,
    PeerLost,
    StepReport,
)
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.options import Options
from planaria_coordinator.application.policy import BuiltInPolicy
from planaria_coordinator.application.sessions import AgentSession
from planaria_coordinator.domain.directive import (
    Activate,
    Activated,
    Commit,
    CommitRecord,
    Committed,
    Copied,
    Copy,
    Digested,
    DigestLayers,
    Directive,
    DirectiveResult,
    Export,
    Exported,
    Failure,
    FenceReport,
    HeldLayer,
    MeasuredLayer,
    Outcome,
    Prepare,
    Prepared,
    Quiesce,
    QuiesceMode,
    Stop,
    Stopped,
)
from planaria_coordinator.domain.event import Event
from planaria_coordinator.domain.job import Job
from planaria_coordinator.domain.node import EngineSnapshot, EngineState
from planaria_coordinator.domain.recovery import Recovery
from planaria_coordinator.domain.run import JobRun
from unit.coordinator.fakes import FakeDatabase, FakePlanner, job_document

NUM_LAYERS = 6


@dataclass(slots=True)
class SimEngine:
    """An engine; `violations` collects what must never happen."""

    id: str
    job_id: str
    clock: FakeClock
    steps: int
    violations: list[str]
    generation: int
    state: EngineState = EngineState.STARTING
    committed_steps: int = 0
    progress: int = 0
    layers: dict[int, int] = field(default_factory=dict)
    """Version by layer."""
    place: Activate | None = None
    place_generation: int = 0
    at_commit: Directive | None = None
    """A Quiesce that waits for the next commit."""
    last_commit: CommitRecord | None = None
    has_sums: bool = False
    """Whether every sum of the step in flight is complete here."""
    compute_seconds: float = 0.0
    results: dict[str, Outcome] = field(default_factory=dict)

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            engine_id=self.id,
            job_id=self.job_id,
            accelerator=0,
            generation=self.generation,
            state=self.state,
            committed_steps=self.committed_steps,
            progress=self.progress,
            data_address=f"data:{self.id}",
            store_address=f"store:{self.id}",
        )

    def handle(self, directive: Directive) -> Outcome | None:
        """Carry out a directive once; None when the answer comes later."""
        if directive.id in self.results:
            return self.results[directive.id]
        if directive.generation < self.generation and not isinstance(directive.command, Stop):
            return Failure(reason=ErrorReason.STALE_GENERATION, message="stale", metadata={})
        self.generation = max(self.generation, directive.generation)
        outcome = self._carry_out(directive)
        if outcome is not None:
            self.results[directive.id] = outcome
        return outcome

    def _carry_out(self, directive: Directive) -> Outcome | None:
        now = self.clock.now()
        match directive.command:
            case Quiesce(mode=mode):
                if mode is QuiesceMode.AT_COMMIT and self.state is EngineState.TRAINING:
                    self.at_commit = directive
                    return None
                return self.park()
            case Commit(record=record):
                return self._commit_from_record(record)
            case Copy(layers=sources, version=version):
                fetched = [source for source in sources if source.addresses]
                self.layers.update({source.layer: version for source in sources})
                return Copied(
                    num_bytes=100 * len(fetched), layers=self.held(), start_time=now, end_time=now
                )
            case Activate() as activate:
                return self._activate(activate, directive.generation)
            case DigestLayers(layers=layers):
                versions = {self.layers.get(layer) for layer in layers}
                if versions != {self.committed_steps}:
                    self.violations.append(f"{self.id} digests layers of versions {versions}")
                digests = {layer: f"{layer:064x}" for layer in layers}
                return Digested(digests=digests, version=self.committed_steps)
            case Export(path=path):
                return Exported(path=path, num_bytes=1000)
            case Stop():
                return Stopped()
        raise AssertionError(directive)

    def park(self) -> FenceReport:
        """Stand still, and promise to join no sum of an older generation."""
        if self.state is not EngineState.FINISHED:
            self.state = EngineState.PARKED
        self.at_commit = None
        now = self.clock.now()
        return FenceReport(
            committed_steps=self.committed_steps,
            last_commit=self.last_commit,
            layers=self.held(),
            finished_microbatches=(0,) if self.compute_seconds else (),
            step_compute_seconds=self.compute_seconds,
            fence_time=now,
            park_time=now,
        )

    def held(self) -> tuple[HeldLayer, ...]:
        return tuple(HeldLayer(layer=k, version=v) for k, v in sorted(self.layers.items()))

    def _commit_from_record(self, record: CommitRecord) -> Outcome:
        if not self.has_sums or record.step != self.committed_steps:
            return Committed(
                committed_steps=self.committed_steps, stale_layers=tuple(sorted(self.layers))
            )
        self.apply(record)
        return Committed(committed_steps=self.committed_steps, stale_layers=())

    def apply(self, record: CommitRecord) -> None:
        """Commit a step: the only thing that changes parameters [3]."""
        if record.step != self.committed_steps:
            self.violations.append(f"{self.id} commits {record.step} at {self.committed_steps}")
        for layer, version in self.layers.items():
            if version == self.committed_steps:
                self.layers[layer] = version + 1
        self.committed_steps += 1
        self.last_commit = record
        self.has_sums = False
        self.compute_seconds = 0.0
        self.progress += 1
        if self.committed_steps == self.steps:
            self.state = EngineState.FINISHED

    def _activate(self, activate: Activate, generation: int) -> Outcome:
        if activate.committed_steps < self.committed_steps:
            self.violations.append(f"{self.id} is taken back from {self.committed_steps} [2]")
        mine = [s for p in activate.pipelines for s in p.stages if s.engine_id == self.id]
        for layer in range(mine[0].first_layer, mine[0].first_layer + mine[0].num_layers):
            if self.layers.get(layer) != activate.committed_steps:
                self.violations.append(
                    f"{self.id} has layer {layer} in version {self.layers.get(layer)}, not "
                    f"{activate.committed_steps} [2]"
                )
        needed = range(mine[0].first_layer, mine[0].first_layer + mine[0].num_layers)
        self.layers = dict.fromkeys(needed, activate.committed_steps)
        self.place, self.place_generation = activate, generation
        self.committed_steps = activate.committed_steps
        self.state = EngineState.TRAINING
        self.has_sums = False
        self.compute_seconds = 0.0
        now = self.clock.now()
        return Activated(rebuild_start_time=now, resume_time=now, num_communicators=1)


class SimAgent:
    """A node's agent: passes directives on, and may lose its session or its life."""

    def __init__(self, world: "World", node_id: str) -> None:
        self.world = world
        self.node_id = node_id
        self.agent_id = f"agent-{next(world.counter)}"
        self.engines: dict[str, SimEngine] = {}
        self.session: AgentSession | None = None
        self.is_silent = False
        """Neither beats nor hears, as if its network were cut."""
        self.held_kinds: set[str] = set()
        self.held: list[Directive] = []
        self.outbox: list[Callable[[AgentSession], None]] = []
        self.refusal: Failure | None = None
        self.data_digest = "data"
        self.fingerprint = {"torch": "2"}
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Open a session, and say what could not be said before; or try again later."""
        hello = Hello(
            node_id=self.node_id,
            agent_id=self.agent_id,
            version="1",
            protocol_version=1,
            advertise_address="127.0.0.1",
            num_accelerators=1,
            accelerator_kind="cpu",
            accelerator_memory_bytes=1 << 34,
            pid=1,
            engines=self.snapshots(),
        )
        try:
            self.session = await self.world.coordinator.sessions.open(hello)
        except UnavailableError:
            return
        self._reading = asyncio.create_task(self._read(self.session))
        for say in self.outbox:
            say(self.session)
        self.outbox.clear()

    def disconnect(self) -> None:
        """The session ends; engines know nothing of it."""
        if self._reading is not None:
            self._reading.cancel()
        if self.session is not None:
            self.session.close()
            self.session = None

    async def _read(self, session: AgentSession) -> None:
        while (directive := await session.next_directive()) is not None:
            self.world.check_stored(directive)
            self.hear(directive)
        if self.session is session:
            self.session = None

    def hear(self, directive: Directive) -> None:
        if self.is_silent:
            return
        if directive.command.kind in self.held_kinds:
            self.held.append(directive)
            return
        self.carry_out(directive)

    def release(self) -> None:
        """Let go what was held back."""
        self.held_kinds.clear()
        held, self.held = self.held, []
        for directive in held:
            self.carry_out(directive)

    def carry_out(self, directive: Directive) -> None:
        engine = self.engines.get(directive.engine_id)
        command = directive.command
        outcome: Outcome | None
        if isinstance(command, Prepare):
            outcome = self._prepare(directive, command)
        elif engine is None:
            stopped = Stopped() if isinstance(command, Stop) else None
            outcome = stopped or Failure(reason=ErrorReason.ENGINE_FAILED, message="no engine")
        else:
            outcome = engine.handle(directive)
            if isinstance(command, Stop):
                self.engines.pop(engine.id, None)
        if outcome is not None:
            self.answer(directive, outcome)

    def _prepare(self, directive: Directive, command: Prepare) -> Outcome:
        if self.refusal is not None:
            return self.refusal
        engine = self.engines.get(directive.engine_id)
        if engine is None:
            engine = SimEngine(
                id=directive.engine_id,
                job_id=directive.job_id,
                clock=self.world.clock,
                steps=self.world.steps,
                violations=self.world.violations,
                generation=directive.generation,
                state=EngineState.PARKED,
            )
            self.engines[engine.id] = engine
        return Prepared(
            engine=engine.snapshot(),
            data_digest=self.data_digest,
            num_tokens=1000,
            fingerprint=self.fingerprint,
            measured_layers=tuple(
                MeasuredLayer(layer=layer, forward_seconds=0.01, backward_seconds=0.02)
                for layer in (0, 1, NUM_LAYERS - 1)
            ),
        )

    def answer(self, directive: Directive, outcome: Outcome) -> None:
        result = DirectiveResult(
            directive_id=directive.id,
            job_id=directive.job_id,
            engine_id=directive.engine_id,
            generation=directive.generation,
            outcome=outcome,
        )
        self.say(lambda session: session.result(result))

    def say(self, message: Callable[[AgentSession], None]) -> None:
        """Send now, or when there is a session again."""
        if self.session is None or self.is_silent:
            self.outbox.append(message)
        else:
            message(self.session)

    def snapshots(self) -> tuple[EngineSnapshot, ...]:
        return tuple(engine.snapshot() for engine in self.engines.values())

    def beat(self) -> None:
        if self.session is not None and not self.is_silent:
            self.session.heartbeat(self.snapshots())

    def lose_engine(self, engine_id: str) -> None:
        """Its process is killed; the agent sees it."""
        engine = self.engines.pop(engine_id)
        self.held = [d for d in self.held if d.engine_id != engine_id]
        exited = EngineExited(
            job_id=engine.job_id,
            engine_id=engine_id,
            exit_code=-9,
            detect_time=self.world.clock.now(),
            log_tail=(),
        )
        self.say(lambda session: session.engine_exited(exited))


class World:
    """A coordinator, its agents, and the training they do."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.database = FakeDatabase()
        self.database.on_event = self._check_event
        self.planner = FakePlanner()
        self.policy: Any = BuiltInPolicy()
        self.agents: dict[str, SimAgent] = {}
        self.violations: list[str] = []
        self.counter = count(1)
        self.steps = 100
        self.job_id = ""
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(
            database=self.database,
            planner=self.planner,
            policy=self.policy,
            clock=self.clock,
            options=Options(store_retry_seconds=0.0, planner_retry_seconds=0.0),
            new_id=lambda kind: f"{kind}-{next(self.counter)}",
        )

    # -- the world's time --------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everybody do what there is to do."""
        quiet = 0
        for _ in range(20_000):
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.coordinator.is_idle else 0
            if quiet > 30:
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

    async def add_node(self, node_id: str) -> SimAgent:
        agent = SimAgent(self, node_id)
        self.agents[node_id] = agent
        await agent.connect()
        await self.settle()
        return agent

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
                lost = PeerLost(
                    job_id=engine.job_id,
                    engine_id=engine.id,
                    lost_engine_id=engine_id,
                    detect_time=self.clock.now(),
                )
                agent.say(methodcaller("peer_lost", lost))

    async def crash_coordinator(self) -> None:
        """Kill it without a word, and start another one on the same database."""
        for task in self.coordinator._tasks:
            task.cancel()
        for actor in tuple(self.coordinator._state.actors.values()):
            await actor.stop()
        for agent in self.agents.values():
            agent.disconnect()
        self.coordinator = self._new_coordinator()
        await self.coordinator.start(with_clock=False)

    async def reconnect(self) -> None:
        for agent in self.agents.values():
            while agent.session is None and not agent.is_silent:
                await agent.connect()
        await self.settle()

    async def stop(self) -> None:
        await self.settle()
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
        self.job_id = (await self.coordinator.jobs.create(document)).job.id
        await self.settle()
        return self.job_id

    async def job(self) -> Job:
        return await self.coordinator.jobs.get(self.job_id)

    @property
    def run(self) -> JobRun:
        return self.coordinator._state.actors[self.job_id].run

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

    def members(self) -> list[SimEngine]:
        """The engines of the newest generation that trains; empty unless all of them do."""
        engines = self.engines()
        placed = [e for e in engines.values() if e.place is not None]
        if not placed:
            return []
        newest = max(placed, key=lambda e: e.place_generation)
        assert newest.place is not None
        ids = [s.engine_id for p in newest.place.pipelines for s in p.stages]
        members = [engines[engine_id] for engine_id in ids if engine_id in engines]
        complete = len(members) == len(ids) and all(
            e.state is EngineState.TRAINING
            and e.place_generation == newest.place_generation
            and e.generation
            <= max(e.place_generation, e.at_commit.generation if e.at_commit else 0)
            for e in members
        )
        return members if complete else []

    def begin_step(self) -> list[SimEngine]:
        """Everyone computes the step and has all its sums; nobody has passed the exchange."""
        members = self.members()
        for engine in members:
            engine.has_sums = True
            engine.compute_seconds = 1.0
            engine.progress += 1
        return members

    def pass_exchange(self, engines: Iterable[SimEngine]) -> None:
        """These learn that everyone has the sums, and commit."""
        for engine in engines:
            record = CommitRecord(
                step=engine.committed_steps,
                generation=engine.place_generation,
                gradient_norm=1.0,
                loss=1.0 / (1 + engine.committed_steps),
                num_tokens=128,
            )
            marked = engine.at_commit
            engine.apply(record)
            agent = self._agent_of(engine)
            self._report_step(agent, engine, record)
            if marked is not None:
                outcome = engine.park()
                engine.results[marked.id] = outcome
                agent.answer(marked, outcome)

    def _report_step(self, agent: SimAgent, engine: SimEngine, record: CommitRecord) -> None:
        now: datetime = self.clock.now()
        report = StepReport(
            job_id=engine.job_id,
            engine_id=engine.id,
            record=record,
            learning_rate=0.1,
            step_seconds=1.0,
            seconds={},
            commit_time=now,
        )
        agent.say(lambda session: session.step_report(report))

    def _agent_of(self, engine: SimEngine) -> SimAgent:
        return next(a for a in self.agents.values() if engine.id in a.engines)

    async def train(self, num_steps: int = 1) -> None:
        """Train whole steps; engines that stand still do not."""
        for _ in range(num_steps):
            self.clock.advance(1.0)
            for agent in self.agents.values():
                agent.beat()
            members = self.begin_step()
            marks = {e.at_commit is not None for e in members}
            if len(marks) == 2:  # the mark travels: the exchange after this one parks everyone
                held = [e for e in members if e.at_commit is not None]
                waiting = {e.id: e.at_commit for e in held}
                for engine in held:
                    engine.at_commit = None
                self.pass_exchange(members)
                for engine in held:
                    engine.at_commit = waiting[engine.id]
            else:
                self.pass_exchange(members)
            await self._tick()


async def running_world(num_nodes: int = 4, **changes: Any) -> World:
    """Return a world whose job trains on all its nodes."""
    world = World()
    await world.start(num_nodes)
    await world.submit(**changes)
    await world.train()
    return world
