"""Rewrites the metadata of a saved cluster for the nodes of the restored cluster. Pure.

The replicas of all partitions are placed on the new brokers (:mod:`.placement`). The replicas are in sync,
because they all have the same saved records, or no records. Old brokers and controllers are removed from the
metadata. After the restore, other nodes may be added. Nodes and clients compare epochs and producer ids to
see which state is newer. The restore increases these numbers by a margin, because the old cluster may have
used higher numbers after the cut. The margin is added once for each restore since the cut.

:data:`RULES` has a rule for each type of record in a saved image. A record of an unlisted type ends the
restore, because it may name brokers, log directories or epochs of the old cluster.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.backup.restore.placement import NewBroker, ReplicaPlacement
from moldau.cluster.image.image import ResourceType
from moldau.cluster.internal_topics import DECISIVE_TOPICS, decisive_minimum
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import LogPosition

__all__ = [
    "EPOCH_MARGIN",
    "NEVER_SAVED",
    "OFFSET_MARGIN",
    "PRODUCER_ID_MARGIN",
    "RULES",
    "NewGeneration",
    "new_metadata",
    "new_position",
]

EPOCH_MARGIN: Final = 1_000
"""The margin for epochs of the quorum and of leaders. These epochs increase by one with each election."""
OFFSET_MARGIN: Final = 1_000_000
"""The margin for offsets of the metadata log, and therefore of broker epochs. The epoch of a broker is the
offset of its registration in this log."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""The margin for producer ids. If the same producer id were allocated twice, a broker would drop valid
records as duplicates."""


class NewGeneration(NamedTuple):
    """The generation that a restore begins, and the offset at which it begins in each diskless partition."""

    number: int
    starts: Mapping[PartitionKey, int]
    """For each partition, the offset at which the new generation begins. Usually it is the offset after the
    last record of the cut. It is an earlier offset if the restore aborts a transaction that was committed
    while the state was saved. The partitions include the logs of the diskless coordinators. A restore gives
    these logs a new generation, too, so the number of generations of the first log is the number of restores
    of the cluster.
    """
    restores: int = 1
    """The number of restores since the cut, including this one. Each of these restores may have used higher
    epochs and producer ids than the cut contains."""

    def starts_of(self, record: r.PartitionRecord) -> Sequence[int]:
        """The start offsets of all generations of a partition; empty for a partition that has no
        generations."""
        start = self.starts.get(PartitionKey(record.topic_id, record.partition_id))
        if start is None:
            return ()
        known = tuple(record.generation_starts)
        # If an earlier restore was not finished, the saved metadata do not contain the generation that it
        # began. That generation is empty: it begins and ends at the start of the new generation.
        return (*known, *(start for _ in range(self.number - len(known))))


def new_position(offset: int, epoch: int, restores: int) -> LogPosition:
    """The position at which the snapshot of the new metadata ends. ``offset`` and ``epoch`` are the end of
    the cut in the old metadata.

    ``restores`` is the number of restores since the cut, including this one.
    """
    return LogPosition(offset + restores * OFFSET_MARGIN, epoch + restores * EPOCH_MARGIN)


def new_metadata(
    records: Iterable[Message],
    brokers: Sequence[NewBroker],
    generation: NewGeneration,
    producer_id_seen: int,
    tiered: Container[PartitionKey] = (),
) -> Iterator[Message]:
    """The records of the old image in their order, rewritten for the new brokers.

    ``producer_id_seen`` is the highest producer id in the objects that are newer than the cut. It is -1 if
    there is none. ``tiered`` are the classic partitions whose logs begin after their remote records. Raises
    ``KafkaError`` for a record that has no rule.
    """
    state = NewState(brokers, generation, producer_id_seen, tiered)
    for record in records:
        rule = RULES.get(type(record))
        if rule is None:
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"the saved metadata have a {type(record).__name__}, and no rule says how to restore it",
            )
        written = rule(state, record)
        if written is not None:
            yield written
    # The saved image has no producer ids if the first of them was allocated after the save.
    next_producer_id = state.next_producer_id + generation.restores * PRODUCER_ID_MARGIN
    yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)


class NewState:
    """The properties of the new cluster, and data from the old records that the rules have already
    processed."""

    def __init__(
        self,
        brokers: Sequence[NewBroker],
        generation: NewGeneration,
        producer_id_seen: int,
        tiered: Container[PartitionKey],
    ) -> None:
        self.placement = ReplicaPlacement(brokers)
        self.tiered = tiered
        self.generation = generation
        self.names: dict[UUID, str] = {}
        self.replica_counts: dict[str, int] = {}
        """The smallest number of replicas of a topic's partitions, by topic."""
        self.next_producer_id = producer_id_seen + 1


Rule = Callable[[NewState, Any], Message | None]
"""Returns the record for the new cluster; None if the new cluster must not have it."""


