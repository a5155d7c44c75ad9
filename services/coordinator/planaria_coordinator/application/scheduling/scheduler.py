"""Which job gets which nodes: jobs that wait first, then those that could grow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.agents.node_updates import send_node_updates
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.ports import NodesDecision, NodesQuestion
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.engines.outcome import Failure
from planaria_coordinator.domain.job.job import JobError, JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import plan_nodes, planning_problem
from planaria_coordinator.domain.job.requirements import NodeFacts
from planaria_coordinator.domain.job.signals import JobFaulted, NodesGranted, StillWaits
from planaria_coordinator.domain.job.waiting import too_few_nodes
from planaria_coordinator.domain.placement.ask_planner import horizon_seconds, nodes_to_plan_on
from planaria_coordinator.domain.placement.planner_query import PlanQuery
from planaria_coordinator.domain.placement.replicas import holdings_by_node, holdings_of_placement
from planaria_coordinator.domain.recovery.transition import Cause, Phase

_RETRY_SECONDS = 1.0
_NO_LIMIT = 1 << 30

log = get_logger("scheduling")


class Scheduler:
    """Gives free nodes to jobs; one round at a time, so no node is given twice."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._probed: dict[str, tuple[int, frozenset[str]]] = {}
        self.is_idle = True

    async def serve(self) -> None:
        """Hold a round whenever nodes or jobs have changed."""
        wanted = self._state.scheduling_wanted
        while True:
            await wanted.wait()
            self.is_idle = False
            wanted.clear()
            try:
                await self.round()
            except Exception:
                log.exception("scheduling_failed")
                now = self._state.clock.monotonic()
                self._state.schedule_again_seconds = now + _RETRY_SECONDS
            self.is_idle = not wanted.is_set()

    async def round(self) -> None:
        """Look once at every job, the oldest first."""
        await self._note_drained()
        for actor in tuple(self._state.actors.values()):
            run = actor.run
            awaits_state = run.awaited_state is not None  # no node that is free can have it
            if run.state.is_terminal or run.pause_wanted or run.rests or awaits_state:
                continue
            try:
                if run.state is JobState.PENDING and run.transition is None:
                    await self._start(actor)
                elif run.state is JobState.WAITING and run.transition is None:
                    await self._resume(actor)
                elif run.state is JobState.RUNNING and _may_grow(run):
                    await self._grow(actor)
            except PlanariaError as error:
                await self._could_not(actor, error)
        self._forget_ended()

    async def _could_not(self, actor: JobActor, error: PlanariaError) -> None:
        may_pass = error.reason is ErrorReason.UNAVAILABLE or actor.run.was_restored
        if may_pass and actor.run.waits:
            await self._explain(actor, error.message)
        elif actor.run.state is JobState.PENDING and error.reason in (
            ErrorReason.MODEL_DOES_NOT_FIT,
            ErrorReason.INVALID_PROFILE,
        ):
            await self._fail(actor, error)
        else:
            log.info("no_plan_with_more_nodes", job_id=actor.job_id, cause=error.message)

    async def _fail(self, actor: JobActor, error: PlanariaError | JobError) -> None:
        failure = Failure(reason=error.reason, message=error.message, metadata=dict(error.metadata))
        await actor.post(JobFaulted(engine_id="", failure=failure))

    # -- jobs that wait ----------------------------------------------------------------------------

    async def _start(self, actor: JobActor) -> None:
        run = actor.run
        candidates = self._candidates(run)
        own = self._own_nodes(run)
        facts = {**own, **{entry.node.id: entry.facts for entry in candidates}}
        if not facts:
            if run.start_failure is not None and self._all_are_refused(run):
                await self._fail(actor, run.start_failure)
            else:
                await self._explain(actor, "no node is free")
            return
        nodes_per_replica = await self._nodes_per_replica(run, facts)
        to_start = run.requirements.nodes_to_start(nodes_per_replica)
        # What the planner has refused before it need not be asked again with as few.
        needed = max(to_start, run.nodes_per_replica)
        if len(facts) < needed:
            reason = too_few_nodes(
                len(facts),
                needed,
                nodes_per_replica=nodes_per_replica if needed == to_start else needed,
                num_replicas=run.requirements.fault_tolerance + 1 if needed == to_start else 1,
            )
            await self._explain(actor, reason)
            return
        await self._grant(
            actor, candidates, needed - len(own), nodes_per_replica, own=tuple(own.values())
        )

    async def _nodes_per_replica(self, run: JobRun, facts: Mapping[str, NodeFacts]) -> int:
        """Return n0; for a model by import path what was asked for, until engines have built it."""
        if not run.requirements.layers:
            return run.requirements.min_nodes_per_pipeline
        query = PlanQuery(
            problem=planning_problem(run.requirements, facts), nodes=plan_nodes(facts, facts)
        )
        return await self._state.planner.min_nodes(query)

    async def _resume(self, actor: JobActor) -> None:
        run = actor.run
        candidates = self._candidates(run)
        usable = nodes_to_plan_on(run)
        # Nodes whose engines died, or have not started yet, count once they have new ones.
        idle = {n: f for n, f in self._own_nodes(run).items() if n not in usable}
        needed = run.nodes_per_replica
        num_nodes = len(usable) + len(idle) + len(candidates)
        if num_nodes < needed:
            await self._explain(actor, too_few_nodes(num_nodes, needed, nodes_per_replica=needed))
            return
        # Engines may have started while the planner refused a plan without them.
        ready = _new_to_the_plan(run, usable) if len(usable) >= needed else {}
        await self._grant(
            actor,
            candidates,
            max(0, needed - len(usable) - len(idle)),
            needed,
            own=(*idle.values(), *ready.values()),
            reason="" if candidates else "the job waits, and there are enough nodes",
        )

    # -- jobs that could grow ----------------------------------------------------------------------

    async def _grow(self, actor: JobActor) -> None:
        run = actor.run
        if run.placement is None:
            return
        placed = set(run.placement.plan.node_ids)
        awaited = set(run.transition.awaited_nodes) if run.transition else set()
        spare = {n: f for n, f in self._own_nodes(run).items() if n not in placed | awaited}
        free = {entry.node.id: entry.facts for entry in self._candidates(run)}
        joiners = {**free, **spare}
        new = joiners.keys() - _left_idle(run)
        probe = (run.generation, frozenset(joiners))
        if not new or self._probed.get(actor.job_id) == probe:
            return
        query = _probe_query(run, joiners, horizon_seconds(run, self._state.clock.now()))
        answer = await self._state.planner.plan(query)
        self._probed[actor.job_id] = probe
        used = [node_id for node_id in answer.plan.node_ids if node_id in joiners]
        if new.isdisjoint(used):
            log.info("joiners_left_idle", job_id=actor.job_id, reason=answer.reason)
            return
        entries = [e for e in self._candidates(run) if e.node.id in used]
        kept = tuple(spare[node_id] for node_id in used if node_id in spare)
        await self._grant(actor, entries, 0, answer.min_nodes, own=kept, reason=answer.reason)

    # -- granting ----------------------------------------------------------------------------------

    def _candidates(self, run: JobRun) -> list[NodeEntry]:
        """Return the free nodes that a job may be given, by id."""
        held = self._state.held_nodes
        room = (run.requirements.max_nodes or _NO_LIMIT) - len(run.nodes)
        if room <= 0:
            return []
        return sorted(
            (
                entry
                for entry in self._state.nodes
                if entry.takes_work
                and entry.node.id not in held
                and entry.node.id not in run.refused
                and entry.node.id not in run.left_out
            ),
            key=lambda entry: entry.node.id,
        )

    def _all_are_refused(self, run: JobRun) -> bool:
        """Whether no node is left that could serve a job, now or when others have ended.

        Where there are no nodes at all, those that come may serve it.
        """
        ready = {e.node.id for e in self._state.nodes if e.node.state is NodeState.READY}
        return bool(ready) and run.refused.keys() >= ready

    def _own_nodes(self, run: JobRun) -> dict[str, NodeFacts]:
        """Return the nodes that the job holds and may go on using."""
        return {
            node_id: facts
            for node_id, facts in run.nodes.items()
            if node_id not in run.draining and self._may_serve(run, node_id)
        }

    def _may_serve(self, run: JobRun, node_id: str) -> bool:
        """Whether a node has engines of the job already, or may be given new ones."""
        entry = self._state.nodes.get(node_id)
        has_engines = any(engine.node_id == node_id for engine in run.engines.values())
        return has_engines or (entry is not None and entry.takes_work)

    async def _grant(
        self,
        actor: JobActor,
        candidates: Sequence[NodeEntry],
        min_nodes: int,
        nodes_per_replica: int,
        *,
        own: tuple[NodeFacts, ...] = (),
        reason: str = "",
    ) -> None:
        chosen: Sequence[NodeEntry] = ()
        if candidates:
            decision = await self._ask_policy(actor, candidates, max(0, min_nodes))
            chosen = [entry for entry in candidates if entry.node.id in decision.node_ids]
            reason = reason or decision.reason
            if len(chosen) < min_nodes:
                await self._explain(actor, decision.reason or "the scheduler gives it no nodes")
                return
        granted = (*own, *(entry.facts for entry in chosen if entry.takes_work))
        if granted and not actor.run.state.is_terminal:  # cancelled meanwhile: nobody would answer
            await actor.post(
                NodesGranted(nodes=granted, nodes_per_replica=nodes_per_replica, reason=reason)
            )
            # A node may have been lost, or be freed, while planner and policy were asked.
            send_node_updates(self._state, actor)

    async def _ask_policy(
        self, actor: JobActor, candidates: Sequence[NodeEntry], min_nodes: int
    ) -> NodesDecision:
        run = actor.run
        view = actor.policy_view()
        room = (run.requirements.max_nodes or _NO_LIMIT) - len(run.nodes)
        question = NodesQuestion(
            scheduler=str(view.job.spec.get("scheduler", "default")),
            candidates=tuple(entry.node for entry in candidates),
            min_nodes=min_nodes,
            max_nodes=min(room, len(candidates)),
            view=view,
        )
        decision = await self._state.policy.choose_nodes(question)
        if decision.overruled:
            await actor.tell("scheduler_overruled", decision.overruled)
        allowed = {node.id for node in question.candidates}
        chosen = tuple(n for n in decision.node_ids if n in allowed)[: question.max_nodes]
        return replace(decision, node_ids=chosen)

    async def _explain(self, actor: JobActor, reason: str) -> None:
        """Let a job that waits say why; it may have been cancelled, and nobody would answer."""
        if actor.run.refused:
            reason += f"; refused: {'; '.join(actor.run.refused.values())}"
        if actor.run.waits and actor.run.waiting_reason != reason:
            await actor.post(StillWaits(reason=reason))

    # -- nodes that leave --------------------------------------------------------------------------

    async def _note_drained(self) -> None:
        state = self._state
        for entry in state.nodes:
            if entry.node.state is not NodeState.DRAINING or state.holders(entry.node.id):
                continue
            async with state.node_lock:
                if entry.node.state is NodeState.DRAINING:
                    node_id = entry.node.id
                    draft = state.draft("node_drained", f"{node_id} is free", node_id=node_id)
                    await state.save_node(replace(entry.node, state=NodeState.DRAINED), [draft])

    def _forget_ended(self) -> None:
        for job_id in self._probed.keys() - self._state.actors.keys():
            del self._probed[job_id]


