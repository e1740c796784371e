"""The topics in which nodes store their own state, and the rules of these topics' logs. The topics and their
rules are defined only here.

Other properties are derived from the rules: the possible leaders of such a topic, the durability of its
records, and its creation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.records import groups as group_records
from moldau.protocol.records import transactions as transaction_records
from moldau.protocol.records.schema import KeyedRecords

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
DISKLESS_METADATA_TOPIC: Final = "__diskless_metadata"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"


class StateRetention(Enum):
    """The rule by which the old records of an internal topic are removed."""

    COMPACTED = "compacted"
    """Compaction keeps the latest record of each key."""
    SNAPSHOTS = "snapshots"
    """Records are dropped when a snapshot of the state contains their effects."""
    TIME = "time"
    """Records older than ``retention.ms`` are deleted. The size of the log has no effect."""


_RETENTION_CONFIGS: Final = {
    StateRetention.COMPACTED: {"cleanup.policy": "compact"},
    StateRetention.SNAPSHOTS: {"retention.ms": "-1"},
    # Without retention.bytes=-1, the broker's log.retention.bytes would apply to these topics and would
    # delete records of a large log. That limit is meant for user data.
    StateRetention.TIME: {"cleanup.policy": "delete", "retention.bytes": "-1"},
}


def decisive_minimum(replicas: int) -> int:
    """``min.insync.replicas`` of a topic that must not lose any record. The value depends on the number of
    replicas."""
    return min(2, replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTopic:
    """An internal topic, which stores the state of coordinators or the metadata of remote segments."""

    name: str
    retention: StateRetention
    factor_key: str
    """The key of the broker config that contains the topic's replication factor at its creation."""
    records: KeyedRecords | None = None
    """The schema of the topic's keys and values; ``None`` if some keys or values have another form than
    Kafka's messages. Tools use the schema to show the topic's records."""
    is_decisive: bool = False
    """Whether the topic must not lose any record. This is the case if its records are a reason to delete
    other data, or if they decide the outcomes of commits or transactions.

    Such a record is acknowledged after it is synced. If the topic has two or more replicas, the record must
    be synced on at least two of them. A replica that is not in sync is never elected.
    """
    saved_in_step: int
    """The step in which a cut saves the topic's logs (``moldau.backup.cut_format``). If the records of a
    topic refer to records of another topic, the other topic is saved later."""
    is_marked: bool = False
    """Whether the topic is marked as internal in the metadata that clients read."""

    def configs(self, replication_factor: int) -> dict[str, str]:
        """The configs with which the topic is created."""
        configs = dict(_RETENTION_CONFIGS[self.retention])
        if self.is_decisive:
            configs["min.insync.replicas"] = str(decisive_minimum(replication_factor))
            configs["unclean.leader.election.enable"] = "false"
        return configs


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The properties of an internal topic at its creation."""

    name: str
    partition_count: int
    replication_factor: int
    factor_key: str
    """The config key of the replication factor. Error messages contain it."""
    configs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        topic: StateTopic,
        partition_count: int,
        replication_factor: int,
        more_configs: Mapping[str, str] = MappingProxyType({}),
    ) -> "InternalTopic":
        """Describe an internal topic with the configs that its rules require, and with additional configs."""
        configs = {**topic.configs(replication_factor), **more_configs}
        return cls(topic.name, partition_count, replication_factor, topic.factor_key, configs)


STATE_TOPICS: Final = {
    topic.name: topic
    for topic in (
        StateTopic(
            name=CONSUMER_OFFSETS_TOPIC,
            retention=StateRetention.COMPACTED,
            factor_key="offsets.topic.replication.factor",
            saved_in_step=0,
            records=group_records.RECORDS,
            is_marked=True,
        ),
        StateTopic(
            name=TRANSACTION_STATE_TOPIC,
            retention=StateRetention.COMPACTED,
            factor_key="transaction.state.log.replication.factor",
            saved_in_step=1,
            records=transaction_records.RECORDS,
            is_decisive=True,
            is_marked=True,
        ),
        StateTopic(
            name=DISKLESS_METADATA_TOPIC,
            retention=StateRetention.SNAPSHOTS,
            factor_key="diskless.metadata.topic.replication.factor",
            saved_in_step=2,
            is_decisive=True,
            is_marked=True,
        ),
        StateTopic(
            name=REMOTE_LOG_METADATA_TOPIC,
            retention=StateRetention.TIME,
            factor_key="remote.log.metadata.topic.replication.factor",
            saved_in_step=3,
            is_decisive=True,
        ),
    )
}
"""All state topics, by name. If records of these topics were lost, records of other topics could become
unreadable or be deleted."""

CONSUMER_OFFSETS: Final = STATE_TOPICS[CONSUMER_OFFSETS_TOPIC]
TRANSACTION_STATE: Final = STATE_TOPICS[TRANSACTION_STATE_TOPIC]
DISKLESS_METADATA: Final = STATE_TOPICS[DISKLESS_METADATA_TOPIC]
REMOTE_LOG_METADATA: Final = STATE_TOPICS[REMOTE_LOG_METADATA_TOPIC]

INTERNAL_TOPICS: Final = frozenset({CLUSTER_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, *STATE_TOPICS})
"""Names of the cluster's own topics, including the metadata log and a reserved name."""

MARKED_INTERNAL_TOPICS: Final = frozenset(topic.name for topic in STATE_TOPICS.values() if topic.is_marked)
"""Names of the topics that are marked as internal for clients."""

DECISIVE_TOPICS: Final = frozenset(topic.name for topic in STATE_TOPICS.values() if topic.is_decisive)
"""Names of the topics that must not lose any record."""

SNAPSHOT_TOPICS: Final = frozenset(
    topic.name for topic in STATE_TOPICS.values() if topic.retention is StateRetention.SNAPSHOTS
)
"""Names of the topics whose logs begin with a snapshot of the coordinator's state."""


def replication_factors(factor: int) -> dict[str, str]:
    """Return broker properties that set a replication factor. They set it to ``factor`` for each topic in
    which nodes keep their own state."""
    return {topic.factor_key: str(factor) for topic in STATE_TOPICS.values()}
