"""``__remote_log_metadata`` for the metadata manager. This broker leads some of the topic's partitions, and
other brokers lead its other partitions.

An event is acknowledged, and readers get it, when it is below the high watermark. At this time it is synced
to the disks of the in-sync replicas. This is necessary, because after the event COPY_SEGMENT_FINISHED the
local segment may be deleted, so the event must not be lost when a machine loses its page cache.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC, InternalTopic
from moldau.coordinators.log import PartitionCoordinatorLog
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.partitions import PartitionKey
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import Machine
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairLane
from moldau.server.context import BrokerContext
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.subsystems.tiered.metadata_events import read_events
from moldau.server.subsystems.tiered.metadata_peers import MetadataPeers
from moldau.tiered.metadata.calls import AppendEventCall, EventOffsetsCall
from moldau.tiered.metadata.manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.records import decode_event
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.metadata.topic import EventWriter, TopicDescription, TopicOffsets, TopicRecords
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = ["ClusterMetadataTopic", "HostedMetadataTopic"]

COMMIT_TIMEOUT_MS: Final = 30_000
LOOK_AGAIN_S: Final = 30.0


class _LeaderTerm:
    """A term of leadership over a partition."""

    def __init__(self, epoch: int, log: PartitionCoordinatorLog) -> None:
        self.epoch = epoch
        self.log = log
        self.writers: dict[PartitionKey, int] = {}
        """The newest leader epoch of each partition about which an event was written in this term."""
        self.moved = asyncio.Event()
        """Set at each move of the high watermark, and at the end of the term."""
        self._end_watermarks = log.follow_watermark(lambda _: self.moved.set())

    def end(self) -> None:
        self._end_watermarks()
        self.moved.set()


class HostedMetadataTopic:
    """The partitions of the topic that this broker leads. All calls are made on the event loop.

    This class gets its terms of leadership like any kind of coordinator (``server/coordinators``), and reads
    and writes through the log of coordinators. It also answers other brokers (``MetadataPartitionCalls``).

    *Fencing.* An event about a partition's segments contains the epoch in which its writer leads that
    partition. The event is refused when an event of a newer epoch was written in this term, or when this
    broker's metadata contain a newer epoch.

    A new leader of the partition sends its first event to the leader of the metadata partition. The new
    leader finds the leader of the metadata partition in its metadata, which already contain the new leader's
    own epoch. Every later leader of the metadata partition has these metadata, too. Therefore no event of an
    older epoch follows an event of a newer epoch.
    """

    def __init__(self, machine: Machine, view: ClusterView) -> None:
        self._clock = machine.clock
        self._opening = machine.opening
        self._view = view
        self._terms: dict[int, _LeaderTerm] = {}

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead a partition from ``epoch`` on."""
        index = partition.key.partition
        self.leave(index, epoch)
        self._terms[index] = _LeaderTerm(epoch, PartitionCoordinatorLog(partition))

    def leave(self, partition: int, epoch: int) -> None:
        """Stop leading a partition from ``epoch`` on."""
        term = self._terms.pop(partition, None)
        if term is not None:
            term.end()

    def leads(self, partition: int) -> bool:
        """Whether this broker is in a term of leadership over a partition."""
        return partition in self._terms

    async def append(self, partition: int, value: bytes, writer: EventWriter | None = None) -> int:
        term = self._term(partition)
        if writer is not None:
            key = PartitionKey(writer.partition.topic_id, writer.partition.partition)
            newest = max(term.writers.get(key, -1), self._committed_epoch(key))
            if writer.leader_epoch < newest:
                raise RemoteStorageError(
                    f"{writer.partition} is led in epoch {newest}: this is an event of epoch"
                    f" {writer.leader_epoch}"
                )
            term.writers[key] = writer.leader_epoch
        log = term.log
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

    def _committed_epoch(self, key: PartitionKey) -> int:
        """Return the epoch of a partition's leader in this broker's metadata. It is -1 when the metadata have
        no epoch for the partition."""
        topic = self._view.image.topics.get_by_id(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return -1
        return topic.partitions[key.partition].leader_epoch

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        try:
            content = self._term(partition).log.read_committed(offset, max_bytes)
        except KafkaError as error:
            raise _refused(partition, error) from error
        return await read_events(self._opening, content, partition, offset)

    async def wait_beyond(self, partition: int, offset: int) -> None:
        term = self._term(partition)
        if term.log.high_watermark > offset:
            return
        term.moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await term.moved.wait()

    async def offsets(self, partition: int, epoch: int = -1) -> TopicOffsets:
        log = self._term(partition).log
        epoch_end = log.end_of_epoch(epoch)
        return TopicOffsets(log.log_start_offset, log.high_watermark, log.log_end_offset, epoch_end)

    def _term(self, partition: int) -> _LeaderTerm:
        term = self._terms.get(partition)
        if term is None or not term.log.is_led:
            raise RemoteMetadataNotReadyError(
                f"{REMOTE_LOG_METADATA_TOPIC}-{partition} is not led by this broker"
            )
        return term

    # -- the calls of other brokers -----------------------------------------------------------

    async def append_event(self, call: AppendEventCall) -> int:
        self._check_epoch(call.metadata_partition, call.metadata_leader_epoch)
        _check_event(call)
        writer = EventWriter(
            TopicIdPartition(call.topic_id, self._topic_name(call.topic_id), call.partition_index),
            call.leader_epoch,
        )
        try:
            return await self.append(call.metadata_partition, call.event, writer)
        except RemoteMetadataUnknownOutcomeError as error:
            raise KafkaError(ErrorCode.request_timed_out, str(error)) from error
        except RemoteMetadataNotReadyError as error:
            raise KafkaError(ErrorCode.not_leader_or_follower, str(error)) from error
        except RemoteStorageError as error:
            code = ErrorCode.fenced_leader_epoch if error.transient else ErrorCode.message_too_large
            raise KafkaError(code, str(error)) from error

    async def event_offsets(self, call: EventOffsetsCall) -> TopicOffsets:
        self._check_epoch(call.metadata_partition, call.metadata_leader_epoch)
        try:
            return await self.offsets(call.metadata_partition, call.epoch)
        except RemoteMetadataNotReadyError as error:
            raise KafkaError(ErrorCode.not_leader_or_follower, str(error)) from error

    def _check_epoch(self, partition: int, epoch: int) -> None:
        term = self._terms.get(partition)
        if term is None:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"{REMOTE_LOG_METADATA_TOPIC}-{partition} is not led by this broker",
            )
        if epoch != term.epoch:
            is_old = epoch < term.epoch
            raise KafkaError(ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)

    def _topic_name(self, topic_id: UUID) -> str:
        return self._view.image.topic_name(topic_id) or str(topic_id)


