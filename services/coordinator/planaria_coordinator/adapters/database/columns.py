"""Column types that hold what the domain's dataclasses hold."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
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


class UnreadableDocumentError(ValueError):
    """A stored document has an unknown key, lacks a required one, or holds a wrong value."""

    def __init__(self, error: ValidationError) -> None:
        by_type: dict[Any, list[Any]] = {}  # of a union, the member that comes nearest is meant
        for each in error.errors(include_url=False, include_input=False):
            by_type.setdefault(each["loc"][:1], []).append(each)
        first = min(by_type.values(), key=len)[0]
        self.key = ".".join(str(part) for part in first["loc"])
        match first["type"]:
            case "unexpected_keyword_argument":
                problem = "has the unknown key"
            case "missing":
                problem = "lacks the key"
            case _:
                problem = f"is wrong ({first['msg']}) at"
        super().__init__(f"{problem} {self.key}")


class Document(TypeDecorator[Any]):
    """Any value of a type that round-trips through JSON, such as a dataclass or a union of them.

    Reading is strict: a key that the type does not know would otherwise be lost at the next write.

    Args:
        held_type: the type; read values are instances of it again.
    """

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def __init__(self, held_type: Any) -> None:
        super().__init__()
        # SQLAlchemy knows compiled statements again by the arguments that are attributes.
        self.held_type = held_type
        # `| None`: a dataclass by itself takes no configuration from here.
        strict = ConfigDict(extra="forbid")
        self._adapter: TypeAdapter[Any] = TypeAdapter(held_type | None, config=strict)

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else to_json(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        if value is None:
            return None
        try:
            return self._adapter.validate_json(value)
        except ValidationError as error:
            raise UnreadableDocumentError(error) from None
