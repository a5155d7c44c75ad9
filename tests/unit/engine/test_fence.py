"""The fence: whoever comes first, the fence or the exchange, wins, and nobody acts for the past."""

import threading

import pytest

from planaria_worker.engine.fence import Fence, FencedError, StaleGenerationError


def test_invariant_4_a_fenced_engine_passes_no_exchange_of_an_older_generation() -> None:
    fence = Fence(3)
    fence.fence(4)
    with pytest.raises(FencedError):
        fence.pass_commit_point(3, 0)


def test_an_engine_that_passed_first_is_not_asked_again() -> None:
    fence = Fence(3)
    fence.pass_commit_point(3, 0)
    fence.fence(4)
    with pytest.raises(FencedError):
        fence.check(3)


@pytest.mark.parametrize("late", [Fence.see, Fence.fence, Fence.fence_at_commit])
def test_invariant_4_older_directives_are_refused(late: "object") -> None:
    fence = Fence(3)
    fence.see(5)
    with pytest.raises(StaleGenerationError) as refusal:
        late(fence, 4)  # type: ignore[operator]
    assert (refusal.value.generation, refusal.value.newest) == (4, 5)


def test_invariant_4_a_fenced_engine_activates_no_older_generation() -> None:
    """An Activate that waited in the queue while the engine was fenced is not carried out."""
    for fence_it in (Fence.fence, Fence.fence_at_commit):
        fence = Fence(3)
        fence_it(fence, 4)
        with pytest.raises(FencedError):
            fence.begin(3)
        fence.begin(4)


def test_a_quiesce_at_commit_lets_training_continue_until_all_hold_the_mark() -> None:
    fence = Fence(3)
    fence.begin(3)
    fence.fence_at_commit(4)
    assert fence.mark == 4
    fence.pass_commit_point(3, 0)
    fence.check(3)
    fence.pass_commit_point(3, 4)
    with pytest.raises(FencedError):
        fence.check(3)
    fence.check(4)


def test_an_engine_that_stops_with_a_mark_is_fenced() -> None:
    """It has reported for generation 4 by then, and promised not to act for an older one."""
    fence = Fence(3)
    fence.begin(3)
    fence.fence_at_commit(4)
    fence.end()
    assert fence.mark == 0
    with pytest.raises(FencedError):
        fence.begin(3)


def test_an_immediate_fence_overtakes_a_patient_one() -> None:
    fence = Fence(3)
    fence.begin(3)
    fence.fence_at_commit(4)
    fence.fence(5)
    assert fence.mark == 0
    with pytest.raises(FencedError):
        fence.pass_commit_point(3, 4)


def test_a_waiting_caller_is_notified_once_the_engine_parks() -> None:
    fence = Fence(3)
    calls: list[str] = []
    fence.when_idle(lambda: calls.append("idle already"))
    fence.begin(3)
    fence.when_idle(lambda: calls.append("after the work"))
    assert calls == ["idle already"]
    fence.end()
    fence.end()
    assert calls == ["idle already", "after the work"]


def test_a_report_waits_for_a_commit_that_was_passed() -> None:
    """Its layers are of neither step while they are changed."""
    fence = Fence(3)
    calls: list[str] = []
    fence.begin(3)
    fence.when_settled(lambda: calls.append("between commits"))
    fence.pass_commit_point(3, 0)
    fence.fence(4)
    fence.when_settled(lambda: calls.append("after the commit"))
    assert calls == ["between commits"]
    fence.settle()
    assert calls == ["between commits", "after the commit"]


def test_a_commit_that_failed_half_way_holds_up_no_report() -> None:
    fence = Fence(3)
    calls: list[str] = []
    fence.begin_roll_forward(3)
    fence.when_settled(lambda: calls.append("after all"))
    fence.end()
    assert calls == ["after all"]


def test_invariant_4_a_late_roll_forward_is_refused() -> None:
    fence = Fence(3)
    fence.fence(4)
    with pytest.raises(FencedError):
        fence.begin_roll_forward(3)


def test_a_fenced_engine_may_continue_its_retained_work() -> None:
    """It computes, and is busy with it; but it passes nothing."""
    fence = Fence(3)
    fence.fence(4)
    calls: list[str] = []
    fence.resume()
    fence.when_idle(lambda: calls.append("idle"))
    with pytest.raises(FencedError):
        fence.pass_commit_point(3, 0)
    assert not calls
    fence.end()
    assert calls == ["idle"]


def test_an_engine_with_retained_work_parks_at_a_commit() -> None:
    """Its task waits behind another one, which ends meanwhile."""
    fence = Fence(3)
    fence.begin(3)
    fence.fence(4)
    fence.resume()
    fence.fence_at_commit(5)
    fence.end()
    assert fence.mark == 5
    fence.check(4)
    fence.end()
    assert fence.mark == 0
    assert fence.is_fenced(4)


def test_a_late_copy_is_not_installed() -> None:
    fence = Fence(3)
    installed: list[int] = []
    fence.install(3, lambda: installed.append(3))
    fence.fence(4)
    with pytest.raises(StaleGenerationError):
        fence.install(3, lambda: installed.append(4))
    assert installed == [3]


def test_fence_and_passage_exclude_each_other() -> None:
    """Many races: either the engine passed before the fence returned, or it never passes."""
    for _ in range(200):
        fence = Fence(3)
        passed: list[bool] = []
        start = threading.Barrier(2)

        def pass_commit_point(
            fence: Fence = fence, passed: list[bool] = passed, start: threading.Barrier = start
        ) -> None:
            start.wait()
            try:
                fence.pass_commit_point(3, 0)
            except FencedError:
                passed.append(False)
            else:
                passed.append(True)

        thread = threading.Thread(target=pass_commit_point)
        thread.start()
        start.wait()
        fence.fence(4)
        thread.join()
        with pytest.raises(FencedError):
            fence.pass_commit_point(3, 0)
        assert len(passed) == 1


def test_a_waiting_caller_is_notified_within_the_last_pass() -> None:
    """Between two passes it may be about to commit."""
    fence = Fence(3)
    calls: list[str] = []
    fence.begin(3)
    with fence.computing():
        fence.when_halted(lambda: calls.append("within a pass"))
    assert calls == ["within a pass"]
    fence.when_halted(lambda: calls.append("at its end"))
    assert calls == ["within a pass"]
    fence.end()
    assert calls == ["within a pass", "at its end"]
    fence.when_halted(lambda: calls.append("parked"))
    assert calls[2:] == ["parked"]


def test_a_waiting_caller_is_notified_before_copies_begin() -> None:
    """Fenced within an update: what comes behind it, copies for a checkpoint, may last long."""
    fence = Fence(3)
    calls: list[str] = []
    fence.begin(3)
    fence.pass_commit_point(3, 0)
    fence.when_idle(lambda: calls.append("idle"))
    fence.when_halted(lambda: calls.append("halted"))
    fence.settle()
    assert not calls
    with fence.computing():
        calls.append("copies")
    fence.end()
    assert calls == ["halted", "copies", "idle"]
