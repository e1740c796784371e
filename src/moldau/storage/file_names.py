"""How Kafka names the folders and files of a partition."""

import uuid

from moldau.storage.topic_partition import TopicPartition

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_SUFFIX = ".checkpoint"
PART_SUFFIX = ".part"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LOCK = ".lock"
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

_DELETE_MARK = "-delete"
_MAX_FOLDER_NAME_LENGTH = 255


def segment_file(base_offset: int, suffix: str) -> str:
    """``00000000000000000042.log`` and its like."""
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; None when it is not such a file."""
    stem = name[: -len(suffix)]
    if not name.endswith(suffix) or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def folder_of(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def partition_of(folder: str) -> TopicPartition | None:
    """The partition that a folder holds; None when its name is not a partition's."""
    topic, dash, number = folder.rpartition("-")
    if not topic or not dash or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))


def deleted_folder(topic_partition: TopicPartition, unique: uuid.UUID) -> str:
    """A name for a partition's folder on its way out: ``topic-0.<32 hex digits>-delete``."""
    tail = f"-{topic_partition.partition}.{unique.hex}{_DELETE_MARK}"
    return topic_partition.topic[: _MAX_FOLDER_NAME_LENGTH - len(tail)] + tail


def is_deleted_folder(folder: str) -> bool:
    return folder.endswith(_DELETE_MARK)
