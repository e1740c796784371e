"""Kafka's encoding of ``__transaction_state``. Keys and values begin with an int16 version. Pure."""

from functools import lru_cache
from typing import Final, NamedTuple

from moldau.coordinators.shard import UnreadableRecordError
from moldau.coordinators.transactions.states import STATE_BY_NUMBER
from moldau.coordinators.transactions.transaction import Transaction
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.records.schema import UnknownRecordTypeError
from moldau.protocol.records.transactions import (
    RECORDS,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

FLEXIBLE_VALUE_VERSION: Final = 1
"""From transaction.version 1 on, values are written in this version. It has fields for the previous and next
producer ids, and for the client's transaction version.
"""

SHORT_ID: Final = 128
"""Maximum length of an id whose encoded key is cached. The limit keeps the memory of the cache small."""


class TransactionRecord(NamedTuple):
    """The state of a transactional id; ``value=None`` is its tombstone.

    ``is_unreadable`` means that the id has a state, but the state could not be read. A record with this mark
    is never written.
    """

    transactional_id: str
    value: Transaction | None
    value_version: int = FLEXIBLE_VALUE_VERSION
    is_unreadable: bool = False


class TransactionCodec:
    """Converts between :class:`TransactionRecord` and the topic's keys and values."""

    def encode(self, record: TransactionRecord) -> tuple[bytes | None, bytes | None]:
        """Key and value; the value of a tombstone is ``None``."""
        name = record.transactional_id
        key = _short_key(name) if len(name) <= SHORT_ID else _key(name)
        if record.value is None:
            return key, None
        return key, RECORDS.encode_value(_message(record.value, record.value_version), record.value_version)

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        """Decode the record; ``None`` for a record type that is not known.

        Raises ``ProtocolError``. Raises :class:`UnreadableRecordError` if only the value cannot be read.
        """
        if key is None:
            raise ProtocolError("the record has no key")
        try:
            decoded = RECORDS.decode_key(key)
        except UnknownRecordTypeError:
            return None
        assert isinstance(decoded, TransactionLogKey)
        if value is None:
            return TransactionRecord(decoded.transactional_id, None)
        name = decoded.transactional_id
        try:
            message = RECORDS.decode_value(decoded, value)
            assert isinstance(message, TransactionLogValue)
            return TransactionRecord(name, _transaction(message))
        except Exception as error:
            raise UnreadableRecordError(
                TransactionRecord(name, None, is_unreadable=True),
                f"the state of transactional id {name!r} cannot be read: {error}",
            ) from error


def _key(transactional_id: str) -> bytes:
    return RECORDS.encode_key(TransactionLogKey(transactional_id=transactional_id))


_short_key = lru_cache(maxsize=1024)(_key)
"""Each transaction writes three records with the same key."""


def _message(transaction: Transaction, version: int) -> TransactionLogValue:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    is_flexible = version >= FLEXIBLE_VALUE_VERSION
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id if is_flexible else -1,
        next_producer_id=transaction.next_producer_id if is_flexible else -1,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        # As in Kafka, the value is null if the transaction has not begun.
        transaction_partitions=[
            PartitionsSchema(topic=topic, partition_ids=partitions) for topic, partitions in topics.items()
        ]
        if transaction.state.number
        else None,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version if is_flexible else 0,
    )


def _transaction(message: TransactionLogValue) -> Transaction:
    state = STATE_BY_NUMBER.get(message.transaction_status)
    if state is None:
        raise ProtocolError(f"transaction state {message.transaction_status} is not known")
    return Transaction(
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        timeout_ms=message.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in message.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=message.transaction_start_timestamp_ms,
        updated_ms=message.transaction_last_update_timestamp_ms,
        client_version=message.client_transaction_version,
    )