def _may_grow(run: JobRun) -> bool:
    """Whether joiners would be let in now."""
    transition = run.transition
    if transition is None:
        return True
    return transition.phase is Phase.PREPARING and transition.history.cause is Cause.NODE_JOINED


def _new_to_the_plan(run: JobRun, node_ids: Sequence[str]) -> dict[str, NodeFacts]:
    """Return those of some nodes that the plan in force has no place for, or all if it has."""
    placed = run.in_force.plan_to_change.node_ids if run.in_force else ()
    new = [node_id for node_id in node_ids if node_id not in placed]
    return {node_id: run.nodes[node_id] for node_id in new or node_ids}


def _left_idle(run: JobRun) -> frozenset[str]:
    """Return the nodes all of whose engines the planner knew, and left idle."""
    known = {engine.node_id for engine in run.engines.values() if engine.id in run.left_idle}
    new = {engine.node_id for engine in run.engines.values() if engine.id not in run.left_idle}
    return frozenset(known - new)


def _probe_query(run: JobRun, joiners: dict[str, NodeFacts], horizon_seconds: float) -> PlanQuery:
    """Ask what would be, if these joined."""
    facts = {n: f for n, f in {**run.nodes, **joiners}.items() if n not in run.draining}
    placement = run.placement
    if placement is None:
        raise AssertionError("only a job that trains can grow")
    holdings = holdings_of_placement(placement, run.prepared_engines, run.requirements)
    return PlanQuery(
        problem=planning_problem(run.requirements, facts, run.prepared_engines.values()),
        nodes=plan_nodes(facts, facts),
        current=placement.plan,
        holdings=holdings_by_node(holdings, run.engines),
        horizon_seconds=horizon_seconds,
    )
