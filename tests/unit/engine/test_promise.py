"""What is kept of a step, and what an attempt that came to nothing leaves of it."""

from planaria_worker.engine.recovery.retained_work import Promise
from planaria_worker.engine.step.step_progress import Ledger


def test_a_commit_begins_the_next_step_with_the_regular_microbatches() -> None:
    promise = Promise(generation=4, step=7, microbatches=(3, 0), each_step=(3, 5))
    assert promise.kept(7) == (3, 0)
    assert promise.kept(8) == ()
    after = promise.after_commit()
    assert (after.generation, after.step, after.kept(8)) == (4, 8, (3, 5))
    assert after.after_commit().kept(9) == (3, 5)


def test_a_void_attempt_leaves_the_local_sums_and_nothing_else() -> None:
    ledger = Ledger(step=2, generation=4)
    ledger.finished += [3, 5]
    ledger.begin_attempt(4)
    ledger.launch([0, 1, 2])
    ledger.enter([2], 6)
    assert (ledger.in_flight, ledger.complete) == ({0, 1}, {2: 6})
    assert not ledger.is_whole([1, 2], 6)
    assert ledger.is_whole([2], 6)
    ledger.begin_attempt(5)
    assert (ledger.generation, ledger.in_flight, ledger.complete) == (5, set(), {})
    assert ledger.finished == [3, 5]
    assert ledger.missing([3, 5, 0, 1]) == (0, 1)
