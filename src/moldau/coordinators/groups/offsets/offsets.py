"""The committed offsets of one partition of ``__consumer_offsets``. This is one of the state machines of the
shard. Pure.

The offsets change only by replay.
"""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from moldau.coordinators.effects import BatchKind, Effects, Token
from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.offsets import expiry, operations
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.operation import Turn, Turns
from moldau.coordinators.groups.records import ConsumerOffsetsRecord, OffsetRecord
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchResponseTopics
from moldau.protocol.partitions import TopicPartition


class GroupOffsets:
    """The offsets of all groups. The groups may use any protocol."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.store = OffsetStore()

    def replay(self, offset: int, record: OffsetRecord, kind: BatchKind) -> None:
        """Apply one record of the log at ``offset``."""
        partition = TopicPartition(record.topic, record.partition)
        if record.value is None:
            self.store.remove(record.group_id, partition)
        else:
            self.store.put(
                record.group_id, partition, record.value, offset, kind.producer_id, kind.transactional
            )

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Apply the end of a transaction that committed offsets."""
        self.store.end_transaction(producer_id, committed)

    def commit(self, turn: Turn, token: Token, request: OffsetCommitRequest) -> None:
        """Handle OffsetCommit with topics by name. The caller has checked that the client may commit."""
        topics = operations.commit(turn, request)
        turn.out.reply(token, OffsetCommitResponse(topics=topics))

    def fetch(
        self,
        group_id: str,
        topics: Iterable[tuple[str, Sequence[int]]],
        topic_id_of: Callable[[str], UUID | None],
        *,
        require_stable: bool,
    ) -> list[OffsetFetchResponseTopics]:
        """Handle OffsetFetch of one group. If the group is unknown, it has no offsets."""
        return operations.fetch(self.store, group_id, topics, topic_id_of, require_stable=require_stable)

    def fetch_present(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        topic_id_of: Callable[[str], UUID | None],
        *,
        require_stable: bool,
    ) -> list[OffsetFetchResponseTopics]:
        """Handle OffsetFetch for the partitions in ``partitions`` that have an offset in the group."""
        topics = operations.present(self.store, group_id, partitions, topic_id_of)
        return self.fetch(group_id, topics, topic_id_of, require_stable=require_stable)

    def delete(self, turn: Turn, token: Token, group: Group, request: OffsetDeleteRequest) -> None:
        """Handle OffsetDelete. Raises :class:`KafkaError` when no offset may be deleted."""
        topics = operations.delete(turn, self.store, group, request.topics)
        turn.out.reply(token, OffsetDeleteResponse(topics=topics))

    def delete_some(self, turn: Turn, group_id: str, most: int) -> int:
        """Delete at most ``most`` offsets of a deleted group. Returns the number of offsets that the group
        still has."""
        partitions = self.store.partitions(group_id)
        turn.out.records.extend(
            OffsetRecord(group_id, topic, partition, None) for topic, partition in partitions[:most]
        )
        return max(0, len(partitions) - most)

    def expire(self, turn: Turn, group: Group, most: int) -> bool:
        """Delete at most ``most`` offsets that are older than their retention. Returns whether the group has
        no offsets left."""
        return expiry.expire(turn, self.store, group, most)

    def forget_partitions(
        self, token: Token, offsets: Iterable[tuple[str, TopicPartition]], now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Delete offsets of deleted topics, given as groups and partitions. The result is the number of
        tombstones."""
        turn = self._turns.begin(now_ms)
        turn.out.records.extend(
            OffsetRecord(group_id, *partition, None)
            for group_id, partition in offsets
            if self.store.has_partition(group_id, partition)
        )
        turn.out.reply(token, len(turn.out.records))
        return turn.out.effects(atomic=False)
