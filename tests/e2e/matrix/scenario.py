"""Plays one case of the matrix on a pool of nodes."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from e2e.matrix.table import Action, Case, Count, During
from planaria.job import JobSpec
from planaria.models import Job, Pipeline
from support.network import Network
from support.pool import Fired, Pool, Script

NUM_NODES = 6
SPARE = f"node-{NUM_NODES}"
HOLD_STEP = 1
FAILED_STEP = 3
CHECKPOINT_STEPS = 4
PACED_STEPS = range(8, 28)
PACE_SECONDS = 1.0
"""Each of these steps takes so long until the change of the plan has begun that an engine fails in:
a node takes seconds to join, and standing still as long would be taken for hanging."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine of the first plan."""

    node_id: str
    pid: int
    pipeline: int


@dataclass(kw_only=True)
class Played:
    """What happened."""

    case: Case
    job: Job
    engines: dict[str, Engine]
    """Those of the first plan, by node."""
    faults: list[Fired]
    first_loss: Fired | None
    agent_pids: dict[str, int] = field(default_factory=dict)

    @property
    def all_faults(self) -> list[Fired]:
        return [*([self.first_loss] if self.first_loss else []), *self.faults]

    @property
    def hurt_nodes(self) -> set[str]:
        return {fault.node_id for fault in self.all_faults}


