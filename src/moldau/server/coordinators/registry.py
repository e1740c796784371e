"""All kinds of coordinators of a broker. Coordinators are loaded and unloaded only through this registry."""

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from moldau.cluster.internal_topics import InternalTopic
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.terms import LeadershipTerms, TermKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.server.coordinators.entry import CoordinatorEntry, KeyLookup


class CoordinatorRegistry:
    """The entries of all kinds, by topic and by key type. The registry follows the leadership of the topics'
    partitions."""

    def __init__(self, entries: Iterable[CoordinatorEntry] = ()) -> None:
        self._entries: dict[str, CoordinatorEntry] = {}
        self._terms = LeadershipTerms()
        for entry in entries:
            self.add(entry)

    def add(self, entry: CoordinatorEntry) -> None:
        """Add a kind. Call this before the first partition of the kind's topic is led."""
        if entry.topic.name in self._entries:
            raise ValueError(f"{entry.topic.name} has two kinds of coordinators")
        if entry.lookup is not None and entry.lookup.key_type in self.lookups():
            raise ValueError(f"key type {entry.lookup.key_type} has two kinds of coordinators")
        self._entries[entry.topic.name] = entry

    def runtimes(self) -> list[CoordinatorRuntime[Any, Any]]:
        """Return the runtimes of the kinds whose coordinators have shards, in the order in which the kinds
        were added."""
        return [entry.runtime for entry in self._entries.values() if entry.runtime is not None]

    def lookups(self) -> dict[int, tuple[InternalTopic, KeyLookup]]:
        """The kinds, by the key type of FindCoordinator."""
        return {
            entry.lookup.key_type: (entry.topic, entry.lookup)
            for entry in self._entries.values()
            if entry.lookup is not None
        }

    async def until_loaded(self, timeout_s: float) -> bool:
        """Wait for the loads in progress. Returns False at the time-out."""
        loads = [
            asyncio.ensure_future(entry.until_loaded())
            for entry in self._entries.values()
            if entry.until_loaded is not None
        ]
        if not loads:
            return True
        _, late = await asyncio.wait(loads, timeout=timeout_s)
        for load in late:
            load.cancel()
        return not late

    def leads(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead a partition from ``epoch`` on. Repeated and late calls are ignored."""
        entry = self._entries.get(partition.topic)
        if entry is None:
            return
        topic_id, index = partition.key
        change = self._terms.begin(TermKey(partition.topic, index), topic_id, epoch)
        if change.ends is not None:
            entry.end(index, change.ends)
        if change.begins is not None:
            entry.begin(partition, change.begins)

    def no_longer_leads(self, topic: str, topic_id: UUID, index: int, epoch: int) -> None:
        """Stop leading a partition from ``epoch`` on. Late calls are ignored."""
        entry = self._entries.get(topic)
        if entry is None:
            return
        change = self._terms.end(TermKey(topic, index), topic_id, epoch)
        if change.ends is not None:
            entry.end(index, change.ends)
