"""A skipped step is an event and a number of the job, once, whoever reports it and how often."""

from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.directive import CommitRecord
from planaria_coordinator.domain.job.commits import MAX_KNOWN_SKIPS, note_commit
from planaria_coordinator.domain.job.job_run import Limits, Moment
from planaria_coordinator.domain.job.turn import Turn
from unit.coordinator.simulation.world import World, running_world


def skips(world: World) -> list[tuple[int, int, int]]:
    told = [event.details for event in world.events if event.type == "step_skipped"]
    return [(each["step"], each["layer"], each["skipped_in_a_row"]) for each in told]


async def test_a_skipped_step_is_told_and_counted_once() -> None:
    world = await running_world(4)
    world.skipped = frozenset({2})
    await world.train(3)
    assert skips(world) == [(2, 2, 1)]
    job = await world.job()
    assert (job.step, job.num_skipped_steps, job.loss) == (4, 1, 1 / 4)
    await world.coordinator.flush()
    page = await world.coordinator.jobs.metrics(job.id, PageRequest())
    assert [(each.step, each.loss is None, each.skipped_layer) for each in page.items] == [
        (0, False, None),
        (1, False, None),
        (2, True, 2),
        (3, False, None),
    ]


async def test_a_step_skipped_by_one_engine_alone_is_known_from_its_record() -> None:
    """The others roll forward to it; the coordinator that asks them is a new one."""
    world = await running_world(4)
    world.skipped = frozenset({1})
    members = world.begin_step()
    world.pass_exchange(members[:1])
    await world.kill_node("n3")
    await world.crash_coordinator()
    await world.train()
    assert skips(world) == [(1, 2, 1)]
    assert (await world.job()).num_skipped_steps == 1


async def test_reports_that_are_repeated_much_later_are_known() -> None:
    world = await running_world(4)
    turn = Turn(now=Moment(time=world.clock.now(), seconds=0.0), run=world.run, limits=Limits())

    def note(step: int) -> int:
        record = CommitRecord(
            step=step, generation=1, gradient_norm=0.0, loss=0.0, num_tokens=1, num_skipped=1
        )
        note_commit(turn, record)
        return turn.run.num_skipped_steps

    last = 3 * MAX_KNOWN_SKIPS
    for step in range(last + 1):
        assert note(step) == step + 1
    assert {note(step) for step in (0, last // 2, last)} == {last + 1}
    assert len(turn.run.newest_skipped_steps) == MAX_KNOWN_SKIPS
