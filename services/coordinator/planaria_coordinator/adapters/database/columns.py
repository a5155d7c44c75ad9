"""Column types that hold what the domain's dataclasses hold."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json
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


JSON_AS_TEXT: Final = MappingProxyType({"json_serializer": str, "json_deserializer": str})
"""Arguments of engines: `Document` makes and reads JSON itself, at a fraction of the time."""


class Document(TypeDecorator[Any]):
    """Any value of a type that round-trips through JSON, such as a dataclass or a union of them.

    Args:
        held_type: the type; read values are instances of it again.
    """

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def __init__(self, held_type: Any) -> None:
        super().__init__()
        # SQLAlchemy knows compiled statements again by the arguments that are attributes.
        self.held_type = held_type
        self._adapter: TypeAdapter[Any] = TypeAdapter(held_type)

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else to_json(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else self._adapter.validate_json(value)
