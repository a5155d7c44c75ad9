"""Plans, changes and directives in the database: nothing that was told is forgotten."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from integration.coordinator.rows import RECORD, directive
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase
from planaria_coordinator.application.ports import GenerationRecord
from planaria_coordinator.domain.engines.directive import (
    Activate,
    Command,
    Copy,
    DigestLayers,
    Export,
    LayerSource,
    PipelineAssignment,
    Prepare,
    Quiesce,
    QuiesceMode,
    RollForward,
    StageAssignment,
    StagePlan,
    Stop,
)
from unit.coordinator_edge.fakes import NOON, PLAN, job

pytestmark = pytest.mark.integration


async def test_the_newest_plan(with_job: SqlDatabase) -> None:
    """A generation that is still being planned does not hide the plan that runs."""
    record = GenerationRecord(job_id="job-1", generation=1, cause="start", open_time=NOON)
    async with with_job.unit_of_work() as work:
        assert await work.generations.newest_planned("job-1") is None
        await work.generations.save(record)
        assert await work.generations.newest_planned("job-1") is None
        await work.generations.save(replace(record, plan=PLAN, reason="fastest"))
        await work.generations.save(replace(record, generation=2, cause="node_lost"))
        newest = await work.generations.newest_planned("job-1")

    assert newest == replace(record, plan=PLAN, reason="fastest")


COMMANDS: Sequence[Command] = (
    Prepare(job_spec="{}", accelerator=0, job_secret="s"),
    Quiesce(mode=QuiesceMode.AT_COMMIT, lost_engine_ids=("x",)),
    RollForward(record=RECORD),
    Copy(layers=(LayerSource(layer=1, addresses=("h:1",)),), version=3, initial_layers=(2,)),
    Activate(
        pipelines=(
            PipelineAssignment(
                stages=(
                    StageAssignment(engine_id="e", data_address="d", first_layer=0, num_layers=2),
                ),
                microbatches=(0, 1),
            ),
        ),
        committed_steps=3,
        store_address="h:2",
        rebuild_timeout_seconds=5.0,
    ),
    StagePlan(
        pipelines=(),
        store_address="h:2",
        rebuild_timeout_seconds=5.0,
        layers=(LayerSource(layer=1, addresses=("h:1",)),),
    ),
    DigestLayers(layers=(0, 1)),
    Export(path="out", format="huggingface", layers=()),
    Stop(reason="done"),
)


async def test_directives_wait_until_they_are_resolved_or_dropped(with_job: SqlDatabase) -> None:
    """Every kind of command comes back as it was, in the order of sending."""
    sent = [directive(number, command) for number, command in enumerate(COMMANDS)]
    async with with_job.unit_of_work() as work:
        await work.directives.add(sent[:3])
        await work.directives.add(sent[3:])
        await work.directives.add([])
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == sent
        await work.directives.resolve("directive-1")
        many = [f"unknown-{number}" for number in range(40_000)]  # more than a statement takes
        await work.directives.drop(["directive-2", "directive-1", *many])
        await work.directives.resolve("unknown")
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == [sent[0], *sent[3:]]


async def test_a_command_for_all_engines_is_stored_once(with_job: SqlDatabase) -> None:
    """And comes back for each of them, also when the one that has it is settled and pruned for."""
    command = COMMANDS[0]
    sent = [directive(number, command) for number in range(1, 4)]
    sent.append(directive(4, COMMANDS[1]))
    async with with_job.unit_of_work() as work:
        await work.directives.add(sent)
        await work.directives.resolve("directive-1")
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == sent[1:]
        assert await work.directives.prune("job-1", before_generation=99, limit=9) == 0
        await work.directives.drop(["directive-2", "directive-3"])
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.prune("job-1", before_generation=99, limit=9) == 3
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == sent[3:]


async def test_directives_that_are_added_twice_come_back_once(with_job: SqlDatabase) -> None:
    """The answer to a COMMIT was lost, so the decision is stored again."""
    sent = [directive(1, COMMANDS[0]), directive(2, COMMANDS[1])]
    for _ in range(2):
        async with with_job.unit_of_work() as work:
            await work.directives.add(sent)
            await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == sent


async def test_settled_directives_of_old_generations_are_pruned(with_job: SqlDatabase) -> None:
    """A few at a time; those that are pending stay, and so do those of other jobs."""
    sent = [replace(directive(number), generation=number) for number in range(1, 7)]
    other = replace(directive(7), job_id="job-2", generation=1)
    async with with_job.unit_of_work() as work:
        await work.jobs.add(job("job-2"))
        await work.directives.add([*sent, other])
        for number in (1, 3, 5, 7):
            await work.directives.resolve(f"directive-{number}")
        await work.directives.drop(["directive-4"])
        await work.commit()

    num_pruned = []
    for _ in range(3):
        async with with_job.unit_of_work() as work:
            num_pruned.append(await work.directives.prune("job-1", before_generation=5, limit=2))
            await work.commit()

    assert num_pruned == [2, 1, 0]
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == [sent[1], sent[5]]
        assert await work.directives.prune("job-1", before_generation=9, limit=9) == 1
        assert await work.directives.prune("job-2", before_generation=9, limit=9) == 1
