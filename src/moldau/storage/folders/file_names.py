"""Kafka's names of the folders and files of a partition."""

import re
import uuid

from crc32c import crc32c

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.partitions import TopicPartition

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
TRANSACTION_SUM_SUFFIX = ".txnindex.sum"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_SUFFIX = ".checkpoint"
PART_SUFFIX = ".part"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
CUT_SUFFIX = ".cut"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LOCK = ".lock"
LAST_BOOT = ".moldau-boot"
INDEX_SUFFIXES = (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    TRANSACTION_SUM_SUFFIX,
)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)

_DELETE_MARK = "-delete"
_STRAY_MARK = "-stray"
_FUTURE_MARK = "-future"
_MAX_FOLDER_NAME_LENGTH = 255
_CHUNK_MARK = "-chunk"
_HASH_DIGITS = 8
_COPY_MARK = "-chunkcopy"
_CHUNK = re.compile(r".*-(\d+)\.(\d{20})-chunk")
HAND_OVERS = "chunk-hand-overs"
"""The folder that contains states for new chunks. Other brokers handed these states over to this broker."""
_OTHER_FOLDERS = frozenset(
    {CLUSTER_METADATA_FOLDER, "objects", "remote-log-metadata", "remote-log-index-cache", HAND_OVERS}
)
"""Names of folders in a log folder that belong to no partition: the quorum's log, a development node's object
store, caches of the remote tier, and states for new chunks."""
_FUTURE = re.compile(r".*-\d+\.[0-9a-f]{32}-future")
_PUT_ASIDE = re.compile(r".*-\d+\.[0-9a-f]{32}-stray")


def segment_file(base_offset: int, suffix: str) -> str:
    """Name of a segment's file, for example ``00000000000000000042.log``."""
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; ``None`` if the name has another form."""
    stem = name[: -len(suffix)]
    if not name.endswith(suffix) or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def folder_of(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def partition_of(folder: str) -> TopicPartition | None:
    """The partition to which a folder belongs; ``None`` if it does not belong to a partition."""
    topic, dash, number = folder.rpartition("-")
    if not topic or not dash or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def deleted_folder(topic_partition: TopicPartition, unique: uuid.UUID) -> str:
    """The name of a deleted partition's folder: ``topic-0.<32 hex digits>-delete``."""
    return _marked_folder(topic_partition, unique, _DELETE_MARK)


def stray_folder(topic_partition: TopicPartition, unique: uuid.UUID) -> str:
    """The name of a folder whose partition is not in the metadata image: ``topic-0.<32 hex
    digits>-stray``."""
    return _marked_folder(topic_partition, unique, _STRAY_MARK)


def _marked_folder(topic_partition: TopicPartition, unique: uuid.UUID, mark: str) -> str:
    tail = f"-{topic_partition.partition}.{unique.hex}{mark}"
    return topic_partition.topic[: _MAX_FOLDER_NAME_LENGTH - len(tail)] + tail


def future_folder(topic_partition: TopicPartition, unique: uuid.UUID) -> str:
    """The name of a copy that is being made in another log folder: ``topic-0.<32 hex digits>-future``."""
    return _marked_folder(topic_partition, unique, _FUTURE_MARK)


def is_whole_name(topic_partition: TopicPartition) -> bool:
    """Whether the partition's name is so short that the name of its future folder contains it completely."""
    return partition_of_future(future_folder(topic_partition, uuid.UUID(int=0))) == topic_partition


def partition_of_future(folder: str) -> TopicPartition | None:
    """The partition of a future folder; None for any other folder."""
    stem, dot, _ = folder.rpartition(".")
    return partition_of(stem) if dot and _FUTURE.fullmatch(folder) else None


def exchanged_for(future: str) -> str:
    """The new name of the folder of a log that is replaced by the future log in the folder ``future``."""
    return future.removesuffix(_FUTURE_MARK) + _DELETE_MARK


def chunk_folder(topic_partition: TopicPartition, start_offset: int) -> str:
    """The name of an inactive chunk's folder (KIP-1114): ``topic-0.<start offset, 20 digits>-chunk``.

    A long topic name is shortened, and a hash of the whole name is added.
    """
    topic, name = topic_partition.topic, f"-{topic_partition.partition}.{start_offset:020d}"
    room = _MAX_FOLDER_NAME_LENGTH - len(name) - len(_COPY_MARK)
    if len(topic) > room:
        topic = f"{topic[: room - _HASH_DIGITS]}{crc32c(topic.encode()):0{_HASH_DIGITS}x}"
    return topic + name + _CHUNK_MARK


def chunk_of(folder: str) -> tuple[int, int] | None:
    """The partition's number and the start offset in the name of a chunk's folder; None for other folders."""
    found = _CHUNK.fullmatch(folder)
    return None if found is None else (int(found[1]), int(found[2]))


def chunk_copy_folder(topic_partition: TopicPartition, start_offset: int) -> str:
    """The name of an incomplete copy of a chunk. The next start of the node removes the copy."""
    return chunk_folder(topic_partition, start_offset).removesuffix(_CHUNK_MARK) + _COPY_MARK


def is_chunk_copy(folder: str) -> bool:
    """Whether a folder is an incomplete copy of a chunk."""
    return folder.endswith(_COPY_MARK)


def is_other_folder(folder: str) -> bool:
    """Whether a folder in a log directory has a known purpose, but does not belong to a partition."""
    return folder in _OTHER_FOLDERS or folder.endswith((_CHUNK_MARK, _COPY_MARK))


def is_deleted_folder(folder: str) -> bool:
    return folder.endswith(_DELETE_MARK)


def is_stray_folder(folder: str) -> bool:
    return folder.endswith(_STRAY_MARK)


def was_put_aside(folder: str) -> bool:
    """Whether a node renamed the folder when it moved the folder aside. The result is False if an operator
    renamed it."""
    return _PUT_ASIDE.fullmatch(folder) is not None


def was_set_aside(folder: str, topic_partition: TopicPartition) -> bool:
    """Whether a folder belonged to this partition and was deleted or moved aside."""
    if not (is_deleted_folder(folder) or is_stray_folder(folder)):
        return False
    stem, _, _ = folder.rpartition(".")
    topic, _, index = stem.rpartition("-")
    return bool(topic) and topic_partition.topic.startswith(topic) and index == str(topic_partition.partition)
