"""The topics that coordinators stand on, with the policies of their logs: the same on every node."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from moldau.replication.policy import FSYNCED, SNAPSHOTTED, WRITTEN, ReplicaPolicy


class Retention(enum.Enum):
    """How the log stays short."""

    COMPACTED = "compacted"
    """The latest record of each key is kept."""
    SNAPSHOTS = "snapshots"
    """Records that a snapshot covers are dropped."""
    TIME = "time"
    """Records older than ``retention.ms`` are dropped."""


@dataclass(frozen=True, slots=True)
class CoordinatorTopic:
    """A topic whose partitions are led by coordinators."""

    name: str
    replicas: ReplicaPolicy = WRITTEN
    retention: Retention = Retention.COMPACTED


CONSUMER_OFFSETS: Final = CoordinatorTopic(CONSUMER_OFFSETS_TOPIC)
TRANSACTION_STATE: Final = CoordinatorTopic(TRANSACTION_STATE_TOPIC, FSYNCED)
DISKLESS_METADATA: Final = CoordinatorTopic(DISKLESS_METADATA_TOPIC, SNAPSHOTTED, Retention.SNAPSHOTS)
REMOTE_LOG_METADATA: Final = CoordinatorTopic(REMOTE_LOG_METADATA_TOPIC, FSYNCED, Retention.TIME)

COORDINATOR_TOPICS: Final[Mapping[str, CoordinatorTopic]] = MappingProxyType(
    {
        topic.name: topic
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, DISKLESS_METADATA, REMOTE_LOG_METADATA)
    }
)
"""By name. The loss of their records would hide or delete those of others."""