class Scenario:
    """One case, on a pool whose nodes are all well and whose spare node is cordoned."""

    def __init__(self, pool: Pool, spec: JobSpec, case: Case, random: Random) -> None:
        self._pool = pool
        self._case = case
        self._random = random
        self._script: Script = pool.new_script()
        self._spec = self._with_checkpoints(spec)
        self._gate_of_nodes = self._script.gate()
        self._first_loss: int | None = None

    def _with_checkpoints(self, spec: JobSpec) -> JobSpec:
        if self._case.place.during is not During.CHECKPOINT:
            return spec
        folder = self._script.path.with_name(f"{self._script.path.name}.checkpoints")
        checkpoint = {"path": str(folder), "every_steps": CHECKPOINT_STEPS}
        return JobSpec.model_validate({**spec.to_document(), "checkpoint": checkpoint})

    def play(self) -> Played:
        """Run the job to its end."""
        pool, script = self._pool, self._script
        gate = script.gate()
        held = {f"node-{i}": self._hold(f"node-{i}", HOLD_STEP, gate) for i in range(NUM_NODES)}
        gates = {step: script.gate() for step in PACED_STEPS} if self._is_in_change else {}
        for step, each in gates.items():
            for index in range(NUM_NODES):
                self._hold(f"node-{index}", step, each)
        job = pool.client.submit(self._spec)
        pool.wait_for_step(job.id, HOLD_STEP)
        job_plan = pool.client.job_plan(job.id).plan
        assert job_plan is not None
        pipelines = list(job_plan.pipelines)
        for pipeline in pipelines:  # the stages behind wait for these
            pool.wait_for_mark(script, held[pipeline.stages[0].node_id])
        engines = self._engines(job, pipelines)
        agents = {node_id: part.process.pid for node_id, part in pool.nodes.items()}
        self._random.shuffle(pipelines)
        lines = self._place_failures(pipelines)
        gate.touch()
        self._pace(gates.values(), lambda: self._has_begun(job, lines))
        faults = self._fail(lines)
        first_loss = None if self._first_loss is None else script.fired(self._first_loss)
        end = pool.wait_for_end(job.id)
        return Played(
            case=self._case,
            job=end,
            engines=engines,
            faults=faults,
            first_loss=first_loss,
            agent_pids=agents,
        )

    def _hold(self, node_id: str, step: int, gate: os.PathLike[str]) -> int:
        return self._script.add(
            at="forward", step=step, action="hold", until=str(gate), engine=f"*/{node_id}/*"
        )

    def _engines(self, job: Job, pipelines: list[Pipeline]) -> dict[str, Engine]:
        found = {}
        for index, pipeline in enumerate(pipelines):
            for stage in pipeline.stages:
                (pid,) = self._pool.engines_of(job.id, stage.node_id).values()
                found[stage.node_id] = Engine(node_id=stage.node_id, pid=pid, pipeline=index)
        return found

    def _pace(self, gates: Iterable[Path], is_enough: Callable[[], bool]) -> None:
        """Open one gate after the other, and all of them as soon as there is no need to wait."""
        for each in gates:
            with contextlib.suppress(AssertionError):
                self._pool.wait_for("an engine to join", is_enough, timeout=PACE_SECONDS)
            each.touch()

    def _has_begun(self, job: Job, lines: list[int]) -> bool:
        if any(self._script.fired(line) is not None for line in lines):
            return True
        events = self._pool.client.events(job_id=job.id)
        return sum(event.type == "engine_ready" for event in events) > NUM_NODES

    # -- placing -----------------------------------------------------------------------------------

    def _place_failures(self, pipelines: list[Pipeline]) -> list[int]:
        """Add the lines of the script that fail; the first one's pipeline comes first."""
        if self._case.count is Count.SECOND:
            victim = self._random.choice(pipelines[0].stages).node_id
            self._first_loss = self._script.add(
                at="forward",
                step=FAILED_STEP,
                microbatch=self._random.choice(pipelines[0].microbatches),
                action="kill",
                engine=f"*/{victim}/*",
            )
            return [self._fail_in_step(pipelines[1])] if self._is_in_step else [self._fail_any()]
        if self._is_in_change:
            self._pool.client.uncordon_node(SPARE)
        if not self._is_in_step:
            return [self._fail_any()]
        num_victims = 2 if self._case.count is Count.TWO else 1
        return [self._fail_in_step(pipeline) for pipeline in pipelines[:num_victims]]

    @property
    def _is_in_step(self) -> bool:
        return self._case.place.during is During.STEP

    @property
    def _is_in_change(self) -> bool:
        return self._case.place.during is During.CHANGE

    def _fail_in_step(self, pipeline: Pipeline) -> int:
        place = self._case.place
        victim = self._random.choice(pipeline.stages).node_id
        when: dict[str, int] = {"since_step": FAILED_STEP}
        if self._first_loss is not None:
            when["after"] = self._first_loss
        elif place.has_microbatch:
            when["microbatch"] = self._random.choice(pipeline.microbatches)
        return self._add(f"*/{victim}/*", **when)

    def _fail_any(self, but: str = "") -> int:
        """Whoever comes to the place first."""
        engine = "*"
        if self._case.place.joiner_only:
            engine = f"*/{NUM_NODES + 1}"  # the first one behind those of the first plan
        elif but:
            engine = f"*/node-[!{but.removeprefix('node-')}]/*"
        after = {} if self._first_loss is None else {"after": self._first_loss}
        return self._add(engine, **after)

    def _add(self, engine: str, **when: int) -> int:
        action = self._case.action.failpoint
        until = {"until": str(self._gate_of_nodes)} if action == "hold" else {}
        return self._script.add(
            at=self._case.place.at, action=action, engine=engine, **until, **when
        )

    # -- failing -----------------------------------------------------------------------------------

    def _fail(self, lines: list[int]) -> list[Fired]:
        """Wait until the failures have happened, and do what is done from outside."""
        faults = [self._pool.wait_for_mark(self._script, line) for line in lines]
        self._hurt_nodes(faults)
        if not self._is_in_step and self._case.count is Count.TWO:
            another = self._fail_any(but=faults[0].node_id)
            faults.append(self._pool.wait_for_mark(self._script, another))
            self._hurt_nodes(faults[1:])
        self._let_return(faults)
        return faults

    def _hurt_nodes(self, faults: list[Fired]) -> None:
        for fault in faults:
            if self._case.action is Action.KILL_NODE:
                self._pool.kill_node(fault.node_id)
            elif self._case.action is Action.RETURN:
                self._pool.signal_node(fault.node_id, signal.SIGSTOP)
            elif self._case.action is Action.CUT:
                self._network.cut(fault.node_id)
        if self._case.action is Action.CUT:
            self._gate_of_nodes.touch()  # the engine goes on, and reaches nobody

    @property
    def _network(self) -> Network:
        assert self._pool.network is not None
        return self._pool.network

    def _let_return(self, faults: list[Fired]) -> None:
        if not self._case.action.returns:
            return
        for fault in faults:
            self._wait_until_lost(fault.node_id)
        for fault in faults:
            if self._case.action is Action.CUT:
                self._network.heal(fault.node_id)
            else:
                self._pool.signal_node(fault.node_id, signal.SIGCONT)
        self._pool.wait_for(
            "the nodes to join afresh",
            lambda: all(self._pool.is_ready(fault.node_id) for fault in faults),
        )

    def _wait_until_lost(self, node_id: str) -> None:
        client = self._pool.client
        self._pool.wait_for(
            f"{node_id} to be lost", lambda: client.get_node(node_id).state == "LOST"
        )
