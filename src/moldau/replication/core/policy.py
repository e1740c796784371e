"""The conditions under which a record of a partition is committed, and the rules for calls of clients that
change the partition's log. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.cluster.internal_topics import STATE_TOPICS, StateRetention


class Durability(Enum):
    """The state in which a replica's copy of a record counts for the high watermark."""

    WRITTEN = "written to the log, which the operating system syncs later"
    FSYNCED = "synced to the disk; concurrent appends share one sync"


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """The rules for the log of one partition. They are the same on all its replicas."""

    durability: Durability = Durability.WRITTEN
    needs_min_in_sync_always: bool = False
    """Whether ``min.insync.replicas`` also applies if the partition has fewer replicas. If not, the number of
    replicas limits it."""
    clients_append: bool = True
    """Whether clients are allowed to append. If not, only a coordinator on the leader's broker is allowed to
    append."""
    clients_shorten: bool = True
    """Whether DeleteRecords may move the log's start. If not, only snapshots may move it."""


WRITTEN: Final = ReplicaPolicy()
"""Apache Kafka's rules for the partitions of users' topics."""
FSYNCED: Final = ReplicaPolicy(Durability.FSYNCED, needs_min_in_sync_always=True)
"""The policy for records that permit the deletion of data, or that decide the outcome of transactions. A
committed record survives a loss of power."""
SNAPSHOTTED: Final = ReplicaPolicy(
    Durability.FSYNCED, needs_min_in_sync_always=True, clients_append=False, clients_shorten=False
)
"""The policy of a log that one coordinator writes and shortens by snapshots. Records are synced before they
are acknowledged."""


def policy_of(topic: str) -> ReplicaPolicy:
    """The policy of a topic, by the topic's name. All topics have the policy of users' topics, except some
    internal topics."""
    state = STATE_TOPICS.get(topic)
    if state is None:
        return WRITTEN
    if state.retention is StateRetention.SNAPSHOTS:
        return SNAPSHOTTED
    return FSYNCED if state.is_decisive else WRITTEN
