"""Committed offsets of all groups of a shard, and pending offsets of open transactions. Pure.

The store changes only by replay.
"""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.coordinators.groups.records import CommittedOffset
from moldau.protocol.partitions import TopicPartition


class StoredOffset(NamedTuple):
    """A committed offset, and the log offset of the record that committed it."""

    value: CommittedOffset
    record_offset: int


class OffsetStore:
    """Offsets by group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, StoredOffset]] = {}
        self._open: dict[int, dict[str, dict[TopicPartition, StoredOffset]]] = {}
        self._open_by_group: dict[str, set[int]] = {}

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        stored = self._groups.get(group_id, {}).get(TopicPartition(topic, partition))
        return None if stored is None else stored.value

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions with a committed offset, in the order of their first commits."""
        return list(self._groups.get(group_id, ()))

    def of_group(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return a copy of the group's offsets, in the order of their first commits."""
        return {partition: stored.value for partition, stored in self._groups.get(group_id, {}).items()}

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """Return all partitions with an offset, including offsets of open transactions."""
        found = dict.fromkeys(self._groups.get(group_id, ()))
        for producer_id in sorted(self._open_by_group.get(group_id, ())):
            found.update(dict.fromkeys(self._open[producer_id].get(group_id, ())))
        return list(found)

    @property
    def count(self) -> int:
        """Number of committed offsets. Pending offsets of open transactions are not counted."""
        return sum(map(len, self._groups.values()))

    def count_of(self, group_id: str) -> int:
        """Number of a group's committed offsets."""
        return len(self._groups.get(group_id, ()))

    def has_partition(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a partition has an offset. A pending offset of an open transaction also counts as an
        offset."""
        return partition in self._groups.get(group_id, ()) or any(
            partition in self._open[producer_id].get(group_id, ())
            for producer_id in self._open_by_group.get(group_id, ())
        )

    def has(self, group_id: str) -> bool:
        return group_id in self._groups or group_id in self._open_by_group

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open_by_group

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction contains an offset of the partition (KIP-447)."""
        return any(
            (topic, partition) in self._open[producer_id].get(group_id, ())
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
        stored = StoredOffset(value, record_offset)
        if transactional:
            self._open.setdefault(producer_id, {}).setdefault(group_id, {})[partition] = stored
            self._open_by_group.setdefault(group_id, set()).add(producer_id)
        else:
            self._groups.setdefault(group_id, {})[partition] = stored

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Apply a tombstone. The tombstone also removes the pending offsets of open transactions for the
        partition."""
        offsets = self._groups.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._groups[group_id]
        for producer_id in self._open_by_group.get(group_id, ()):
            self._open[producer_id].get(group_id, {}).pop(partition, None)

    def end_transaction(self, producer_id: int, committed: bool) -> list[str]:
        """Apply or drop the offsets of a transaction. Returns the affected groups."""
        ended = self._open.pop(producer_id, {})
        for group_id, offsets in ended.items():
            producers = self._open_by_group[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._open_by_group[group_id]
            if committed:
                self._merge(group_id, offsets)
        return list(ended)

    def _merge(self, group_id: str, offsets: dict[TopicPartition, StoredOffset]) -> None:
        # If two records commit an offset for the same partition, the record with the higher log offset is
        # used, even if its transaction ended earlier. Compaction keeps only this record, and a replay of the
        # compacted log must give the same state.
        for partition, stored in offsets.items():
            present = self._groups.get(group_id, {}).get(partition)
            if present is None or stored.record_offset > present.record_offset:
                self._groups.setdefault(group_id, {})[partition] = stored