def _kept(_: NewState, record: Message) -> Message:
    """Return the record unchanged. This rule is for records without ids of nodes, without log directories and
    without epochs."""
    return record


def _old_broker(state: NewState, record: r.RegisterBrokerRecord) -> None:
    state.placement.note_old_broker(record.broker_id, record.rack)


def _old_controller(_: NewState, record: r.RegisterControllerRecord) -> None:
    """Drop the record, because the new controllers register themselves."""


def _topic(state: NewState, record: r.TopicRecord) -> Message:
    state.names[record.topic_id] = record.name
    return record


def _partition(state: NewState, record: r.PartitionRecord) -> Message:
    """The partition with its new replicas. The partition has no leader yet. The controller elects the first
    of the replicas whose broker registers.
    """
    replicas = state.placement.replicas(_target(record))
    name, counts = state.names[record.topic_id], state.replica_counts
    counts[name] = min(len(replicas), counts.get(name, len(replicas)))
    node_ids = [each.node_id for each in replicas]
    generation = state.generation
    if PartitionKey(record.topic_id, record.partition_id) in state.tiered:
        # The partition has no chunks any more. If its log began at the first offset of the active chunk, the
        # lost records of the inactive chunks would leave a gap between the remote tier and the log. Readers
        # would stop at this gap.
        record = replace(record, start_offset=-1, start_timestamp=-1)
    return replace(
        record,
        replicas=node_ids,
        isr=node_ids,
        removing_replicas=[],
        adding_replicas=[],
        leader=-1,
        leader_recovery_state=0,
        leader_epoch=record.leader_epoch + generation.restores * EPOCH_MARGIN,
        partition_epoch=record.partition_epoch + generation.restores * EPOCH_MARGIN,
        directories=[each.directory_id for each in replicas],
        eligible_leader_replicas=None,
        last_known_elr=None,
        generation_starts=generation.starts_of(record),
    )


def _target(record: r.PartitionRecord) -> Sequence[int]:
    """The replicas after a reassignment in progress. The restore completes the reassignment."""
    kept = [each for each in record.replicas if each not in record.removing_replicas]
    return kept or record.replicas


def _chunk(_: NewState, record: r.ChunkRecord) -> None:
    """Drop the record, because the chunk's files were on the lost disks of its brokers. A partition without
    remote records keeps the first offset of its active chunk, so new records do not get offsets of the lost
    chunks."""


def _config(state: NewState, record: r.ConfigRecord) -> Message | None:
    if _is_of_old_node(record, state.placement):
        return None
    if _is_decisive_minimum(record):
        # When the topic gets more replicas later, the controller increases min.insync.replicas again.
        minimum = decisive_minimum(state.replica_counts.get(record.resource_name, 1))
        return replace(record, value=str(minimum))
    return record


def _is_decisive_minimum(record: r.ConfigRecord) -> bool:
    is_of_topic = record.resource_type == ResourceType.TOPIC and record.resource_name in DECISIVE_TOPICS
    return is_of_topic and record.name == "min.insync.replicas"


def _is_of_old_node(record: r.ConfigRecord, placement: ReplicaPlacement) -> bool:
    is_of_node = record.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return is_of_node and record.resource_name not in ("", *map(str, placement.brokers))


def _producer_ids(state: NewState, record: r.ProducerIdsRecord) -> None:
    """Drop the record, because the last of the new records contains the next producer id."""
    state.next_producer_id = max(state.next_producer_id, record.next_producer_id)


RULES: Final[Mapping[type[Message], Rule]] = MappingProxyType(
    {
        r.FeatureLevelRecord: _kept,
        r.RegisterBrokerRecord: _old_broker,
        r.RegisterControllerRecord: _old_controller,
        r.TopicRecord: _topic,
        r.PartitionRecord: _partition,
        r.ChunkRecord: _chunk,
        r.ConfigRecord: _config,
        r.ClientQuotaRecord: _kept,
        r.ProducerIdsRecord: _producer_ids,
        r.AccessControlEntryRecord: _kept,
        r.UserScramCredentialRecord: _kept,
        r.DelegationTokenRecord: _kept,
    }
)
"""The rule of each type of record that an image consists of."""

NEVER_SAVED: Final[frozenset[type[Message]]] = frozenset(
    {
        r.UnregisterBrokerRecord,
        r.BrokerRegistrationChangeRecord,
        r.FenceBrokerRecord,
        r.UnfenceBrokerRecord,
        r.UnregisterControllerRecord,
        r.RemoveTopicRecord,
        r.PartitionChangeRecord,
        r.ChunkChangeRecord,
        r.ClearElrRecord,
        r.RemoveAccessControlEntryRecord,
        r.RemoveUserScramCredentialRecord,
        r.RemoveDelegationTokenRecord,
    }
)
"""Records that change or remove something. No image consists of such records, so they have no rule."""
