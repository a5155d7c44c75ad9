"""Dataclasses to protobuf messages and back, by field names.

Fields match by name, except that the wire says `bytes` for `num_bytes`, omits a unit that the type
has (`rebuild_timeout` for `rebuild_timeout_seconds`), sends hexadecimal digests as bytes, and has
seconds by number of accelerators where a dataclass has those of one. Callers convert other
differences in shape explicitly. Whatever is made must be complete: each of its fields has a
counterpart in what it is made from.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

MessageT = TypeVar("MessageT", bound=Message)
DataT = TypeVar("DataT")
Convert = Callable[[Any], Any]

_UNSPECIFIED: Mapping[str, str] = MappingProxyType(
    {"EngineState": "STARTING", "ErrorReason": "INTERNAL"}
)
"""What a reader makes of an enum that the sender left unset."""


def to_message(value: Any, message_type: type[MessageT]) -> MessageT:
    """Return a dataclass as a message; None leaves a field unset.

    Raises:
        TypeError: the dataclass lacks a field of the message.
    """
    message: MessageT = _writer(cast(Hashable, type(value)), message_type.DESCRIPTOR)(value)
    return message


def from_message(message: Message, data_type: type[DataT]) -> DataT:
    """Return a message as a dataclass; an unset field is None where the dataclass permits it.

    Raises:
        TypeError: the message lacks a field of the dataclass.
    """
    data: DataT = _reader(cast(Hashable, data_type), message.DESCRIPTOR)(message)
    return data


def timestamp(time: datetime) -> Timestamp:
    """Return a time as protobuf has it."""
    message = Timestamp()
    message.FromDatetime(time)
    return message


def duration(seconds: float) -> Duration:
    """Return seconds as protobuf has them."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def struct(document: Mapping[str, Any]) -> Struct:
    """Return JSON values as protobuf has them."""
    message = Struct()
    message.update(document)
    return message


def from_struct(message: Struct) -> dict[str, Any]:
    """Return JSON values; whole numbers, which a Struct holds as floats, are ints again."""
    return {name: _json_value(value) for name, value in message.fields.items()}


def _json_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_json_value(each) for each in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case _:
            return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    attribute: str
    name: str
    is_optional: bool
    is_computed: bool
    """A property: written, and never read."""
    encode: Convert
    decode: Convert


@cache
def _writer(data_type: Hashable, descriptor: Descriptor) -> Convert:
    """Return what makes a message of a dataclass."""
    fields = _match(cast(type, data_type), descriptor)
    missing = set(descriptor.fields_by_name) - {field.name for field in fields}
    if missing:
        raise TypeError(f"{cast(type, data_type).__name__} has no {', '.join(sorted(missing))}")
    message_type = GetMessageClass(descriptor)
    plain = [(f.attribute, f.name) for f in fields if f.encode is _same]
    converted = [(f.attribute, f.name, f.encode) for f in fields if f.encode is not _same]

    def write(value: Any) -> Message:
        values = {name: getattr(value, attribute) for attribute, name in plain}
        for attribute, name, encode in converted:
            each = getattr(value, attribute)
            values[name] = None if each is None else encode(each)
        return message_type(**values)

    return write


@cache
def _reader(data_type: Hashable, descriptor: Descriptor) -> Convert:
    """Return what makes a dataclass of a message."""
    data = cast(Any, data_type)
    fields = [field for field in _match(data, descriptor) if not field.is_computed]
    attributes = {each.name for each in dataclasses.fields(data)} - {"kind"}
    missing = attributes - {field.attribute for field in fields}
    if missing:
        raise TypeError(f"{descriptor.name} has no {', '.join(sorted(missing))}")
    plain = [(f.attribute, f.name) for f in fields if f.decode is _same and not f.is_optional]
    converted = [
        (f.attribute, f.name, f.decode, f.is_optional)
        for f in fields
        if f.decode is not _same or f.is_optional
    ]

    def read(message: Message) -> Any:
        values = {attribute: getattr(message, name) for attribute, name in plain}
        for attribute, name, decode, is_optional in converted:
            if is_optional and not message.HasField(name):
                values[attribute] = None
            else:
                values[attribute] = decode(getattr(message, name))
        return data(**values)

    return read


