"""Records of ``__transaction_state``."""

from collections.abc import Sequence

from moldau.protocol.records.schema import KeyedRecords
from moldau.protocol.schema import Message, message, wire


@message
class TransactionLogKey(Message):
    API_KEY = 0
    VERSIONS = "0"
    transactional_id: str = wire("string", default="")


@message
class PartitionsSchema(Message):
    topic: str = wire("string", default="")
    partition_ids: Sequence[int] = wire(["int32"], default=())


@message
class TransactionLogValue(Message):
    API_KEY = 0
    VERSIONS = "0-1"
    FLEXIBLE = "1+"
    producer_id: int = wire("int64", default=0)
    previous_producer_id: int = wire("int64", "1+", default=-1, tag=0, tagged="1+")
    next_producer_id: int = wire("int64", "1+", default=-1, tag=1, tagged="1+")
    producer_epoch: int = wire("int16", default=0)
    transaction_timeout_ms: int = wire("int32", default=0)
    transaction_status: int = wire("int8", default=0)
    transaction_partitions: Sequence[PartitionsSchema] | None = wire(
        [PartitionsSchema], default=(), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = wire("int64", default=0)
    transaction_start_timestamp_ms: int = wire("int64", default=0)
    client_transaction_version: int = wire("int16", "1+", default=0, tag=2, tagged="1+")
    next_producer_epoch: int = wire("int16", "1+", default=-1, tag=3, tagged="1+")


RECORDS = KeyedRecords((TransactionLogKey, TransactionLogValue))
