"""Records of ``__diskless_metadata``. They are KIP-1164's records 100 to 103, and Moldau's own records with
the numbers 104 and above.

Version 0 of record 102 is the KIP's form. Moldau writes version 1, in which the batches of a file are columns
in two byte strings. ``moldau.coordinators.diskless.codecs.columns`` and ``.file_codec`` define the layout of
these columns.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.records.schema import KeyedRecords
from moldau.protocol.schema import Message, message, wire


@message
class DisklessPartitionCreatedKey(Message):
    API_KEY = 100
    VERSIONS = "0"


@message
class DisklessPartitionCreatedRecord(Message):
    API_KEY = 100
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    name: str = wire("string")
    partition_index: int = wire("int32")


@message
class DisklessTopicDeletedKey(Message):
    API_KEY = 101
    VERSIONS = "0"


@message
class DisklessTopicDeletedRecord(Message):
    API_KEY = 101
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")


@message
class DisklessCommittedBatch(Message):
    magic: int = wire("int8", default=2)
    byte_offset: int = wire("int32")
    byte_size: int = wire("int32")
    assigned_base_offset: int = wire("int64")
    assigned_last_offset: int = wire("int64")
    log_append_timestamp: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8")
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16", default=-1)
    base_sequence: int = wire("int32", default=-1)
    last_sequence: int = wire("int32", default=-1)


@message
class DisklessCommittedPartition(Message):
    partition_index: int = wire("int32")
    batches: Sequence[DisklessCommittedBatch] = wire([DisklessCommittedBatch], default=())


@message
class DisklessCommittedTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessCommittedPartition] = wire([DisklessCommittedPartition], default=())


@message
class DisklessFileCommittedKey(Message):
    API_KEY = 102
    VERSIONS = "0"


@message
class DisklessFileCommittedRecord(Message):
    API_KEY = 102
    VERSIONS = "0-1"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    uploader_broker_id: int = wire("int32")
    owner_ids: Sequence[int] = wire(["int32"], default=())
    topics: Sequence[DisklessCommittedTopic] = wire([DisklessCommittedTopic], "0", default=())
    created_ms: int = wire("int64", "1+", default=-1)
    committed_ms: int = wire("int64", "1+", default=-1)
    receipt: bytes = wire("bytes", "1+", default=b"")
    """The result of the commit for the uploader, encoded as columns."""
    locations: bytes = wire("bytes", "1+", default=b"")
    """The positions and the producers of the accepted batches, encoded as columns."""
    uploader_broker_epoch: int = wire("int64", tag=0, tagged="1+", default=-1)
    commit_number: int = wire("int64", tag=1, tagged="1+", default=-1)
    """The position of this commit in the order of the uploader's commits. Older nodes ignore this field."""


@message
class DisklessRecordsDeletedKey(Message):
    API_KEY = 103
    VERSIONS = "0"


@message
class DisklessRecordsDeletedRecord(Message):
    API_KEY = 103
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    new_log_start_offset: int = wire("int64")


@message
class DisklessFilesClosedKey(Message):
    API_KEY = 104
    VERSIONS = "0"


@message
class DisklessFilesClosedRecord(Message):
    """The coordinator will never commit these objects, so they may be deleted as orphans."""

    API_KEY = 104
    VERSIONS = "0"
    FLEXIBLE = "0+"
    closed_ms: int = wire("int64")
    object_keys: Sequence[str] = wire(["string"], default=())


@message
class DisklessFileTakenOverKey(Message):
    API_KEY = 105
    VERSIONS = "0"


@message
class DisklessFileTakenOverRecord(Message):
    """The coordinator of this log has become the owner of a file. If the coordinator did not know the file's
    object, this record also closes the object, so that the coordinator will never commit it."""

    API_KEY = 105
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    file_size: int = wire("int64")
    created_ms: int = wire("int64")
    taken_ms: int = wire("int64")
    remaining_owner_ids: Sequence[int] = wire(["int32"], default=())


@message
class DisklessFilesReleasedKey(Message):
    API_KEY = 106
    VERSIONS = "0"


@message
class DisklessFilesReleasedRecord(Message):
    """This coordinator no longer owns these files, because they were handed over or deleted."""

    API_KEY = 106
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_keys: Sequence[str] = wire(["string"], default=())


@message
class DisklessPrunedKey(Message):
    API_KEY = 107
    VERSIONS = "0"


@message
class DisklessPrunedRecord(Message):
    """Offsets below ``to_offset`` are read from remote storage."""

    API_KEY = 107
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    from_offset: int = wire("int64")
    to_offset: int = wire("int64")
    epoch: int = wire("int32")
    remote_metadata_position: int = wire("int64", default=-1)


@message
class DisklessExpiredKey(Message):
    API_KEY = 108
    VERSIONS = "0"


@message
class DisklessExpiredRecord(Message):
    """Old entries have expired: results of files, closed object keys, and producers."""

    API_KEY = 108
    VERSIONS = "0"
    FLEXIBLE = "0+"
    files_before_ms: int = wire("int64")
    producers_before_ms: int = wire("int64")


@message
class DisklessTransactionsEndedKey(Message):
    API_KEY = 109
    VERSIONS = "0"


@message
class DisklessTransactionMarker(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    base_offset: int = wire("int64")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    coordinator_epoch: int = wire("int32")
    """The epoch of the transaction coordinator."""
    committed: bool = wire("bool")
    decision_partition: int = wire("int32", tag=0, tagged="0+", default=-1)
    """The partition of ``__transaction_state`` with the outcome. Older nodes ignore it."""
    decision_offset: int = wire("int64", tag=1, tagged="0+", default=-1)
    """The offset of the outcome in that partition. Older nodes ignore it."""


@message
class DisklessTransactionsEndedRecord(Message):
    """Markers of transactions. Each marker is an extent that has a single offset and no object."""

    API_KEY = 109
    VERSIONS = "0"
    FLEXIBLE = "0+"
    ended_ms: int = wire("int64")
    markers: Sequence[DisklessTransactionMarker] = wire([DisklessTransactionMarker], default=())


RECORDS = KeyedRecords(
    (DisklessPartitionCreatedKey, DisklessPartitionCreatedRecord),
    (DisklessTopicDeletedKey, DisklessTopicDeletedRecord),
    (DisklessFileCommittedKey, DisklessFileCommittedRecord),
    (DisklessRecordsDeletedKey, DisklessRecordsDeletedRecord),
    (DisklessFilesClosedKey, DisklessFilesClosedRecord),
    (DisklessFileTakenOverKey, DisklessFileTakenOverRecord),
    (DisklessFilesReleasedKey, DisklessFilesReleasedRecord),
    (DisklessPrunedKey, DisklessPrunedRecord),
    (DisklessExpiredKey, DisklessExpiredRecord),
    (DisklessTransactionsEndedKey, DisklessTransactionsEndedRecord),
)
