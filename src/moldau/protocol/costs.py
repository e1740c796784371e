"""Memory estimates of parsed messages, and the memory limit of a request. The estimates are computed from the
messages' schema.

A few bytes on the wire may become an object of a hundred bytes. For example, an array of empty strings or of
small structs takes many times its size after it is parsed. Before decoders read an array's items, they
subtract the items' minimum cost from the message's limit. They refuse a message that exceeds the limit.

The rule is Moldau's own. Kafka only checks an array's length against the bytes that are left.
"""

from typing import Final

from moldau.protocol.schema import FieldLayout, Message, layout

UNBOUNDED: Final = 1 << 62
"""The limit for messages from trusted senders: responses of brokers, and records of internal topics."""

PARSED_BYTES_RATIO: Final = 16
"""Bytes of memory that a parsed request may take for each byte of the request. ``PARSED_BYTES_FLOOR`` is
added to this limit."""
PARSED_BYTES_FLOOR: Final = 4 * 1024 * 1024
"""Memory that is added to the limit of each parsed request. With it, no request below 40 KB is refused."""
PARSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The absolute limit of a parsed request in bytes. It is enough for about 100,000 to 400,000 items."""

TAGGED_FIELD_COST: Final = 64
"""Cost of a tagged field. A tagged field costs time rather than memory, but it counts like a small struct."""

_OBJECT_BYTES: Final = 48
"""Bytes of an object's header and of the references to the object. A list refers to the object during
decoding, and a tuple refers to it after decoding."""
_SLOT_BYTES: Final = 8
_FIELD_BYTES: Final = {
    "string": 56,
    "bytes": 40,
    "records": 200,  # the size of a view of the bytes
    "uuid": 112,
    "bool": 0,
    "int8": 0,
    "uint8": 0,
    "error_code": 0,
}
_NUMBER_BYTES: Final = 32
_ARRAY_BYTES: Final = 56


def allowance(size_bytes: int, rows_share: float = 1) -> int:
    """Memory in bytes that a request of ``size_bytes`` may take when it is parsed.

    If the handling of the parsed rows takes additional memory for each row, the caller passes a
    ``rows_share`` below 1. The parsed request may then take only this share of the memory.
    """
    return min(PARSED_BYTES_MAX, int(rows_share * (PARSED_BYTES_FLOOR + PARSED_BYTES_RATIO * size_bytes)))


def item_cost(field: FieldLayout, version: int, flexible: bool) -> int:
    """Return the bytes of memory that an item of an array takes, without the content of the item's own
    arrays."""
    if isinstance(field.kind, str):
        return _FIELD_BYTES.get(field.kind, _NUMBER_BYTES) + 2 * _SLOT_BYTES
    return _struct_cost(field.kind, version, flexible)


def _struct_cost(cls: type[Message], version: int, flexible: bool) -> int:
    # Fields that the version does not have, and tagged fields that were not sent, have default objects. All
    # messages share these objects, so they add no cost.
    found = layout(cls, version, flexible)
    total = _OBJECT_BYTES + _SLOT_BYTES * (len(found.absent) + len(found.tagged) + len(found.fields))
    for field in found.fields:
        if field.array:
            total += _ARRAY_BYTES
        elif isinstance(field.kind, str):
            total += _FIELD_BYTES.get(field.kind, _NUMBER_BYTES)
        else:
            total += _struct_cost(field.kind, version, flexible)
    return total
