"""The fetchers of a broker. This module assigns partitions to fetchers, and starts and stops the fetchers.

The *home* of a partition is the pair of a leader and a number of a connection to this leader. The connection
with the number :data:`COPIES` is for partitions in which this broker is far behind.
"""

import asyncio
import contextlib
from dataclasses import replace
from typing import Final

from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.fetching.catching_up import CatchUpPace
from moldau.replication.fetching.fetcher_context import FetcherContext
from moldau.replication.fetching.replica_fetcher import ReplicaFetcher

COPIES: Final = -1


class ReplicaFetcherManager:
    """The fetchers of a broker. The broker has one or more fetchers for each leader that it follows."""

    def __init__(self, context: FetcherContext) -> None:
        self._context = context
        self._pace = CatchUpPace(context.settings.copy_bytes_per_second)
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._homes: dict[PartitionKey, tuple[int, int]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def follow(self, partition: ClassicPartition, leader_id: int) -> None:
        """Follow this leader, and no other leader, for a partition. After :meth:`stop` the call is
        ignored."""
        if self._is_stopped:
            return
        self._place(partition, self._home(partition.key, leader_id))

    def _place(
        self, partition: ClassicPartition, home: tuple[int, int], *, is_caught_up: bool = False
    ) -> None:
        """Follow a partition on this connection, and on no other connection."""
        key = partition.key
        if self._homes.get(key) != home:
            self.leave(key)
        fetcher = self._fetchers.get(home)
        if fetcher is None:
            leader_id, number = home
            if number == COPIES:
                fetcher = ReplicaFetcher(self._context, leader_id, self._end_copy, self._pace)
            else:
                fetcher = ReplicaFetcher(self._context, leader_id, self._begin_copy)
            self._fetchers[home] = fetcher
        self._homes[key] = home
        fetcher.add(partition, is_caught_up=is_caught_up)

    def _begin_copy(self, key: PartitionKey) -> None:
        """Move a partition to the connection for copies."""
        home = self._homes[key]
        leader_id, _ = home
        self._place(self._fetchers[home].partition(key), (leader_id, COPIES))

    def _end_copy(self, key: PartitionKey) -> None:
        """Move a partition back from the connection for copies."""
        home = self._homes[key]
        leader_id, _ = home
        self._place(self._fetchers[home].partition(key), self._home(key, leader_id), is_caught_up=True)

    def _home(self, key: PartitionKey, leader_id: int) -> tuple[int, int]:
        return leader_id, (key.topic_id.int + key.partition) % self._context.settings.fetcher_count

    def resize(self, fetcher_count: int) -> None:
        """Use another number of connections to each leader. Some partitions then belong to another connection
        than before, and are moved to that connection."""
        settings = replace(self._context.settings, fetcher_count=fetcher_count)
        self._context = replace(self._context, settings=settings)
        for key, home in list(self._homes.items()):
            leader_id, number = home
            if number != COPIES and self._home(key, leader_id) != home:
                self.follow(self._fetchers[home].partition(key), leader_id)

    def leave(self, key: PartitionKey) -> None:
        """Stop following a partition."""
        home = self._homes.pop(key, None)
        if home is None:
            return
        fetcher = self._fetchers[home]
        fetcher.remove(key)
        if not len(fetcher):
            del self._fetchers[home]
            ending = asyncio.get_running_loop().create_task(fetcher.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def brokers_changed(self) -> None:
        """Use the present addresses and this broker's present registration, because they may have changed."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    def problems(self) -> list[str]:
        """Return a sentence for each leader that does not respond."""
        return sorted({fetcher.problem for fetcher in self._fetchers.values() if fetcher.problem})

    async def stop(self) -> None:
        """Stop all fetchers. No new fetcher is started after this."""
        self._is_stopped = True
        for key in list(self._homes):
            self.leave(key)
        with contextlib.suppress(ValueError):
            await asyncio.wait(self._ending)