def _match(data: Any, descriptor: Descriptor) -> list[_Field]:
    """Match the fields and properties of a dataclass with the fields of a message."""
    hints = get_type_hints(data)
    attributes = [each.name for each in dataclasses.fields(data)]
    computed = [name for name, each in vars(data).items() if isinstance(each, property)]
    for name in computed:
        hints[name] = get_type_hints(vars(data)[name].fget)["return"]
    found = []
    for attribute in (*attributes, *computed):
        name = next((n for n in _names(attribute) if n in descriptor.fields_by_name), None)
        if name is None:
            continue
        annotation = hints[attribute]
        is_optional = NoneType in get_args(annotation)
        if is_optional:
            [annotation] = [a for a in get_args(annotation) if a is not NoneType]
        encode, decode = _converters(annotation, descriptor.fields_by_name[name])
        found.append(
            _Field(
                attribute=attribute,
                name=name,
                is_optional=is_optional,
                is_computed=attribute in computed,
                encode=encode,
                decode=decode,
            )
        )
    return found


def _names(attribute: str) -> Iterator[str]:
    yield attribute
    if attribute == "num_bytes":
        yield "bytes"
    if attribute.endswith("_seconds"):
        yield attribute.removesuffix("_seconds")
    if attribute == "engine_id":
        yield "id"  # of a node's engine


def _converters(annotation: Any, field: FieldDescriptor) -> tuple[Convert, Convert]:
    """Return how a value of this type is written into a field, and read from it."""
    message_type = field.message_type
    if get_origin(annotation) is tuple:
        encode, decode = _converters(get_args(annotation)[0], field)
        return _each(encode), tuple if decode is _same else _each(decode)
    if message_type is None:
        return _scalar_converters(annotation, field)
    if message_type.GetOptions().map_entry and annotation is float:
        return lambda seconds: {1: seconds}, lambda seconds: seconds[1]
    if message_type.GetOptions().map_entry:
        _, decode = _converters(get_args(annotation)[1], message_type.fields_by_name["value"])
        return _same, lambda values: {key: decode(value) for key, value in values.items()}
    if annotation is datetime:
        return timestamp, lambda time: time.ToDatetime(tzinfo=UTC)
    if message_type is Duration.DESCRIPTOR:
        return duration, lambda time: time.ToTimedelta().total_seconds()
    if message_type is Struct.DESCRIPTOR:
        return struct, from_struct
    read: Convert | None = None

    def read_nested(value: Any) -> Any:  # what is only written need not be readable
        nonlocal read
        read = read or _reader(annotation, message_type)
        return read(value)

    return _writer(annotation, message_type), read_nested


def _each(convert: Convert) -> Convert:
    return _same if convert is _same else lambda values: tuple([convert(v) for v in values])


def _same(value: Any) -> Any:
    return value


def _scalar_converters(annotation: Any, field: FieldDescriptor) -> tuple[Convert, Convert]:
    if field.enum_type is not None:
        return _enum_converters(annotation, field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.fromhex, lambda value: value.hex()
    if annotation is str:
        return _same, lambda text: _storable(text)
    return _same, _same


def _enum_converters(enum: type[StrEnum], descriptor: EnumDescriptor) -> tuple[Convert, Convert]:
    unspecified = descriptor.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    numbers = {value.name.removeprefix(prefix): value.number for value in descriptor.values}
    members: dict[int, StrEnum] = {
        number: enum(name) for name, number in numbers.items() if number != 0
    }
    if descriptor.name in _UNSPECIFIED:
        members[0] = enum(_UNSPECIFIED[descriptor.name])
    return numbers.__getitem__, members.__getitem__


def _storable(text: str) -> str:
    """Replace NUL: PostgreSQL cannot store it, and a user's code may raise or print it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
