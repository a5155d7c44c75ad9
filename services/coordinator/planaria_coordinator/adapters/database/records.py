"""What the repositories share: records as rows, upserts in both dialects, pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Row, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.ports import Page

RecordT = TypeVar("RecordT")


def row_of(record: Any, table: Table) -> dict[str, Any]:
    """Return the fields of a dataclass for which the table has columns."""
    columns = {column.name for column in table.columns}
    names = (field.name for field in fields(record))
    return {name: getattr(record, name) for name in names if name in columns}


def record_of(record_type: type[RecordT], row: Row[Any]) -> RecordT:
    """Return the dataclass that a row holds; fields without a column keep their defaults."""
    names = {field.name for field in fields(record_type)}  # type: ignore[arg-type]
    return record_type(**{name: value for name, value in row._mapping.items() if name in names})


async def insert_or_replace(
    connection: AsyncConnection, table: Table, values: Mapping[str, Any]
) -> None:
    """Insert a row; when its primary key exists, overwrite the other columns."""
    key = [column.name for column in table.primary_key]
    rest = {name: value for name, value in values.items() if name not in key}
    insert = _insert(connection, table).values(values)
    await connection.execute(insert.on_conflict_do_update(index_elements=key, set_=rest))


async def insert_or_ignore(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows; those whose primary key exists are left as they are."""
    if rows:
        await connection.execute(_insert(connection, table).on_conflict_do_nothing(), list(rows))


async def count_up(connection: AsyncConnection, counters: Table, name: str, amount: int) -> int:
    """Add to a counter and return its new value.

    Others that count it wait for the end of this transaction, so the numbers have no gaps and
    become visible in their order.
    """
    insert = _insert(connection, counters).values(name=name, value=amount)
    upsert = insert.on_conflict_do_update(
        index_elements=["name"], set_={"value": counters.c.value + insert.excluded.value}
    )
    value: int = (await connection.execute(upsert.returning(counters.c.value))).scalar_one()
    return value


def _insert(connection: AsyncConnection, table: Table) -> sqlite.Insert | postgresql.Insert:
    is_sqlite = connection.dialect.name == "sqlite"
    return sqlite.insert(table) if is_sqlite else postgresql.insert(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[RecordT]):
    """A table that is read page by page, in the order of a column of whole numbers.

    The page token is the column's value in the last row of the page before.
    """

    record_type: type[RecordT]
    table: Table
    order: Column[int]
    newest_first: bool = False

    async def page(
        self,
        connection: AsyncConnection,
        *conditions: ColumnElement[bool],
        page_size: int,
        page_token: str,
    ) -> Page[RecordT]:
        """Return the page that a token names; the first one for the empty token.

        Raises:
            InvalidArgumentError: the token is not one of ours.
        """
        query = select(self.table).where(*conditions).limit(page_size + 1)
        if page_token:
            last = _position(page_token)
            query = query.where(self.order < last if self.newest_first else self.order > last)
        query = query.order_by(self.order.desc() if self.newest_first else self.order)
        rows = (await connection.execute(query)).all()
        shown = rows[:page_size]
        return Page(
            items=tuple(record_of(self.record_type, row) for row in shown),
            next_page_token=str(shown[-1]._mapping[self.order]) if len(rows) > page_size else "",
        )


def _position(page_token: str) -> int:
    if not (page_token.isascii() and page_token.isdecimal() and len(page_token) <= 18):
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"page_token {page_token[:40]!r} is not one that this server gave: "
            "pass next_page_token of the page before",
            {"field": "page_token", "actual": page_token[:40]},
        )
    return int(page_token)
