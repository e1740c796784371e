"""Committed offsets of all groups of a shard, and pending offsets of open transactions. Pure.

The store changes only by replay.
"""

import sys
from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from moldau.coordinators.groups.offsets.packing import is_later, pack, times_ms, unpack
from moldau.coordinators.groups.records import CommittedOffset
from moldau.protocol.partitions import TopicPartition

PackedByPartition: TypeAlias = dict[int, bytes]
"""The packed offsets of a topic by partition."""
PackedByTopic: TypeAlias = dict[str, PackedByPartition]
"""The offsets of a group by topic."""


class OffsetStore:
    """Offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, PackedByTopic] = {}
        self._open: dict[int, dict[str, PackedByTopic]] = {}
        self._open_by_group: dict[str, set[int]] = {}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        packed = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if packed is None else unpack(packed)

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions with a committed offset. Topics, and the partitions of each topic, have the
        order of their first commits."""
        return list(_partitions(self._groups.get(group_id, {})))

    def of_group(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return a copy of the group's offsets, in the order of :meth:`committed_partitions`."""
        return {
            TopicPartition(topic, partition): unpack(packed)
            for topic, offsets in self._groups.get(group_id, {}).items()
            for partition, packed in offsets.items()
        }

    def times_of_group(self, group_id: str) -> Iterator[tuple[str, int, int, int]]:
        """For each of the group's offsets, yield its topic and partition, its commit timestamp, and its
        expire timestamp or -1. The store must not change meanwhile."""
        for topic, offsets in self._groups.get(group_id, {}).items():
            for partition, packed in offsets.items():
                yield topic, partition, *times_ms(packed)

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """Return all partitions with an offset, including offsets of open transactions."""
        found = dict.fromkeys(_partitions(self._groups.get(group_id, {})))
        for producer_id in sorted(self._open_by_group.get(group_id, ())):
            found.update(dict.fromkeys(_partitions(self._open[producer_id].get(group_id, {}))))
        return list(found)

    @property
    def count(self) -> int:
        """Number of committed offsets. Pending offsets of open transactions are not counted."""
        return sum(map(len, chain.from_iterable(map(dict.values, self._groups.values()))))

    def count_of(self, group_id: str) -> int:
        """Number of a group's committed offsets."""
        return sum(map(len, self._groups.get(group_id, {}).values()))

    def has_partition(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a partition has an offset. A pending offset of an open transaction also counts as an
        offset."""
        topic, number = partition
        return number in self._groups.get(group_id, {}).get(topic, ()) or self.is_unstable(
            group_id, topic, number
        )

    def has(self, group_id: str) -> bool:
        return group_id in self._groups or group_id in self._open_by_group

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open_by_group

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction contains an offset of the partition (KIP-447)."""
        return any(
            partition in self._open[producer_id].get(group_id, {}).get(topic, ())
            for producer_id in self._open_by_group.get(group_id, ())
        )

    def group_ids(self) -> Iterator[str]:
        """Groups that have committed offsets or open transactions."""
        yield from dict.fromkeys((*self._groups, *self._open_by_group))

    # replay

    def put(
        self,
        group_id: str,
        partition: TopicPartition,
        value: CommittedOffset,
        record_offset: int,
        producer_id: int,
        transactional: bool,
    ) -> None:
        """Apply a commit. A commit of a transaction stays pending until the transaction ends."""
        topic, number = partition
        offsets = self.offsets_for(group_id, topic, producer_id, transactional)
        offsets[number] = pack(value, record_offset)

    def offsets_for(
        self, group_id: str, topic: str, producer_id: int, transactional: bool
    ) -> PackedByPartition:
        """Return the offsets to which the commits of a topic must be added. If there are none, they are
        made, and the caller must add an offset at once."""
        if transactional:
            groups = self._open.setdefault(producer_id, {})
            self._open_by_group.setdefault(group_id, set()).add(producer_id)
        else:
            groups = self._groups
        topics = groups.get(group_id)
        if topics is None:
            topics = groups[group_id] = {}
        offsets = topics.get(topic)
        if offsets is None:
            # Thousands of groups have commits of the same topic, and share its name.
            offsets = topics[sys.intern(topic)] = {}
        return offsets

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Apply a tombstone. The tombstone also removes the pending offsets of open transactions for the
        partition."""
        topic, number = partition
        topics = self._groups.get(group_id)
        if topics is not None and topic in topics:
            topics[topic].pop(number, None)
            if not topics[topic]:
                del topics[topic]
                if not topics:
                    del self._groups[group_id]
        for producer_id in self._open_by_group.get(group_id, ()):
            self._open[producer_id].get(group_id, {}).get(topic, {}).pop(number, None)

    def end_transaction(self, producer_id: int, committed: bool) -> list[str]:
        """Apply or drop the offsets of a transaction. Returns the affected groups."""
        ended = self._open.pop(producer_id, {})
        for group_id, topics in ended.items():
            producers = self._open_by_group[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._open_by_group[group_id]
            if committed:
                self._merge(group_id, topics)
        return list(ended)

    def _merge(self, group_id: str, topics: PackedByTopic) -> None:
        # If two records commit an offset for the same partition, the record with the higher log offset is
        # used, even if its transaction ended earlier. Compaction keeps only this record, and a replay of the
        # compacted log must give the same state.
        for topic, pending in topics.items():
            if not pending:
                continue  # a tombstone has removed them
            offsets = self._groups.setdefault(group_id, {}).setdefault(topic, {})
            for partition, packed in pending.items():
                present = offsets.get(partition)
                if present is None or is_later(packed, present):
                    offsets[partition] = packed


def _partitions(topics: PackedByTopic) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, partition) for topic, offsets in topics.items() for partition in offsets)
