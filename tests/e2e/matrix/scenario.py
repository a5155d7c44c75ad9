"""Plays one case of the matrix on a pool of nodes."""

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.common.network import RESET
from e2e.matrix.pace import Pace, hold
from e2e.matrix.table import Action, Case, Count, During
from planaria.job import JobSpec
from planaria.models import Job, Pipeline
from support.network import Network
from support.pool import Fired, Pool, Script

NUM_NODES = 6
NODES = tuple(f"node-{index}" for index in range(NUM_NODES))
SPARE = f"node-{NUM_NODES}"
HOLD_STEP = 1
FAILED_STEP = 3
CHECKPOINT_STEPS = 4
PACED_STEPS = range(8, 28)
"""These take their time until the engine has failed."""
NUM_STAGED_STEPS = 3
"""So many are reported while an engine is held in staging, and go as fast as this is seen."""
STAGED_STEP_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine of the first plan."""

    node_id: str
    pid: int
    pipeline: int


@dataclass(frozen=True, kw_only=True)
class Staging:
    """When an engine was held in staging; seconds of CLOCK_MONOTONIC."""

    start: float
    end: float


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
    staging: Staging | None = None
    checkpoints: Path
    """The folder of checkpoints, where the job writes any."""

    @property
    def all_faults(self) -> list[Fired]:
        return [*([self.first_loss] if self.first_loss else []), *self.faults]

    @property
    def hurt_nodes(self) -> set[str]:
        return {fault.node_id for fault in self.all_faults}

    @property
    def losses(self) -> list[Fired]:
        """Those by which an engine was lost."""
        loses = self.case.action.loses(self.case.place)
        return [fault for fault in self.all_faults if loses or fault is self.first_loss]


class Scenario:
    """One case, on a pool whose nodes are all well and whose spare node is cordoned."""

    def __init__(self, pool: Pool, spec: JobSpec, case: Case, random: Random) -> None:
        self._pool = pool
        self._case = case
        self._random = random
        self._script: Script = pool.new_script()
        self._spec = self._with_checkpoints(spec)
        self._gate_of_nodes = self._script.gate()
        self._gate_of_staging = self._script.gate()
        self._first_loss: int | None = None
        self._job_id = ""
        self._pace = Pace(pool, self._script, NODES, PACED_STEPS if self._is_paced else ())

    def _with_checkpoints(self, spec: JobSpec) -> JobSpec:
        if self._case.place.during is not During.CHECKPOINT:
            return spec
        checkpoint = {"path": str(self._checkpoints), "every_steps": CHECKPOINT_STEPS}
        return JobSpec.model_validate({**spec.to_document(), "checkpoint": checkpoint})

    @property
    def _checkpoints(self) -> Path:
        return self._script.path.with_name(f"{self._script.path.name}.checkpoints")

    def play(self) -> Played:
        """Run the job to its end."""
        pool, script = self._pool, self._script
        gate = script.gate()
        held = {node_id: hold(script, node_id, HOLD_STEP, gate) for node_id in NODES}
        job = pool.client.submit(self._spec)
        self._job_id = job.id
        pool.wait_for_step(job.id, HOLD_STEP)
        job_plan = pool.client.job_plan(job.id).plan
        assert job_plan is not None
        pipelines = list(job_plan.pipelines)
        for pipeline in pipelines:  # the stages behind wait for these
            pool.wait_for_mark(script, held[pipeline.stages[0].node_id])
        engines = self._engines(job, pipelines)
        agents = {node_id: part.process.pid for node_id, part in pool.nodes.items()}
        self._random.shuffle(pipelines)
        self._begin_change(pipelines)
        if self._case.place.is_staged:
            staging = self._train_beside_staging(job, gate)
            lines = [self._fail_any()]
            self._gate_of_staging.touch()
        else:
            staging = None
            lines = self._place_failures(pipelines)
            gate.touch()
        faults = self._fail(lines)
        self._pace.end()
        first_loss = None if self._first_loss is None else script.fired(self._first_loss)
        end = pool.wait_for_end(job.id)
        return Played(
            case=self._case,
            job=end,
            engines=engines,
            faults=faults,
            first_loss=first_loss,
            agent_pids=agents,
            staging=staging,
            checkpoints=self._checkpoints,
        )

    def _engines(self, job: Job, pipelines: list[Pipeline]) -> dict[str, Engine]:
        found = {}
        for index, pipeline in enumerate(pipelines):
            for stage in pipeline.stages:
                (pid,) = self._pool.engines_of(job.id, stage.node_id).values()
                found[stage.node_id] = Engine(node_id=stage.node_id, pid=pid, pipeline=index)
        return found

    def _train_beside_staging(self, job: Job, gate: Path) -> Staging:
        """Hold an engine in staging until some steps have been committed meanwhile."""
        engine = self._whoever()
        held = self._script.add(
            at="stage",
            action="hold",
            until=str(self._gate_of_staging),
            engine=engine,
            **self._after,
        )
        gate.touch()
        start = self._pace.wait_for_mark(held).seconds
        enough = self._pool.client.get_job(job.id).step + NUM_STAGED_STEPS
        self._pace.wait_for(
            "steps to be committed during staging",
            lambda: self._pool.client.get_job(job.id).step >= enough,
            STAGED_STEP_SECONDS,
        )
        return Staging(start=start, end=time.monotonic())

    # -- placing -----------------------------------------------------------------------------------

    def _begin_change(self, pipelines: list[Pipeline]) -> None:
        """Lose an engine or let a node join, and spoil the staging when the place asks for it."""
        if self._case.count is Count.SECOND:
            victim = self._random.choice(pipelines[0].stages).node_id
            self._first_loss = self._script.add(
                at="forward",
                step=FAILED_STEP,
                microbatch=self._random.choice(pipelines[0].microbatches),
                action="kill",
                engine=f"*/{victim}/*",
            )
        elif self._is_in_change:
            self._pool.client.uncordon_node(SPARE)
        if self._case.place.is_unstaged:
            self._script.add(at="stage", action="raise", **self._after)

    def _place_failures(self, pipelines: list[Pipeline]) -> list[int]:
        """Add the lines of the script that fail; the first one's pipeline comes first."""
        if not self._is_in_step:
            if self._case.place.is_once and self._case.count is Count.TWO:
                return [self._add(f"*/{node_id}/*") for node_id in self._random.sample(NODES, 2)]
            return [self._fail_any()]
        match self._case.count:
            case Count.ONE:
                victims = pipelines[:1]
            case Count.TWO:
                victims = pipelines[:2]
            case Count.SECOND:
                victims = pipelines[1:2]
        return [self._fail_in_step(pipeline) for pipeline in victims]

    @property
    def _is_in_step(self) -> bool:
        return self._case.place.during is During.STEP

    @property
    def _is_paced(self) -> bool:
        return self._is_in_change or self._case.action is Action.SILENT

    @property
    def _is_in_change(self) -> bool:
        return self._case.place.during is During.CHANGE

    def _fail_in_step(self, pipeline: Pipeline) -> int:
        place = self._case.place
        victim = self._random.choice(pipeline.stages).node_id
        when = {"since_step": FAILED_STEP, **self._after}
        if self._first_loss is None and place.has_microbatch:
            when["microbatch"] = self._random.choice(pipeline.microbatches)
        return self._add(f"*/{victim}/*", **when)

    @property
    def _after(self) -> dict[str, int]:
        """What a line says that is for the recovery from the first loss."""
        return {} if self._first_loss is None else {"after": self._first_loss}

    def _whoever(self, but: str = "") -> str:
        """Return the pattern of the engines of which the first one at the place fails."""
        if self._case.place.joiner_only:
            return f"*/{NUM_NODES + 1}"  # the first one behind those of the first plan
        return f"*/node-[!{but.removeprefix('node-')}]/*" if but else "*"

    def _fail_any(self, but: str = "") -> int:
        return self._add(self._whoever(but), **self._after)

    def _add(self, engine: str, **when: int) -> int:
        action = self._case.action.failpoint
        until = {"until": str(self._gate_of_nodes)} if action == "hold" else {}
        return self._script.add(
            at=self._case.place.at, action=action, engine=engine, **until, **when
        )

    # -- failing -----------------------------------------------------------------------------------

    def _fail(self, lines: list[int]) -> list[Fired]:
        """Wait until the failures have happened, and do what is done from outside."""
        faults = [self._pace.wait_for_mark(line) for line in lines]
        self._hurt_nodes(faults)
        if not self._is_in_step and len(faults) < self._case.count.num_at_once:
            another = self._fail_any(but=faults[0].node_id)
            faults.append(self._pace.wait_for_mark(another))
            self._hurt_nodes(faults[1:])
        self._let_return(faults)
        return faults

    def _hurt_nodes(self, faults: list[Fired]) -> None:
        for fault in faults:
            match self._case.action:
                case Action.KILL_NODE:
                    self._pool.kill_node(fault.node_id)
                case Action.RETURN:
                    self._pool.signal_node(fault.node_id, signal.SIGSTOP)
                case Action.SILENT:
                    self._pool.nodes[fault.node_id].process.send_signal(signal.SIGSTOP)
                case Action.CUT:
                    self._network.cut(fault.node_id)
                case Action.CUT_PEERS:
                    answer = self._random.choice(("drop", RESET))
                    self._network.cut_from_peers(fault.node_id, self._pool.host, answer)
        if self._case.action in (Action.CUT, Action.SILENT, Action.CUT_PEERS):
            self._gate_of_nodes.touch()  # the engine goes on

    @property
    def _network(self) -> Network:
        assert self._pool.network is not None
        return self._pool.network

    def _let_return(self, faults: list[Fired]) -> None:
        """Heal what was cut or stopped, when the coordinator has seen it.

        Steps go on meanwhile: who stood at a gate all the while would be taken to hang.
        """
        if not self._case.action.returns:
            return
        nodes = [fault.node_id for fault in faults]
        self._pace.wait_for(
            f"the coordinator to see what ails {nodes}", lambda: all(map(self._is_seen, nodes))
        )
        for node_id in nodes:
            match self._case.action:
                case Action.CUT:
                    self._network.heal(node_id)
                case Action.CUT_PEERS:
                    self._network.unfilter(node_id)
                case Action.SILENT:
                    self._pool.nodes[node_id].process.send_signal(signal.SIGCONT)
                case Action.RETURN:
                    self._pool.signal_node(node_id, signal.SIGCONT)
        self._pace.wait_for(
            "the nodes to be ready and heard", lambda: not any(map(self._is_unwell, nodes))
        )

    def _is_seen(self, node_id: str) -> bool:
        """Tell whether the coordinator has drawn its conclusion from what a node suffers."""
        match self._case.action:
            case Action.SILENT:
                return node_id in self._silent_nodes() or self._is_lost(node_id)
            case Action.CUT_PEERS:
                kinds = ("node_left_out", "engine_lost")
                return bool(kinds_of_events(self._pool, self._job_id, node_id) & {*kinds})
            case _:
                return self._is_lost(node_id)

    def _is_unwell(self, node_id: str) -> bool:
        return not self._pool.is_ready(node_id) or node_id in self._silent_nodes()

    def _is_lost(self, node_id: str) -> bool:
        return self._pool.client.get_node(node_id).state == "LOST"

    def _silent_nodes(self) -> set[str]:
        conditions = self._pool.client.get_job(self._job_id).conditions
        return {
            node_id
            for each in conditions
            if each.type == "NODES_SILENT"
            for node_id in each.node_ids
        }


def kinds_of_events(pool: Pool, job_id: str, node_id: str) -> set[str]:
    """Return what has happened to a node in a job."""
    events = pool.client.events(job_id=job_id)
    return {event.type for event in events if event.node_id == node_id}
