"""Column types that hold what the domain's dataclasses hold."""

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

Position = BigInteger().with_variant(Integer(), "sqlite")
"""A primary key that the database counts; SQLite counts only in columns of this very type."""


class UtcTime(TypeDecorator[datetime]):
    """A moment: stored and read in UTC; SQLite has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Document(TypeDecorator[Any]):
    """Any value of a type that round-trips through JSON, such as a dataclass or a union of them.

    Args:
        python_type: the type; read values are instances of it again.
    """

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = False

    def __init__(self, python_type: Any) -> None:
        super().__init__()
        self._adapter: TypeAdapter[Any] = TypeAdapter(python_type)

    def process_bind_param(self, value: Any, _dialect: Dialect) -> Any:
        return None if value is None else self._adapter.dump_python(value, mode="json")

    def process_result_value(self, value: Any, _dialect: Dialect) -> Any:
        return None if value is None else self._adapter.validate_python(value)
