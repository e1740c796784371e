"""Decodes the keys and values of internal topics."""

from collections.abc import Callable
from typing import Any, Final

from moldau.cli.dump import remote_segments
from moldau.cli.dump.diskless_metadata import decode_record
from moldau.cli.dump.values import message_fields, text_of
from moldau.cluster.image.parts.table import METADATA_RECORDS
from moldau.cluster.internal_topics import (
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    STATE_TOPICS,
)
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.records import groups as group_records
from moldau.protocol.records import transactions as transaction_records
from moldau.protocol.records.schema import KeyedRecords
from moldau.protocol.schema import Message
from moldau.records.record import Record

RecordDecoder = Callable[[Record], dict[str, Any]]
"""A record's key and value as fields of a row. Raises ``ProtocolError``."""

CONSUMER: Final = "consumer"


def _raw(record: Record) -> dict[str, Any]:
    return {"key": text_of(record.key), "value": text_of(record.value)}


def _metadata(record: Record) -> dict[str, Any]:
    message, version = METADATA_RECORDS.decode_versioned(record.value or b"")
    return {"record": type(message).__name__, "version": version, "fields": message_fields(message)}


def _keyed(records: KeyedRecords) -> RecordDecoder:
    def decode(record: Record) -> dict[str, Any]:
        key, value = records.decode(record.key or b"", record.value)
        fields = None if value is None else message_fields(value)
        if isinstance(value, group_records.GroupMetadataValue) and value.protocol_type == CONSUMER:
            fields = {**message_fields(value), "members": [_member(member) for member in value.members]}
        return {
            "record": type(key).__name__.removesuffix("Key"),
            "key": message_fields(key),
            "value": fields,
        }

    return decode


def _member(member: group_records.MemberMetadata) -> dict[str, Any]:
    """A classic consumer's metadata. It includes the decoded metadata of the consumer's assignor."""
    fields = message_fields(member)
    readers: dict[str, Callable[[bytes], Message]] = {
        "subscription": group_records.decode_subscription,
        "assignment": group_records.decode_assignment,
    }
    for name, read in readers.items():
        content = getattr(member, name)
        try:
            fields[name] = message_fields(read(content)) if content else None
        except ProtocolError:
            continue  # The assignor has its own format, so the bytes are not decoded.
    return fields


DECODERS: Final[dict[str, RecordDecoder]] = {
    "none": _raw,
    "offsets": _keyed(group_records.RECORDS),
    "transactions": _keyed(transaction_records.RECORDS),
    "metadata": _metadata,
    "diskless": decode_record,
    "remote-log-metadata": remote_segments.decode_record,
}
"""Decoders by the names that ``--decoder`` takes."""

TOPIC_DECODERS: Final = {
    CLUSTER_METADATA_TOPIC: "metadata",
    DISKLESS_METADATA_TOPIC: "diskless",
    REMOTE_LOG_METADATA_TOPIC: "remote-log-metadata",
}
"""Decoders of topics without keyed messages. The other topics have a schema in ``STATE_TOPICS``."""


def decoder_for(topic: str, wanted: str | None) -> RecordDecoder:
    """The decoder for a topic's records, unless the user requests another one."""
    name = wanted or TOPIC_DECODERS.get(topic)
    if name is not None:
        return DECODERS[name]
    state = STATE_TOPICS.get(topic)
    return _raw if state is None or state.records is None else _keyed(state.records)
