"""Fetches a snapshot of a partition from its leader (KIP-630's FetchSnapshot), one byte range after
another."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from moldau.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
)
from moldau.protocol.partitions import PartitionKey
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import LogPosition, RawSnapshotWriter
from moldau.storage.snapshots.snapshot_log import SnapshotLog

FETCH_SNAPSHOT_VERSION: Final = 1
"""The version is not negotiated, because brokers serve this API only to each other and do not advertise
it."""
RANGE_BYTES: Final = 1 << 20

FetchPart: TypeAlias = Callable[[FetchSnapshotRequest], Awaitable[FetchSnapshotResponse]]
"""Sends one request to the leader. Raises ``KafkaError``."""


class SnapshotDownload:
    """A snapshot that a follower downloads, in one leader epoch."""

    def __init__(
        self,
        local_id: int,
        topic: str,
        key: PartitionKey,
        leader_epoch: int,
        snapshot_id: LogPosition,
        ask: FetchPart,
    ) -> None:
        self._local_id = local_id
        self._topic = topic
        self._key = key
        self._leader_epoch = leader_epoch
        self._snapshot_id = snapshot_id
        self._ask = ask

    async def run(self, log: SnapshotLog) -> None:
        """Download the snapshot. When this method returns, the complete snapshot is durable on the disk, but
        the log does not use the snapshot yet.

        Raises ``KafkaError`` when the leader now has another snapshot, or is not the leader any more.
        """
        writer = log.store_snapshot(self._snapshot_id)
        if writer is None:
            return
        try:
            while not await self._copy_range(writer):
                pass
            await writer.freeze()
        except BaseException:
            writer.abandon()
            raise

    async def _copy_range(self, writer: RawSnapshotWriter) -> bool:
        """Copy the next bytes. Returns whether they were the last bytes."""
        position = writer.size_bytes
        response = await self._ask(self._request(position))
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code)
        row = response.topics[0].partitions[0]
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, f"snapshot {self._snapshot_id} cannot be fetched")
        content: Any = row.unaligned_records or b""
        if row.position != position or not len(content):
            raise KafkaError(ErrorCode.corrupt_message, f"no bytes of {self._snapshot_id} at {position}")
        writer.append(content)
        return writer.size_bytes >= row.size

    def _request(self, position: int) -> FetchSnapshotRequest:
        end_offset, epoch = self._snapshot_id
        wanted = FetchSnapshotRequestPartitionSnapshot(
            partition=self._key.partition,
            current_leader_epoch=self._leader_epoch,
            snapshot_id=FetchSnapshotRequestSnapshotId(end_offset=end_offset, epoch=epoch),
            position=position,
        )
        return FetchSnapshotRequest(
            replica_id=self._local_id,
            max_bytes=RANGE_BYTES,
            topics=[FetchSnapshotRequestTopicSnapshot(name=self._topic, partitions=[wanted])],
        )
