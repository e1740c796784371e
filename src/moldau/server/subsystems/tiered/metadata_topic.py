"""``__remote_log_metadata`` for the metadata manager, over the partitions that this broker leads.

An event is answered, and read, once it is below the high watermark, and so on the disks of the in-sync
replicas: after a COPY_SEGMENT_FINISHED local segments go, so it must not be lost with the page cache.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.records.batch import iter_headers, parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.replication.classic import ClassicPartition
from moldau.replication.partition import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.cluster_view import ClusterView
from moldau.server.registry import PartitionRegistry
from moldau.server.topic_creation import InternalTopic
from moldau.storage.append_info import AppendOrigin
from moldau.tiered.metadata_manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata_topic import TopicDescription, TopicOffsets, TopicRecords
from moldau.tiered.storage_manager import RemoteStorageError

__all__ = ["HostedMetadataTopic"]

COMMIT_TIMEOUT_MS: Final = 30_000
LOOK_AGAIN_S: Final = 30.0


class HostedMetadataTopic:
    """A :class:`moldau.tiered.metadata_topic.MetadataTopic`; its calls are made on the loop."""

    def __init__(
        self,
        machine: Machine,
        view: ClusterView,
        partitions: PartitionRegistry,
        arrivals: WaitingRoom[PartitionKey],
        topic: InternalTopic,
        ensure: Callable[[InternalTopic], Awaitable[None]],
    ) -> None:
        """``ensure`` creates the topic when there is none; raises ``KafkaError``."""
        self._machine = machine
        self._view = view
        self._partitions = partitions
        self._arrivals = arrivals
        self._topic = topic
        self._ensure = ensure

    def led_partitions(self) -> set[int]:
        """The partitions of the topic that this broker leads now."""
        found = self._view.image.topics.get(REMOTE_LOG_METADATA_TOPIC)
        indexes = range(0 if found is None else len(found.partitions))
        return {index for index in indexes if self._leader(index) is not None}

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
        led = self._led(partition)
        batch = build_batch([Record(0, self._machine.clock.now_ms(), None, value)])
        try:
            offset = led.append_own(batch, [parse_header(batch)], AppendOrigin.COORDINATOR).first_offset
        except KafkaError as error:
            raise _refused(partition, error) from error
        outcome = await led.committed(offset, COMMIT_TIMEOUT_MS)
        if outcome.error is not ErrorCode.none:
            raise RemoteMetadataUnknownOutcomeError(
                f"whether the event at {offset} of {REMOTE_LOG_METADATA_TOPIC}-{partition} stays is not"
                f" known: {outcome.message or outcome.error.name}"
            )
        return offset

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        led = self._led(partition)
        try:
            found = led.log.read(offset, max_bytes, upper_bound_offset=led.high_watermark)
        except KafkaError as error:
            raise _refused(partition, error) from error
        records: list[tuple[int, bytes]] = []
        next_offset = offset
        content = memoryview(b"".join(found.views))
        for position, header in iter_headers(content):
            next_offset = max(next_offset, header.last_offset + 1)
            if not header.is_control:
                for record in iter_records(content[position : position + header.size_bytes]):
                    if record.offset >= offset and record.value is not None:
                        records.append((record.offset, bytes(record.value)))
        return TopicRecords(records, next_offset)

    async def wait_beyond(self, partition: int, offset: int) -> None:
        await self._wait(self._led(partition), offset)

    async def _wait(self, led: ClassicPartition, offset: int) -> None:
        """Until the partition changes in any way, or for a while."""
        waiter = self._arrivals.wait([led.key], LOOK_AGAIN_S)
        try:
            if led.high_watermark <= offset:
                await waiter.future
        finally:
            waiter.finish(False)

    def offsets(self, partition: int) -> TopicOffsets:
        led = self._led(partition)
        return TopicOffsets(led.log.log_start_offset, led.high_watermark, led.log.log_end_offset)

    def epoch_of(self, partition: int, offset: int) -> int:
        return self._led(partition).log.epoch_for_offset(offset)

    def _led(self, partition: int) -> ClassicPartition:
        found = self._leader(partition)
        if found is None:
            raise RemoteMetadataNotReadyError(
                f"{REMOTE_LOG_METADATA_TOPIC}-{partition} is not led by this broker"
            )
        return found

    def _leader(self, partition: int) -> ClassicPartition | None:
        found = self._partitions.get(REMOTE_LOG_METADATA_TOPIC, partition)
        return found if isinstance(found, ClassicPartition) and found.is_leader else None


def _refused(partition: int, error: KafkaError) -> RemoteStorageError:
    transient = error.code is not ErrorCode.message_too_large
    return RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error}", transient=transient)
