"""``__remote_log_metadata`` for the metadata manager, over the partitions that this broker leads.

An event is answered, and read, once it is below the high watermark, and so on the disks of the in-sync
replicas: after a COPY_SEGMENT_FINISHED local segments go, so it must not be lost with the page cache.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.coordinators.log import PartitionCoordinatorLog
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.replication.classic import ClassicPartition
from moldau.runtime import Clock
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.cluster_view import ClusterView
from moldau.server.topics.topic_creation import InternalTopic
from moldau.tiered.metadata.manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.topic import TopicDescription, TopicOffsets, TopicRecords
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = ["HostedMetadataTopic"]

COMMIT_TIMEOUT_MS: Final = 30_000
LOOK_AGAIN_S: Final = 30.0


class _Term:
    """One term of leadership over a partition."""

    def __init__(self, epoch: int, log: PartitionCoordinatorLog) -> None:
        self.epoch = epoch
        self.log = log
        self.moved = asyncio.Event()
        """Set at each move of the watermark, and at the end."""
        log.on_high_watermark(lambda _: self.moved.set())

    def end(self) -> None:
        self.log.on_high_watermark(None)
        self.moved.set()


class HostedMetadataTopic:
    """A :class:`moldau.tiered.metadata.topic.MetadataTopic`; its calls are made on the loop.

    It is told of its terms as any kind of coordinator is (``server/coordinators``), and reads and writes by
    the log of coordinators.
    """

    def __init__(
        self,
        clock: Clock,
        view: ClusterView,
        topic: InternalTopic,
        ensure: Callable[[InternalTopic], Awaitable[None]],
    ) -> None:
        """``ensure`` creates the topic when there is none; raises ``KafkaError``."""
        self._clock = clock
        self._view = view
        self._topic = topic
        self._ensure = ensure
        self._terms: dict[int, _Term] = {}

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """This broker leads a partition from ``epoch`` on."""
        index = partition.key.partition
        self.leave(index, epoch)
        self._terms[index] = _Term(epoch, PartitionCoordinatorLog(partition))

    def leave(self, partition: int, epoch: int) -> None:
        """As of ``epoch`` this broker does not lead a partition."""
        term = self._terms.pop(partition, None)
        if term is not None:
            term.end()

    def leads(self, partition: int) -> bool:
        """Whether this broker is in a term over a partition."""
        return partition in self._terms

    async def ensure(self) -> TopicDescription:
        try:
            await self._ensure(self._topic)
        except KafkaError as error:
            raise RemoteStorageError(str(error)) from error
        found = self._view.image.topics.get(REMOTE_LOG_METADATA_TOPIC)
        if found is None:
            raise RemoteMetadataNotReadyError(f"{REMOTE_LOG_METADATA_TOPIC} is not there yet")
        count, wanted = len(found.partitions), self._topic.partition_count
        if count != wanted:
            raise RemoteStorageError(
                f"{REMOTE_LOG_METADATA_TOPIC} has {count} partitions, but"
                f" remote.log.metadata.topic.num.partitions is {wanted}: where events lie depends on it",
                transient=False,
            )
        return TopicDescription(found.topic_id, count)

    async def append(self, partition: int, value: bytes) -> int:
        log = self._term(partition).log
        try:
            offset = log.append(bytearray(build_batch([Record(0, self._clock.now_ms(), None, value)])))
        except KafkaError as error:
            raise _refused(partition, error) from error
        try:
            await log.committed(offset, COMMIT_TIMEOUT_MS)
        except KafkaError as error:
            raise RemoteMetadataUnknownOutcomeError(
                f"whether the event at {offset} of {REMOTE_LOG_METADATA_TOPIC}-{partition} stays is not"
                f" known: {error.message}"
            ) from error
        return offset

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        try:
            content = self._term(partition).log.read_committed(offset, max_bytes)
        except KafkaError as error:
            raise _refused(partition, error) from error
        records: list[tuple[int, bytes]] = []
        next_offset = offset
        for position, header in iter_headers(content):
            next_offset = max(next_offset, header.last_offset + 1)
            if not header.is_control:
                for record in iter_records(content[position : position + header.size_bytes]):
                    if record.offset >= offset and record.value is not None:
                        records.append((record.offset, bytes(record.value)))
        return TopicRecords(records, next_offset)

    async def wait_beyond(self, partition: int, offset: int) -> None:
        term = self._term(partition)
        if term.log.high_watermark > offset:
            return
        term.moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await term.moved.wait()

    def offsets(self, partition: int) -> TopicOffsets:
        log = self._term(partition).log
        return TopicOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset)

    def epoch_of(self, partition: int, offset: int) -> int:
        return self._term(partition).log.epoch_for_offset(offset)

    def _term(self, partition: int) -> _Term:
        term = self._terms.get(partition)
        if term is None or not term.log.is_led:
            raise RemoteMetadataNotReadyError(
                f"{REMOTE_LOG_METADATA_TOPIC}-{partition} is not led by this broker"
            )
        return term


def _refused(partition: int, error: KafkaError) -> RemoteStorageError:
    transient = error.code is not ErrorCode.message_too_large
    return RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error}", transient=transient)
