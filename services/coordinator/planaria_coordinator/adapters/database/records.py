"""What the repositories share: records as rows, upserts in both dialects, pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Row,
    Select,
    Table,
    Update,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from planaria_coordinator.adapters.database.transaction import Transaction
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import Page

RecordT = TypeVar("RecordT")
T = TypeVar("T")


def row_of(record: Any, table: Table) -> dict[str, Any]:
    """Return the fields of a dataclass for which the table has columns."""
    columns = {column.name for column in table.columns}
    names = (field.name for field in fields(record))
    return {name: getattr(record, name) for name in names if name in columns}


def record_of(record_type: type[RecordT], row: Row[Any]) -> RecordT:
    """Return the dataclass that a row holds; fields without a column keep their defaults."""
    names = {field.name for field in fields(record_type)}  # type: ignore[arg-type]
    return record_type(**{name: value for name, value in row._mapping.items() if name in names})


async def find_all(
    transaction: Transaction, record_type: type[RecordT], query: Select[Any]
) -> list[RecordT]:
    """Return the dataclass of each row."""

    def find(connection: Connection) -> list[RecordT]:
        return [record_of(record_type, row) for row in connection.execute(query)]

    return await transaction.run(find)


async def find_first(
    transaction: Transaction, record_type: type[RecordT], query: Select[Any]
) -> RecordT | None:
    """Return the dataclass of the first row; None without rows."""
    found = await find_all(transaction, record_type, query.limit(1))
    return found[0] if found else None


async def find_value(transaction: Transaction, query: Select[T]) -> T | None:
    """Return the only column of the only row; None without rows."""
    return await transaction.run(lambda connection: connection.execute(query).scalar_one_or_none())


def write(
    transaction: Transaction, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Write with one statement, for each row where rows are given."""
    transaction.write(lambda connection: connection.execute(statement, rows))


def insert_rows(transaction: Transaction, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows whose primary keys are new."""
    if rows:
        write(transaction, inserting(table), rows)


def insert_or_replace(
    transaction: Transaction, table: Table, row: Mapping[str, Any], *, keep: tuple[str, ...] = ()
) -> None:
    """Insert a row; when its primary key exists, overwrite the other columns but those to keep."""

    def upsert(connection: Connection) -> None:
        connection.execute(_replacing(table, connection.dialect.name, keep), row)

    transaction.write(upsert)


def insert_or_ignore(
    transaction: Transaction, table: Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows; those whose primary key exists are left as they are."""

    def insert_new(connection: Connection) -> None:
        connection.execute(_ignoring(table, connection.dialect.name), rows)

    if rows:
        transaction.write(insert_new)


def count_up(connection: Connection, counters: Table, name: str, amount: int) -> int:
    """Add to a counter and return its new value.

    Others that count it wait for the end of this transaction, so the numbers have no gaps and
    become visible in their order.
    """
    row = {"name": name, "value": amount}
    value: int = connection.execute(_counting(counters, connection.dialect.name), row).scalar_one()
    return value


# Statements are made once: SQLAlchemy finds the compiled form of one it has seen without looking
# at all its parts again.


@cache
def inserting(table: Table) -> Insert:
    """Return the statement that inserts rows given as parameters."""
    return insert(table)


@cache
def updating(column: Column[str]) -> Update:
    """Return the statement that sets the columns given as parameters, of the row `row_id`."""
    return update(column.table).where(column == bindparam("row_id"))


@cache
def _replacing(table: Table, dialect: str, keep: tuple[str, ...]) -> Insert:
    statement = _insert(table, dialect)
    rest = {
        each.name: statement.excluded[each.name]
        for each in table.c
        if not each.primary_key and each.name not in keep
    }
    return statement.on_conflict_do_update(index_elements=table.primary_key, set_=rest)


@cache
def _ignoring(table: Table, dialect: str) -> Insert:
    return _insert(table, dialect).on_conflict_do_nothing()


@cache
def _counting(counters: Table, dialect: str) -> ReturningInsert[int]:
    statement = _insert(counters, dialect)
    total = counters.c.value + statement.excluded.value
    return statement.on_conflict_do_update(
        index_elements=["name"], set_={"value": total}
    ).returning(counters.c.value)


def _insert(table: Table, dialect: str) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


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
        self, transaction: Transaction, page: PageRequest, *conditions: ColumnElement[bool]
    ) -> Page[RecordT]:
        """Return the page that a token names; the first one for the empty token.

        Raises:
            InvalidArgumentError: the token is not one of ours.
        """
        query = select(self.table).where(*conditions).limit(page.page_size + 1)
        if page.page_token:
            last = page.position()
            query = query.where(self.order < last if self.newest_first else self.order > last)
        query = query.order_by(self.order.desc() if self.newest_first else self.order)
        rows = await transaction.run(lambda connection: connection.execute(query).all())
        shown = rows[: page.page_size]
        token = str(shown[-1]._mapping[self.order]) if len(rows) > page.page_size else ""
        items = tuple(record_of(self.record_type, row) for row in shown)
        return Page(items=items, next_page_token=token)
