"""A node's agent: passes directives on, and may lose its session or its life."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

from planaria_common.errors import ErrorReason, UnavailableError
from planaria_common.version import PROTOCOL_VERSION
from planaria_coordinator.application.agents.agent_messages import (
    Echo,
    EngineExited,
    Hello,
    Probe,
    ProbeResult,
    ReportsStored,
)
from planaria_coordinator.application.agents.agent_session import AgentSession
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.domain.engines.directive import Directive, InitialState, Prepare, Stop
from planaria_coordinator.domain.engines.node import EngineSnapshot
from planaria_coordinator.domain.engines.outcome import (
    DirectiveResult,
    Failure,
    MeasuredLayer,
    Outcome,
    Prepared,
    Stopped,
)
from planaria_coordinator.domain.engines.silence import Reach
from support.clock import FakeClock
from unit.coordinator.simulation.engine import SimEngine

NUM_LAYERS = 6


class AgentWorld(Protocol):
    """What an agent sees of the world."""

    counter: "count[int]"
    clock: FakeClock
    num_accelerators: int
    ties_embeddings: bool

    @property
    def coordinator(self) -> Coordinator: ...

    def check_stored(self, directive: Directive) -> None: ...

    def new_engine(self, directive: Directive) -> SimEngine: ...

    def reach(self, address: str) -> Reach: ...


class SimAgent:
    """A node's agent: passes directives on, and may lose its session or its life."""

    def __init__(self, world: AgentWorld, node_id: str) -> None:
        self.world = world
        self.node_id = node_id
        self.agent_id = f"agent-{next(world.counter)}"
        self.boot_id = "boot"
        self.engines: dict[str, SimEngine] = {}
        self.session: AgentSession | None = None
        self.is_silent = False
        """Neither beats nor hears, as if its network were cut."""
        self.is_stopped = False
        """Neither beats nor hears; its machine is there."""
        self.held_kinds: set[str] = set()
        self.held: list[Directive] = []
        self.outbox: list[Callable[[AgentSession], None]] = []
        self.unacknowledged: dict[int, Callable[[AgentSession], None]] = {}
        """Reports by number, until they are stored."""
        self.num_reports = 0
        self.refusal: Failure | None = None
        self.data_digest = "data"
        self.initial_state: InitialState | None = None
        self.fingerprint = {"torch": "2"}
        self.num_counts = 0
        """Engines that had to count the model's operations themselves."""
        self._reading: asyncio.Task[None] | None = None

    @property
    def talks(self) -> bool:
        return not (self.is_silent or self.is_stopped)

    async def connect(self) -> None:
        """Open a session, and say what could not be said before; or try again later."""
        hello = Hello(
            node_id=self.node_id,
            agent_id=self.agent_id,
            version="1",
            protocol_version=PROTOCOL_VERSION,
            advertise_address="127.0.0.1",
            num_accelerators=self.world.num_accelerators,
            accelerator_kind="cpu",
            accelerator_memory_bytes=1 << 34,
            pid=1,
            engines=self.snapshots(),
            boot_id=self.boot_id,
        )
        try:
            self.session = await self.world.coordinator.sessions.open(hello)
        except UnavailableError:
            return
        self._reading = asyncio.create_task(self._read(self.session))
        for say in (*self.unacknowledged.values(), *self.outbox):
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
        while (message := await session.next_message()) is not None:
            if isinstance(message, ReportsStored):
                self.unacknowledged = {
                    k: v for k, v in self.unacknowledged.items() if k > message.report_number
                }
            elif isinstance(message, Echo):
                self.beat()
            elif isinstance(message, Probe):
                self._answer_probe(message)
            elif isinstance(message, Directive):
                self.world.check_stored(message)
                self.hear(message)
        if self.session is session:
            self.session = None

    def _answer_probe(self, probe: Probe) -> None:
        reaches = [self.world.reach(address) for address in probe.addresses]
        reach = Reach.REACHABLE if Reach.REACHABLE in reaches else reaches[0]
        self.say(
            lambda session: session.probe_result(ProbeResult(probe_id=probe.probe_id, reach=reach))
        )

    def hear(self, directive: Directive) -> None:
        if not self.talks:
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

    def release_kind(self, kind: str) -> None:
        """Let go of one kind of directive only."""
        self.held_kinds.discard(kind)
        going = [directive for directive in self.held if directive.command.kind == kind]
        self.held = [directive for directive in self.held if directive.command.kind != kind]
        for directive in going:
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
            engine = self.world.new_engine(directive)
            self.engines[engine.id] = engine
        self.num_counts += not command.forward_flops
        return Prepared(
            engine=engine.snapshot(),
            data_digest=self.data_digest,
            fingerprint=self.fingerprint,
            initial_state=command.initial_state or self.initial_state,
            measured_layers=tuple(
                MeasuredLayer(
                    layer=layer,
                    forward_seconds=0.01,
                    backward_seconds=0.02,
                    forward_flops=flops,
                )
                for layer, flops in enumerate(command.forward_flops or range(NUM_LAYERS))
            ),
            peak_flops_per_second=1e3,
            ties_embeddings=self.world.ties_embeddings,
        )

    def answer(self, directive: Directive, outcome: Outcome) -> None:
        result = DirectiveResult(
            directive_id=directive.id, job_id=directive.job_id, outcome=outcome
        )
        self.say(lambda session: session.result(result))

    def say(self, message: Callable[[AgentSession], None]) -> None:
        """Send now, or when there is a session again."""
        if self.session is None or not self.talks:
            self.outbox.append(message)
        else:
            message(self.session)

    def report(self, message: Callable[[AgentSession], None]) -> None:
        """Send what is kept until it is stored."""
        self.num_reports += 1
        number = self.num_reports

        def deliver(session: AgentSession) -> None:
            message(session)
            session.note_report(number)

        self.unacknowledged[number] = deliver
        if self.session is not None and self.talks:
            deliver(self.session)

    def snapshots(self) -> tuple[EngineSnapshot, ...]:
        return tuple(engine.snapshot() for engine in self.engines.values())

    def beat(self) -> None:
        if self.session is not None and self.talks:
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
