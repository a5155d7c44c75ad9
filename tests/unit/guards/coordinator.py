"""Remove the guards of the coordinator: what it stores, in which order, and tells whom."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

import pytest

from planaria_common import messages
from planaria_coordinator.application import coordinator as application
from planaria_coordinator.application.agents import declare_lost_nodes, node_updates
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.jobs import restored_run
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.ports import UnitOfWork
from planaria_coordinator.application.scheduling.contingencies import Contingencies
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.application.supervision import Supervisor
from planaria_coordinator.domain.checkpoint import checkpoint_protocol
from planaria_coordinator.domain.engines.directive import Directive, QuiesceMode
from planaria_coordinator.domain.job.decide import Decision
from planaria_coordinator.domain.job.job import Job
from planaria_coordinator.domain.job.signals import NodeLost, Signal
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.recovery import (
    finish_step,
    lost_engines,
    opening,
    transition_completion,
)
from unit.guards.guard import swap


def act_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    store = JobActor._store

    async def act_first(self: JobActor, decision: Decision) -> None:
        self._act(decision.actions)
        await store(self, decision)

    swap(patch, store, act_first)


def decide_on_signals_at_once(patch: pytest.MonkeyPatch) -> None:
    """A signal does not wait until what follows from the one before is stored."""

    async def serve(self: JobActor) -> None:
        async def handle(signal: Signal, done: asyncio.Future[None]) -> None:
            await self._handle([signal])
            self._num_open -= 1
            done.set_result(None)

        async with asyncio.TaskGroup() as deciding:
            while True:
                deciding.create_task(handle(*await self._signals.get()))

    swap(patch, JobActor._serve, serve)


def tell_of_a_loss_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    declare = declare_lost_nodes._declare_lost

    async def tell_first(state: SharedState, entry: NodeEntry, why: str) -> None:
        lost = NodeLost(node_id=entry.node.id, fault_time=state.clock.now(), reason=why)
        for actor in state.holders(entry.node.id):
            actor.post(lost)
        await declare(state, entry, why)

    swap(patch, declare, tell_first)


def resolve_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    flush = Supervisor._flush_jobs

    async def forget_the_undecided(self: Supervisor) -> Collection[str]:
        await flush(self)
        return ()

    swap(patch, flush, forget_the_undecided)


def end_changes_with_their_caller(patch: pytest.MonkeyPatch) -> None:
    async def carry_out(self: SharedState, change: Coroutine[Any, Any, object]) -> object:
        return await change

    swap(patch, SharedState.carry_out, carry_out)


def restore_jobs_without_news_of_nodes(patch: pytest.MonkeyPatch) -> None:
    swap(patch, node_updates.send_node_updates, lambda state, actor: None)


def restore_runs_as_they_were_stored(patch: pytest.MonkeyPatch) -> None:
    swap(patch, restored_run.restored_run, lambda job, run, newest: run)


def restore_no_ended_jobs(patch: pytest.MonkeyPatch) -> None:
    async def unfinished(work: UnitOfWork, pending: Sequence[Directive]) -> Sequence[Job]:
        return await work.jobs.unfinished()

    swap(patch, application._jobs_to_restore, unfinished)


def keep_lost_joiners_in_the_plan(patch: pytest.MonkeyPatch) -> None:
    swap(patch, lost_engines._asked_for, lambda turn: frozenset())


def stop_whole_pipelines_at_once(patch: pytest.MonkeyPatch) -> None:
    open_again = opening.open_again

    def at_once(turn: Turn, reason: str, *, counts: bool = True, mode: object = None) -> None:
        open_again(turn, reason, counts=counts, mode=QuiesceMode.IMMEDIATE)

    swap(patch, open_again, at_once)


def give_pipelines_more_than_they_hold(patch: pytest.MonkeyPatch) -> None:
    swap(patch, finish_step._have_room, lambda kept, plan, requirements: True)


def forget_nodes_of_dead_engines(patch: pytest.MonkeyPatch) -> None:
    swap(patch, lost_engines._complete_history, lambda turn, node_id: False)


def forget_nodes_after_the_recovery(patch: pytest.MonkeyPatch) -> None:
    swap(patch, transition_completion.complete_recovery, lambda turn, node_id: False)


def believe_late_writers(patch: pytest.MonkeyPatch) -> None:
    swap(patch, checkpoint_protocol._note_taken, checkpoint_protocol._note_writers)


def believe_interrupted_plans(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Contingencies._was_stopped, property(lambda self: False))


def store_any_text(patch: pytest.MonkeyPatch) -> None:
    swap(patch, messages._storable, lambda text: text)