class ClusterMetadataTopic:
    """A :class:`moldau.tiered.metadata.topic.MetadataTopic` that calls, for each partition, the broker that
    leads it."""

    def __init__(
        self,
        view: ClusterView,
        topic: InternalTopic,
        ensure: Callable[[InternalTopic], Awaitable[None]],
        hosted: HostedMetadataTopic,
        peers: MetadataPeers,
        opening: FairLane,
    ) -> None:
        """``ensure`` creates the topic if the topic does not exist. It raises ``KafkaError`` if the topic
        cannot be created."""
        self._view = view
        self._topic = topic
        self._ensure = ensure
        self._hosted = hosted
        self._peers = peers
        self._opening = opening

    @classmethod
    def of(
        cls,
        context: BrokerContext,
        topic: InternalTopic,
        ensure: Callable[[InternalTopic], Awaitable[None]],
        hosted: HostedMetadataTopic,
    ) -> "ClusterMetadataTopic":
        """Make the topic for a broker. This topic calls other brokers over the network."""
        view, machine, listener = context.view, context.machine, context.config.inter_broker_listener_name
        peers = MetadataPeers(view, listener, machine.entropy, machine.unexpected)
        return cls(view, topic, ensure, hosted, peers, machine.opening)

    def leaders_changed(self) -> None:
        """Apply the newest metadata. The leaders of metadata partitions, or the brokers, may have changed."""
        self._peers.leaders_changed()

    async def close(self) -> None:
        """End the calls in progress at other brokers."""
        await self._peers.close()

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

    async def append(self, partition: int, value: bytes, writer: EventWriter | None = None) -> int:
        # An event without a writer comes from this broker as leader of the metadata partition, or from an
        # unknown writer.
        if writer is None or self._is_local(partition):
            return await self._hosted.append(partition, value, writer)
        return await self._peers.append(partition, value, writer)

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        if self._is_local(partition):
            return await self._hosted.read(partition, offset, max_bytes)
        content = await self._peers.read(partition, offset)
        return await read_events(self._opening, content, partition, offset)

    async def wait_beyond(self, partition: int, offset: int) -> None:
        if self._is_local(partition):
            await self._hosted.wait_beyond(partition, offset)
        else:
            await self._peers.wait_beyond(partition, offset)

    async def offsets(self, partition: int, epoch: int = -1) -> TopicOffsets:
        if self._is_local(partition):
            return await self._hosted.offsets(partition, epoch)
        return await self._peers.offsets(partition, epoch)

    def _is_local(self, partition: int) -> bool:
        """Whether this broker leads a partition now, or will lead it soon."""
        leader_id = self._view.leader_of(REMOTE_LOG_METADATA_TOPIC, partition)
        return self._hosted.leads(partition) or leader_id == self._view.local_id


def _check_event(call: AppendEventCall) -> None:
    """Raise INVALID_REQUEST if the call has no readable event of its partition. Each reader would skip such
    an event."""
    try:
        about = decode_event(call.event).topic_id_partition
    except ProtocolError as error:
        raise KafkaError(ErrorCode.invalid_request, f"The event cannot be read: {error}.") from error
    if (about.topic_id, about.partition) != (call.topic_id, call.partition_index):
        message = f"The event describes {about.topic_id}-{about.partition}, and not the call's partition."
        raise KafkaError(ErrorCode.invalid_request, message)


def _refused(partition: int, error: KafkaError) -> RemoteStorageError:
    transient = error.code is not ErrorCode.message_too_large
    return RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error}", transient=transient)
