"""Remove the guards of the coordinator: what it stores, in which order, and tells whom."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from planaria_common import messages
from planaria_coordinator.application import coordinator as application
from planaria_coordinator.application.agents import lost_nodes, node_updates
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.jobs import restored_run
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.ports import UnitOfWork
from planaria_coordinator.application.scheduling.contingencies import Contingencies
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.checkpoint import checkpoint_protocol
from planaria_coordinator.domain.engines.directive import Directive, QuiesceMode
from planaria_coordinator.domain.engines.silence import Loss
from planaria_coordinator.domain.job.job import Job
from planaria_coordinator.domain.job.signals import NodeLost, Signal
from planaria_coordinator.domain.job.turn import Decision, Turn
from planaria_coordinator.domain.recovery import (
    broken_links,
    copy_layers,
    finish_step,
    lost_engines,
    opening,
    transition_completion,
)
from unit.coordinator.checkpoint import test_late_writers
from unit.coordinator.engines import (
    test_agents_away,
    test_node_updates,
    test_reports,
    test_worker_service,
)
from unit.coordinator.job import (
    test_evaluation,
    test_resuming,
    test_services,
)
from unit.coordinator.placement import test_contingencies
from unit.coordinator.recovery import (
    test_changes_without_memory,
    test_finishing_a_step,
    test_groups_that_fail,
    test_lost_joiners,
    test_who_keeps_the_step,
)
from unit.guards.guard import guard, swap


@guard(
    "a decision is stored before a directive is sent",
    test_agents_away.test_a_directive_that_cannot_be_stored_is_not_sent,
)
def act_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    store = JobActor._store

    async def act_first(self: JobActor, decision: Decision) -> None:
        self._act(decision.actions)
        await store(self, decision)

    swap(patch, store, act_first)


@guard(
    "a job makes one decision at a time",
    test_reports.test_results_that_come_while_one_is_stored_all_count,
)
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


@guard(
    "a lost node is stored as lost before jobs hear of it",
    test_node_updates.test_a_job_hears_of_a_lost_node_once_that_is_stored,
)
def tell_of_a_loss_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    declare = lost_nodes.declare_lost

    async def tell_first(state: SharedState, losses: Sequence[tuple[NodeEntry, Loss]]) -> None:
        for entry, loss in losses:
            lost = NodeLost(
                node_id=entry.node.id, fault_time=state.clock.now(), reason=loss.reason, gone=True
            )
            for actor in state.holders(entry.node.id):
                actor.post(lost)
        await declare(state, losses)

    swap(patch, declare, tell_first)


@guard(
    "a directive is resolved when what follows from its result is stored",
    test_reports.test_a_directive_is_not_resolved_before_its_result_is_decided_on,
)
def resolve_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    flush = JobActor.flush

    async def say_all_is_decided(self: JobActor) -> bool:
        await flush(self)
        return True

    swap(patch, flush, say_all_is_decided)


@guard(
    "a change is completed even if the caller goes away",
    test_services.test_a_submission_whose_caller_goes_away_is_a_job_or_is_not,
    test_services.test_a_drain_whose_caller_goes_away_is_known_where_it_is_stored,
)
def end_changes_with_their_caller(patch: pytest.MonkeyPatch) -> None:
    async def carry_out(self: SharedState, change: Coroutine[Any, Any, object]) -> object:
        return await change

    swap(patch, SharedState.carry_out, carry_out)


@guard(
    "a restored job learns what became of its nodes",
    test_node_updates.test_a_node_that_is_lost,
    test_node_updates.test_a_node_that_is_to_be_freed,
    test_node_updates.test_a_node_that_is_to_be_kept_after_all,
    test_node_updates.test_a_node_that_is_lost_while_it_is_given_to_a_job,
)
def restore_jobs_without_news_of_nodes(patch: pytest.MonkeyPatch) -> None:
    swap(patch, node_updates.send_node_updates, lambda state, actor: None)


@guard(
    "a restored job knows the steps and the evaluation that were stored since its run",
    test_evaluation.test_stored_steps_outlive_the_coordinator,
)
def restore_runs_as_they_were_stored(patch: pytest.MonkeyPatch) -> None:
    swap(patch, restored_run.restored_run, lambda job, run, newest: run)


@guard(
    "a job that has ended is restored while its engines have yet to stop",
    test_resuming.test_a_checkpoint_that_is_sealed_while_its_job_is_cancelled_is_known,
    test_resuming.test_a_checkpoint_that_was_not_sealed_before_its_engine_stopped_is_given_up,
)
def restore_no_ended_jobs(patch: pytest.MonkeyPatch) -> None:
    async def unfinished(work: UnitOfWork, pending: Sequence[Directive]) -> Sequence[Job]:
        return await work.jobs.unfinished()

    swap(patch, application._jobs_to_restore, unfinished)


@guard(
    "the planner is asked again without a joiner that is lost meanwhile",
    test_lost_joiners.test_a_joiner_that_the_planner_was_asked_for_and_that_is_lost_is_planned_without,
)
def keep_lost_joiners_in_the_plan(patch: pytest.MonkeyPatch) -> None:
    swap(patch, lost_engines._asked_for, lambda turn: frozenset())


@guard(
    "groups that cannot be made the first time stop no healthy pipeline",
    test_groups_that_fail.test_groups_that_cannot_be_made_stop_no_healthy_pipeline,
    test_groups_that_fail.test_healthy_pipelines_compute_while_groups_are_rebuilt,
)
def stop_whole_pipelines_at_once(patch: pytest.MonkeyPatch) -> None:
    open_again = opening.open_again

    def at_once(turn: Turn, reason: str, *, counts: bool = True, mode: object = None) -> None:
        open_again(turn, reason, counts=counts, mode=QuiesceMode.IMMEDIATE)

    swap(patch, open_again, at_once)


@guard(
    "no pipeline is given more microbatches than its memory holds",
    test_who_keeps_the_step.test_no_pipeline_is_given_more_than_fits_in_its_memory,
)
def give_pipelines_more_than_they_hold(patch: pytest.MonkeyPatch) -> None:
    swap(patch, finish_step._have_room, lambda kept, plan, requirements: True)


@guard(
    "a node is reported as lost even if its engine was seen to die first",
    test_finishing_a_step.test_a_node_is_recorded_as_lost_even_if_its_engine_was_seen_to_die,
)
def forget_nodes_of_dead_engines(patch: pytest.MonkeyPatch) -> None:
    swap(patch, lost_engines._complete_history, lambda turn, node_id: False)


@guard(
    "a node is reported as lost even after the recovery from its engine's death",
    test_finishing_a_step.test_a_node_whose_loss_is_known_only_after_the_recovery_is_recorded_as_lost,
)
def forget_nodes_after_the_recovery(patch: pytest.MonkeyPatch) -> None:
    swap(patch, transition_completion.complete_recovery, lambda turn, node_id: False)


@guard(
    "layers of a checkpoint that others write by now stay with them",
    test_late_writers.test_reports_of_a_late_engine_are_repeated,
    test_late_writers.test_layers_that_a_fence_has_given_to_others_stay_with_them,
    test_late_writers.test_layers_given_back_during_a_fence_are_reassigned,
    raises=(KeyError,),
)
def believe_late_writers(patch: pytest.MonkeyPatch) -> None:
    swap(patch, checkpoint_protocol._note_taken, checkpoint_protocol._note_writers)


@guard(
    "contingency plans that were interrupted are asked for again",
    test_contingencies.test_plans_that_were_interrupted_are_asked_for_again,
)
def believe_interrupted_plans(patch: pytest.MonkeyPatch) -> None:
    swap(patch, Contingencies._was_stopped, property(lambda self: False))


@guard(
    "text of engines is stored without NUL",
    test_worker_service.test_text_that_cannot_be_stored_is_replaced,
)
def store_any_text(patch: pytest.MonkeyPatch) -> None:
    swap(patch, messages._storable, lambda text: text)


@guard(
    "an engine that cannot copy is not lost while it holds layers",
    test_changes_without_memory.test_a_node_is_left_out_if_the_others_lack_memory_for_its_joining,
)
def lose_engines_that_cannot_copy(patch: pytest.MonkeyPatch) -> None:
    swap(patch, copy_layers._has_own_layers, lambda turn, engine_id: False)


@guard(
    "a job that cannot let a node join goes on without it",
    test_changes_without_memory.test_a_node_is_left_out_if_the_others_lack_memory_for_its_joining,
)
def wait_for_a_node_that_cannot_join(patch: pytest.MonkeyPatch) -> None:
    swap(patch, broken_links.choose_joining, lambda turn, reason: None)
