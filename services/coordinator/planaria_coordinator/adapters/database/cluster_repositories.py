"""Repositories of nodes, of events, and of changes by their request ids."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, select

from planaria_coordinator.adapters.database.records import (
    count_up,
    find_all,
    find_first,
    find_value,
    insert_or_replace,
    insert_rows,
    inserting,
    row_of,
    updating,
    write,
)
from planaria_coordinator.adapters.database.schema import COUNTERS, EVENTS, NODES, REQUEST_IDS
from planaria_coordinator.adapters.database.transaction import Transaction
from planaria_coordinator.application.ports import RequestRecord
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.job.event import Event, EventDraft


class SqlNodes:
    """Nodes."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def save(self, node: Node) -> None:
        insert_or_replace(self._transaction, NODES, row_of(node, NODES))

    async def remove(self, node_id: str) -> None:
        write(self._transaction, delete(NODES).where(NODES.c.id == node_id))

    async def all(self) -> Sequence[Node]:
        return await find_all(self._transaction, Node, select(NODES).order_by(NODES.c.id))

    async def save_heartbeats(self, times: Mapping[str, datetime]) -> None:
        if not times:
            return
        # Sorted: two batches must not wait for each other's rows.
        rows = [{"row_id": each, "heartbeat_time": times[each]} for each in sorted(times)]
        write(self._transaction, updating(NODES.c.id), rows)


class SqlEvents:
    """Events, in one order without gaps."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def append(self, drafts: Sequence[EventDraft]) -> None:
        if not drafts:
            return
        rows = [row_of(draft, EVENTS) for draft in drafts]

        def append(connection: Connection) -> None:
            first = count_up(connection, COUNTERS, "events", len(rows)) - len(rows) + 1
            numbered = [{**row, "sequence": number} for number, row in enumerate(rows, start=first)]
            connection.execute(inserting(EVENTS), numbered)

        self._transaction.write(append)

    async def after(self, sequence: int, *, job_id: str, limit: int) -> Sequence[Event]:
        query = select(EVENTS).where(EVENTS.c.sequence > sequence)
        if job_id:
            query = query.where(EVENTS.c.job_id == job_id)
        query = query.order_by(EVENTS.c.sequence).limit(limit)
        return await find_all(self._transaction, Event, query)

    async def newest_sequence(self) -> int:
        query = select(COUNTERS.c.value).where(COUNTERS.c.name == "events")
        return await find_value(self._transaction, query) or 0


class SqlRequests:
    """Changes by their request ids."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def get(self, request_id: str) -> RequestRecord | None:
        query = select(REQUEST_IDS).where(REQUEST_IDS.c.request_id == request_id)
        return await find_first(self._transaction, RequestRecord, query)

    async def add(self, record: RequestRecord) -> None:
        insert_rows(self._transaction, REQUEST_IDS, [row_of(record, REQUEST_IDS)])

    async def forget_before(self, time: datetime) -> None:
        write(self._transaction, delete(REQUEST_IDS).where(REQUEST_IDS.c.create_time < time))
