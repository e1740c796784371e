"""A diskless partition on a broker that has no replica of it: a gateway to the coordinator and the objects.

Any broker may write any diskless partition (KIP-1163), because the coordinator determines the order. Clients
may be told that a broker leads partitions of which it has no replica. Therefore this class handles all
requests that a leader gets. Producers do not need an open partition. The first request of a reader opens a
partition without local segments. This partition follows the coordinator and reads from objects. It is closed
after some time without a request.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.diskless.partition.appends import PartitionAppends
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import TopicTraffic
from moldau.diskless.partition.transactions import DisklessTransactions
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    FoundOffset,
    PartitionStatus,
    ReadAnswer,
    ReadRequest,
    WithoutLog,
)
from moldau.runtime.fair_lane import FairClient
from moldau.storage.log.config import LogConfig

IDLE_S: Final = 120.0
"""Time without a request after which a reader is closed."""


class _NoReplica:
    """A substitute for a local replica. No append waits in this object, and the object is never closed."""

    is_closed = False
    is_known = True

    def when_known(self, callback: Callable[[], None]) -> None:
        callback()


class DisklessPassage(WithoutLog):
    """Implements :class:`moldau.replication.partition_interface.Partition`.

    The coordinator refuses appends to a partition that it has not created yet. Producers then retry.
    """

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        services: PartitionServices,
        config: LogConfig,
        traffic: TopicTraffic,
        open_reader: Callable[[], DisklessPartition],
        close_reader: Callable[[DisklessPartition], None],
    ) -> None:
        """``open_reader`` opens a partition without local segments. The partition stays open until
        ``close_reader`` is called with it."""
        self._open_reader = open_reader
        self._close_reader = close_reader
        self._reader: DisklessPartition | None = None
        self._used_at_s = 0.0
        self._closing: asyncio.TimerHandle | None = None
        self._key = key
        self._topic = topic
        self._appends = PartitionAppends(key, _NoReplica(), services, config, traffic)
        self.append = self._appends.append
        self.transactions = DisklessTransactions(key, services.transactions, services.guards, self.append)

    @property
    def config(self) -> LogConfig:
        """The configuration of the topic."""
        return self._appends.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._appends.config = config

    @property
    def key(self) -> PartitionKey:
        return self._key

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def leader_epoch(self) -> int:
        return -1

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def is_under_replicated(self) -> bool:
        return False

    # -- reading ------------------------------------------------------------------------------

    def read(self, request: ReadRequest) -> ReadAnswer:
        return self._reading().read(request)

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        if self._reader is not None:
            self._reader.count_shared_reads(size_bytes, reader_rack, times)

    async def find_offset(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
        is_replica: bool = False,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        return await self._reading().find_offset(
            timestamp_ms,
            read_committed=read_committed,
            current_leader_epoch=current_leader_epoch,
            client=client,
            is_replica=is_replica,
            deadline_s=deadline_s,
        )

    async def delete_records(self, before_offset: int, timeout_s: float | None = None) -> int:
        return await self._reading().delete_records(before_offset, timeout_s)

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        return self._reading().end_offset_for_epoch(leader_epoch, current_leader_epoch)

    def state(self) -> PartitionStatus:
        """The coordinator's offsets. Producers are not included, because only replicas have them."""
        return self._reading().state()

    def close(self) -> None:
        """Close this partition, because the partition is deleted or gets a replica on this broker, or because
        the broker stops."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        reader, self._reader = self._reader, None
        if reader is not None:
            self._close_reader(reader)

    def _reading(self) -> DisklessPartition:
        loop = asyncio.get_running_loop()
        self._used_at_s = loop.time()
        if self._reader is None:
            self._reader = self._open_reader()
            self._closing = loop.call_later(IDLE_S, self._close_if_idle)
        return self._reader

    def _close_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = loop.time() - self._used_at_s
        if idle_s >= IDLE_S:
            self.close()
        else:
            self._closing = loop.call_later(IDLE_S - idle_s, self._close_if_idle)
