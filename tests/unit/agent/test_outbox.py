"""What the agent owes the coordinator is delivered in order, and never twice by its own doing."""

import asyncio

from planaria.api.worker.v1.worker_service_pb2 import SessionRequest
from planaria_worker.agent.outbox import Outbox


def message(engine_id: str) -> SessionRequest:
    request = SessionRequest()
    request.link_failed.engine_id = engine_id
    return request


async def test_messages_leave_in_order_and_stay_until_delivered() -> None:
    """A head that was read but not delivered is read again."""
    outbox = Outbox()
    first, second = message("a"), message("b")
    outbox.post(first)
    outbox.post(second)
    assert await outbox.next() is first
    assert await outbox.next() is first
    outbox.pop(first)
    assert await outbox.next() is second


async def test_a_full_outbox_drops_the_oldest_and_counts_it() -> None:
    outbox = Outbox(capacity=2)
    first, second, third = message("a"), message("b"), message("c")
    for each in (first, second, third):
        outbox.post(each)
    assert outbox.num_dropped == 1
    outbox.pop(first)  # it was being written while it was dropped
    assert await outbox.next() is second


async def test_next_waits_for_a_message() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.post(message("a"))
    assert (await waiting).link_failed.engine_id == "a"


async def deliver(outbox: Outbox) -> SessionRequest:
    """Take out the head, as a session does when the stream took it."""
    head = await outbox.next()
    outbox.pop(head)
    return head


async def test_reports_that_are_not_stored_are_sent_again_first_and_in_order() -> None:
    """The coordinator stored the first of three and died; the rest was in its memory alone."""
    outbox = Outbox()
    first, second, third, other = message("a"), message("b"), message("c"), message("d")
    for each in (first, second, third):
        outbox.report(each)
    for _ in range(3):
        await deliver(outbox)
    outbox.acknowledge(first.report_number)
    outbox.post(other)
    outbox.send_again()
    assert [await deliver(outbox) for _ in range(3)] == [second, third, other]
    outbox.acknowledge(third.report_number)
    outbox.send_again()
    assert len(outbox) == 0


async def test_a_report_may_be_stored_before_its_delivery_is_noted() -> None:
    outbox = Outbox()
    report = message("a")
    outbox.report(report)
    outbox.acknowledge(report.report_number)
    outbox.pop(report)
    outbox.send_again()
    assert len(outbox) == 0


async def test_reports_of_a_coordinator_that_stores_nothing_do_not_fill_the_memory() -> None:
    outbox = Outbox(capacity=3, max_unacknowledged=2)
    reports = [message(name) for name in "abcde"]
    for each in reports[:3]:
        outbox.report(each)
        await deliver(outbox)
    assert outbox.num_dropped == 1
    for each in reports[3:]:
        outbox.report(each)
    outbox.send_again()
    assert (len(outbox), outbox.num_dropped) == (3, 2)
    assert await outbox.next() is reports[2]
