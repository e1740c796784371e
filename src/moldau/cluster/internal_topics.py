"""The topics in which nodes keep their own state, with the rules of their logs: the one home of both.

All else about them is derived from here: who may lead them, when their records count, how they are created.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
DISKLESS_METADATA_TOPIC: Final = "__diskless_metadata"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"


class StateRetention(Enum):
    """How the log of such a topic stays short."""

    COMPACTED = "compacted"
    """The latest record of each key is kept."""
    SNAPSHOTS = "snapshots"
    """Records that a snapshot covers are dropped."""
    TIME = "time"
    """Records older than ``retention.ms`` are dropped; their size does not matter."""


_RETENTION_CONFIGS: Final = {
    StateRetention.COMPACTED: {"cleanup.policy": "compact"},
    StateRetention.SNAPSHOTS: {"retention.ms": "-1"},
    # log.retention.bytes is about data: records that go by their size would be missed.
    StateRetention.TIME: {"cleanup.policy": "delete", "retention.bytes": "-1"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTopic:
    """A topic whose partitions are led by coordinators, which keep their state in it."""

    name: str
    retention: StateRetention
    is_decisive: bool = False
    """Its records free bytes or decide outcomes, so that none may be lost.

    They count once they are synced, on two replicas where there are two, and a replica that is not in sync
    never leads them.
    """
    is_marked: bool = False
    """Clients see in the metadata that the topic is internal."""

    def configs(self, replication_factor: int) -> dict[str, str]:
        """The configs with which the topic is created; a factor of 1 leaves one replica to commit alone."""
        configs = dict(_RETENTION_CONFIGS[self.retention])
        if self.is_decisive:
            configs["min.insync.replicas"] = str(min(2, replication_factor))
            configs["unclean.leader.election.enable"] = "false"
        return configs


CONSUMER_OFFSETS: Final = StateTopic(
    name=CONSUMER_OFFSETS_TOPIC, retention=StateRetention.COMPACTED, is_marked=True
)
TRANSACTION_STATE: Final = StateTopic(
    name=TRANSACTION_STATE_TOPIC, retention=StateRetention.COMPACTED, is_decisive=True, is_marked=True
)
DISKLESS_METADATA: Final = StateTopic(
    name=DISKLESS_METADATA_TOPIC, retention=StateRetention.SNAPSHOTS, is_decisive=True, is_marked=True
)
REMOTE_LOG_METADATA: Final = StateTopic(
    name=REMOTE_LOG_METADATA_TOPIC, retention=StateRetention.TIME, is_decisive=True
)

STATE_TOPICS: Final = {
    topic.name: topic
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, DISKLESS_METADATA, REMOTE_LOG_METADATA)
}
"""By name. The loss of their records would hide or delete those of others."""

INTERNAL_TOPICS: Final = frozenset({CLUSTER_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, *STATE_TOPICS})
"""Names of topics that are the cluster's own: also the quorum's log, and a name that is reserved."""

MARKED_INTERNAL_TOPICS: Final = frozenset(topic.name for topic in STATE_TOPICS.values() if topic.is_marked)
"""Names of the topics that clients are told to be internal."""

DECISIVE_TOPICS: Final = frozenset(topic.name for topic in STATE_TOPICS.values() if topic.is_decisive)
"""Names of the topics of which no record may be lost."""
