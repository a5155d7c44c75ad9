"""What the agent owes the coordinator is delivered in order, and never twice by its own doing."""

import asyncio

from planaria.api.worker.v1.worker_service_pb2 import SessionRequest
from planaria_worker.agent.outbox import Outbox


def message(engine_id: str) -> SessionRequest:
    request = SessionRequest()
    request.peer_lost.engine_id = engine_id
    return request


async def test_messages_leave_in_order_and_stay_until_delivered() -> None:
    """A head that was read but not delivered is read again."""
    outbox = Outbox()
    first, second = message("a"), message("b")
    outbox.post(first)
    outbox.post(second)
    assert await outbox.head() is first
    assert await outbox.head() is first
    outbox.pop(first)
    assert await outbox.head() is second


async def test_a_full_outbox_drops_the_oldest_and_counts_it() -> None:
    outbox = Outbox(capacity=2)
    first, second, third = message("a"), message("b"), message("c")
    for each in (first, second, third):
        outbox.post(each)
    assert outbox.num_dropped == 1
    outbox.pop(first)  # it was being written while it was dropped
    assert await outbox.head() is second


async def test_head_waits_for_a_message() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.head())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.post(message("a"))
    assert (await waiting).peer_lost.engine_id == "a"
