"""Random messages of our classes. For each of them there is an equal message of kio's classes (its twin)."""

import dataclasses
import datetime
import io
import random
from typing import Any
from uuid import UUID

from kio.serial import entity_writer

from moldau.protocol.generate import kafka_name, take_apart
from moldau.protocol.schema import ZERO_UUID, FieldLayout, Message, is_flexible, layout
from moldau.runtime import ErrorCode

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNSIGNED_BITS = {"uint16": 16, "uint32": 32}
OWN_TAG_MIN = 11_000
"""Tags of fields that Moldau adds to Kafka's messages. kio does not know them."""
TEXTS = ["", "a", "topic-1", "žluťoučký kůň", "x" * 126, "y" * 127, "z" * 300]
ERRORS = list(ErrorCode)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def random_value(rng: random.Random, field: FieldLayout, version: int, flexible: bool) -> Any:
    if field.nullable and rng.random() < 0.3 and not (field.tag is not None and field.default is not None):
        return None
    if field.tag is not None and rng.random() < 0.4:
        return field.default
    if field.array:
        single = field._replace(array=False, nullable=False, tag=None)
        count = rng.choice([0, 1, 2, 3])
        if field.kind in INTEGER_BITS and rng.random() < 0.1:
            count = rng.choice([126, 127, 1100])
        return tuple(random_value(rng, single, version, flexible) for _ in range(count))
    return random_single(rng, field, version, flexible)


def random_single(rng: random.Random, field: FieldLayout, version: int, flexible: bool) -> Any:
    kind = field.kind
    if not isinstance(kind, str):
        return random_message(rng, kind, version, flexible)
    if kind in INTEGER_BITS:
        if field.name.endswith("_ms"):
            # kio supports no negative times except -1, no times of 64 bits, and no fractions of a second in a
            # datetime.
            return rng.choice([0, 1000, 86_400_000, rng.randrange(2**31 // 1000) * 1000])
        top = 1 << (INTEGER_BITS[kind] - 1)
        return rng.choice([0, -1, 1, top - 1, -top, rng.randrange(-top, top)])
    if kind in UNSIGNED_BITS:
        return rng.choice([0, 1, (1 << UNSIGNED_BITS[kind]) - 1])
    values = {
        "string": lambda: rng.choice(TEXTS),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 127, 200])),
        "records": lambda: rng.randbytes(rng.choice([0, 1, 127, 200])),
        "uuid": lambda: rng.choice([ZERO_UUID, UUID(int=rng.getrandbits(128))]),
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.uniform(-1e9, 1e9),
        "error_code": lambda: rng.choice(ERRORS),
    }
    return values[kind]()


def random_message(rng: random.Random, cls: type[Message], version: int, flexible: bool | None = None) -> Any:
    """A message of our classes in which only the fields of ``version`` are set."""
    flexible = is_flexible(cls, version) if flexible is None else flexible
    plan = layout(cls, version, flexible)
    fields = [at for at in (*plan.fields, *plan.tagged) if at.tag is None or at.tag < OWN_TAG_MIN]
    return cls(**{at.name: random_value(rng, at, version, flexible) for at in fields})


def to_kio(message: Message, twin: type[Any]) -> Any:
    """The equal message as an instance of kio's class."""
    values = {}
    for field in dataclasses.fields(twin):
        inner, _, _ = take_apart(field.type)
        kio_kind = field.metadata.get("kafka_type", "")
        value = getattr(message, kafka_name(field.name, kio_kind))
        convert = converter(kio_kind, inner, "None" in str(field.type))
        if isinstance(value, list | tuple):
            values[field.name] = tuple(map(convert, value))
        else:
            values[field.name] = None if value is None else convert(value)
    return twin(**values)


def converter(kio_kind: str, inner: Any, nullable: bool) -> Any:
    if dataclasses.is_dataclass(inner):
        return lambda value: to_kio(value, inner)
    if kio_kind.startswith("timedelta"):
        return lambda value: datetime.timedelta(milliseconds=value)
    if kio_kind.startswith("datetime"):
        return lambda value: (
            None if value == -1 and nullable else EPOCH + datetime.timedelta(milliseconds=value)
        )
    if kio_kind == "uuid":
        return lambda value: None if value == ZERO_UUID else value
    return lambda value: value


def kio_bytes(entity: Any) -> bytes:
    """The bytes that kio's writer makes from one of kio's messages."""
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()
