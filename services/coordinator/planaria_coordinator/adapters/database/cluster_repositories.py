"""Repositories of nodes, of events, and of changes by their request ids."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from planaria_coordinator.adapters.database.records import (
    count_up,
    insert_or_replace,
    record_of,
    row_of,
)
from planaria_coordinator.adapters.database.schema import COUNTERS, EVENTS, NODES, REQUEST_IDS
from planaria_coordinator.application.ports import RequestRecord
from planaria_coordinator.domain.event import Event, EventDraft
from planaria_coordinator.domain.node import Node


class SqlNodes:
    """Nodes."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, node_id: str) -> Node | None:
        row = (await self._connection.execute(select(NODES).where(NODES.c.id == node_id))).first()
        return None if row is None else record_of(Node, row)

    async def save(self, node: Node) -> None:
        await insert_or_replace(self._connection, NODES, row_of(node, NODES))

    async def remove(self, node_id: str) -> None:
        await self._connection.execute(delete(NODES).where(NODES.c.id == node_id))

    async def all(self) -> Sequence[Node]:
        rows = (await self._connection.execute(select(NODES).order_by(NODES.c.id))).all()
        return [record_of(Node, row) for row in rows]

    async def save_heartbeats(self, times: Mapping[str, datetime]) -> None:
        if not times:
            return
        statement = (
            update(NODES)
            .where(NODES.c.id == bindparam("node"))
            .values(heartbeat_time=bindparam("beat"))
        )
        # Sorted: two batches must not wait for each other's rows.
        rows = [{"node": node_id, "beat": times[node_id]} for node_id in sorted(times)]
        await self._connection.execute(statement, rows)


class SqlEvents:
    """Events, in one order without gaps."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def append(self, drafts: Sequence[EventDraft]) -> Sequence[Event]:
        if not drafts:
            return []
        newest = await count_up(self._connection, COUNTERS, "events", len(drafts))
        events = [
            Event(
                sequence=sequence,
                **{field.name: getattr(draft, field.name) for field in fields(EventDraft)},
            )
            for sequence, draft in enumerate(drafts, start=newest - len(drafts) + 1)
        ]
        await self._connection.execute(insert(EVENTS), [row_of(event, EVENTS) for event in events])
        return events

    async def after(self, sequence: int, *, job_id: str, limit: int) -> Sequence[Event]:
        query = select(EVENTS).where(EVENTS.c.sequence > sequence)
        if job_id:
            query = query.where(EVENTS.c.job_id == job_id)
        query = query.order_by(EVENTS.c.sequence).limit(limit)
        return [record_of(Event, row) for row in (await self._connection.execute(query)).all()]

    async def newest_sequence(self) -> int:
        query = select(COUNTERS.c.value).where(COUNTERS.c.name == "events")
        newest: int | None = (await self._connection.execute(query)).scalar_one_or_none()
        return newest or 0


class SqlRequests:
    """Changes by their request ids."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, request_id: str) -> RequestRecord | None:
        query = select(REQUEST_IDS).where(REQUEST_IDS.c.request_id == request_id)
        row = (await self._connection.execute(query)).first()
        return None if row is None else record_of(RequestRecord, row)

    async def add(self, record: RequestRecord) -> None:
        await self._connection.execute(insert(REQUEST_IDS).values(row_of(record, REQUEST_IDS)))
