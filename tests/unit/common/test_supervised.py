"""What must not end begins again when it raises."""

import asyncio

from planaria_common.supervised import start_supervised_thread, supervised


async def test_a_task_that_raises_begins_again_after_a_pause() -> None:
    pauses: list[float] = []
    outcomes = [OSError("too many open files"), MemoryError(), None]

    async def work() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    await supervised("test", work, sleep=sleep)
    assert outcomes == []
    assert len(pauses) == 2


def test_a_thread_that_raises_begins_again_after_a_pause() -> None:
    pauses: list[float] = []
    outcomes = [OSError("too many open files"), MemoryError(), None]

    def work() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    start_supervised_thread("test", work, sleep=pauses.append).join(10)
    assert outcomes == []
    assert len(pauses) == 2
