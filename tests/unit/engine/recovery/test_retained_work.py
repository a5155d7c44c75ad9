"""What is kept of a step, and what an attempt that came to nothing leaves of it."""

from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.step_progress import StepProgress


def test_a_commit_begins_the_next_step_with_the_regular_microbatches() -> None:
    retained_work = RetainedWork(
        generation=4, step=7, step_microbatches=(3, 0), regular_microbatches=(3, 5)
    )
    assert retained_work.kept(7) == (3, 0)
    assert retained_work.kept(8) == ()
    after = retained_work.after_commit()
    assert (after.generation, after.step, after.kept(8)) == (4, 8, (3, 5))
    assert after.after_commit().kept(9) == (3, 5)


def test_a_void_attempt_leaves_the_local_sums_and_nothing_else() -> None:
    progress = StepProgress(step=2, generation=4)
    progress.finished += [3, 5]
    progress.begin_attempt(4)
    progress.launch([0, 1, 2])
    progress.finish([2], 6)
    assert (progress.in_flight, progress.complete) == ({0, 1}, {2: 6})
    assert not progress.is_complete([1, 2], 6)
    assert progress.is_complete([2], 6)
    progress.begin_attempt(5)
    assert (progress.generation, progress.in_flight, progress.complete) == (5, set(), {})
    assert progress.finished == [3, 5]
    assert progress.missing([3, 5, 0, 1]) == (0, 1)
