"""Work on chunks in the background. The leader of a partition applies retention to its chunks. A broker
copies the chunks that it must have, and reports to the controller which chunks it has. This work is repeated.
Each repetition begins with a comparison of the image with this broker's folders. Therefore a failed step is
tried again in a later repetition.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from moldau.chunks.calls import ChunkFileFetch
from moldau.chunks.chunk_retention import has_removable, retained_start
from moldau.chunks.holder import PIECE_MAX_BYTES
from moldau.chunks.meters import ChunkMeters
from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.directories import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_delta import TopicDelta
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.own.chunks.drop_chunks import DropChunksPartition, DropChunksRequest
from moldau.protocol.own.chunks.report_chunks import ReportChunksRequest, ReportedChunk
from moldau.protocol.partitions import TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.byte_quota import BytePacer, QuotaSettings
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.context import BrokerContext
from moldau.server.subsystems.chunks.peers import ChunkPeers
from moldau.server.subsystems.chunks.tiering import ChunkTiering
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore

logger = logging.getLogger(__name__)

COPY_INTERVAL_S: Final = 1.0
"""Pause before the copies are checked again while the image changes."""


class CopyPace:
    """The maximum rate of all copies of a broker together, and the bytes of the present copy."""

    def __init__(self, meters: ChunkMeters) -> None:
        self._pacer = BytePacer(QuotaSettings())
        self._changed = asyncio.Event()
        self._meters = meters
        self.copied_bytes = 0
        """Bytes of the copy in progress that are on this broker."""

    def limit(self, bytes_per_second: int) -> None:
        """Set the maximum rate in bytes per second. From the next piece on, waits depend only on the new
        rate."""
        if self._pacer.settings.bytes_per_second != bytes_per_second:
            self._pacer = BytePacer(QuotaSettings(bytes_per_second))
            self._changed.set()

    async def wait(self) -> None:
        """Wait until the next piece may be read."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        pause_s = self._pacer.wait_s(loop.time())
        if pause_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)
        self._pacer.reserve(PIECE_MAX_BYTES, loop.time())

    def copied(self, size_bytes: int) -> None:
        """Count the bytes of a piece."""
        self._pacer.settle(PIECE_MAX_BYTES, size_bytes)
        self._meters.copied_bytes.mark(size_bytes)
        self.copied_bytes += size_bytes


class _PeerChunk:
    """A chunk on another broker; a :class:`moldau.storage.chunks.chunk_store.ChunkSource`."""

    def __init__(
        self,
        peers: ChunkPeers,
        chunk: ChunkRegistration,
        chunk_id: ChunkId,
        pace: CopyPace,
        is_wanted: Callable[[], bool],
    ) -> None:
        """``is_wanted`` returns False when this broker must no longer have the chunk."""
        self._peers = peers
        self._chunk = chunk
        self._id = chunk_id
        self._pace = pace
        self._is_wanted = is_wanted

    async def files(self) -> Mapping[str, int]:
        self._pace.copied_bytes = 0
        return (await self._peers.fetch_file(self._chunk, ChunkFileFetch(*self._id))).files

    async def read(self, name: str, position: int) -> bytes:
        await self._pace.wait()
        if not self._is_wanted():
            reason = "the chunk is not moved to this broker any more"
            raise KafkaError(ErrorCode.no_reassignment_in_progress, reason)
        wanted = ChunkFileFetch(*self._id, name, position, PIECE_MAX_BYTES)
        content = (await self._peers.fetch_file(self._chunk, wanted)).content
        self._pace.copied(len(content))
        return content


class _OwnChunk(NamedTuple):
    """A chunk that this broker must have according to the metadata."""

    topic: Topic
    chunk_id: ChunkId
    chunk: ChunkRegistration

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.chunk_id.partition)


class ControllerReports:
    """Reports this broker's chunks to the controller."""

    def __init__(self, broker_id: int, channel: ControllerChannel, broker_epoch: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._broker_epoch = broker_epoch

    async def held(self, chunk: ChunkId, epoch: int, directory_id: Any, *, is_held: bool) -> None:
        """Report that this broker has a complete chunk, or has lost a chunk. ``epoch`` is the epoch of the
        chunk for which this was found. Raises ``KafkaError`` if the report fails."""
        row = ReportedChunk(
            topic_id=chunk.topic_id,
            partition_index=chunk.partition,
            start_offset=chunk.start_offset,
            is_held=is_held,
            directory_id=directory_id or MIGRATING_DIRECTORY,
            chunk_epoch=epoch,
        )
        request = ReportChunksRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), chunks=[row]
        )
        answer = await self._channel.send(request)
        _raise_errors(answer, answer.chunks)

    async def dropped(self, partition: ClassicPartition, start_offset: int) -> None:
        """Report to the controller that a partition needs no chunks before ``start_offset``. This broker
        leads the partition. Raises ``KafkaError`` if the report fails."""
        row = DropChunksPartition(
            topic_id=partition.key.topic_id,
            partition_index=partition.key.partition,
            leader_epoch=partition.leader_epoch,
            log_start_offset=start_offset,
        )
        request = DropChunksRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), partitions=[row]
        )
        answer = await self._channel.send(request)
        _raise_errors(answer, answer.partitions)


def _raise_errors(answer: Any, rows: Any) -> None:
    for each in (answer, *rows):
        if each.error_code is not ErrorCode.none:
            raise KafkaError(each.error_code, each.error_message)


class ChunkRetention:
    """Removes expired chunks of the partitions that this broker leads."""

    def __init__(
        self,
        machine: Machine,
        partitions: PartitionRegistry,
        image: Callable[[], MetadataImage],
        reports: ControllerReports,
        tiering: ChunkTiering | None = None,
    ) -> None:
        """``tiering`` is ``None`` if the broker has no remote tier."""
        self._tiering = tiering
        self._machine = machine
        self._partitions = partitions
        self._image = image
        self._reports = reports

    async def run_once(self) -> None:
        """Move the starts of logs. The controller then removes the chunks before these starts. Raises the
        last ``KafkaError``, after all partitions were handled."""
        failure: KafkaError | None = None
        for partition in self._partitions:
            if not isinstance(partition, ClassicPartition) or partition.remote.part is None:
                continue
            metadata = self._image().topics.partition(*partition.key)
            if metadata is None or not metadata.chunks or not partition.is_leader:
                continue
            if partition.guards.refuses_markers:
                continue  # The active chunk is ending. Its log start may already be sent to other brokers.
            try:
                await self._retain(partition, metadata)
            except KafkaError as error:
                logger.info("retention of %s-%d: %s", partition.topic, partition.key.partition, error)
                failure = error
        if failure is not None:
            raise failure

    async def _retain(self, partition: ClassicPartition, metadata: PartitionRegistration) -> None:
        log, now_ms = partition.log, self._machine.deletion_clock.now_ms()
        if log.config.copies_to_remote and self._tiering is not None:
            # In a tiered partition, retention of the remote tier moves the start of the log. Here, only local
            # retention applies.
            start_offset = self._tiering.local_start(partition, metadata, now_ms)
        else:
            start_offset = retained_start(
                metadata.chunks,
                log.config,
                log_start_offset=log.log_start_offset,
                active_size_bytes=log.size_bytes,
                active_since_ms=metadata.start_timestamp_ms,
                now_ms=now_ms,
            )
            if log.update_log_start_offset(start_offset):
                await log.persist_start()
            start_offset = log.log_start_offset
        if has_removable(metadata.chunks, start_offset):
            await self._reports.dropped(partition, start_offset)


class ChunkCopies:
    """Copies the chunks that this broker must have, and reports the chunks that it has received or lost."""

    def __init__(
        self,
        context: BrokerContext,
        store: ChunkStore,
        peers: ChunkPeers,
        reports: ControllerReports,
        settled: Callable[[], Any],
        meters: ChunkMeters,
    ) -> None:
        """``settled`` waits until the logs of this broker match the image."""
        self._meters = meters
        self.pace = CopyPace(meters)
        self._view = context.view
        self._logs = context.logs
        self._store = store
        self._peers = peers
        self._reports = reports
        self._settled = settled
        self.check_topic: Callable[[str], None] = lambda topic: None
        """Called with a topic before one of its chunks is copied. Raises ``KafkaError`` if this broker cannot
        have chunks of the topic."""
        self.wake = asyncio.Event()
        """Set when there may be work, for example after a change of the image."""
        self._chunked: set[str] = set()
        """Topics with inactive chunks."""
        self._unreadable: set[ChunkId] = set()
        """Chunks that this broker has and could not read."""
        self._replaced: set[ChunkId] = set()
        """Chunks that were unreadable, and that this broker has then copied again from another broker. If the
        new copy is also unreadable, the chunk is not copied a third time before the next start."""
        self._is_running = False
        self._reporting: set[asyncio.Task[None]] = set()
        """Reports that do not wait for the copies in progress."""

    def unreadable(self, chunk: ChunkId) -> None:
        """A read of this broker's copy has failed. Copy the chunk again from another broker."""
        if chunk in self._store and chunk not in self._replaced and chunk not in self._unreadable:
            self._unreadable.add(chunk)
            self.wake.set()

    def changed(self, topics: Iterable[TopicDelta], image: MetadataImage) -> bool:
        """Record which of the changed topics of a new image have inactive chunks. Returns whether there are
        any such topics."""
        found = False
        for change in topics:
            # For topics that never had chunks, this check of the changed partitions is the only work.
            if change.name in self._chunked or any(each.chunks for each in change.partitions.values()):
                topic = image.topics.get(change.name)
                if topic is not None and any(each.chunks for each in topic.partitions):
                    self._chunked.add(change.name)
                    found = True
                else:
                    self._chunked.discard(change.name)
        return found

    def directory_failed(self) -> None:
        """A log directory has failed. Report its chunks now, because a copy in progress may take hours."""
        self.wake.set()
        if self._is_running:
            task = asyncio.get_running_loop().create_task(self._report_all(), name="reports of chunks")
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)

    async def run(self) -> None:
        """Repeat the work until the task is cancelled."""
        self._is_running = True
        try:
            while True:
                await self.wake.wait()
                self.wake.clear()
                is_complete = await self._attempt(self._round)
                await asyncio.sleep(COPY_INTERVAL_S)
                if not is_complete:
                    self.wake.set()
        finally:
            self._is_running = False
            for task in self._reporting:
                task.cancel()
            await asyncio.gather(*self._reporting, return_exceptions=True)

    async def _attempt(self, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do work after the logs match the image. Returns False if the work must be tried again."""
        try:
            await self._settled()
            return await work()
        except Exception:
            logger.exception("a round of copies of chunks failed")
            return False

    async def _report_all(self) -> None:
        while True:
            if await self._attempt(self._report_changes):
                return
            await asyncio.sleep(COPY_INTERVAL_S)

    async def _round(self) -> bool:
        """Do all steps that are due now. Returns False if a step must be tried again."""
        is_reported = await self._report_changes()
        return await self._each(self._must_copy, self._copy) and is_reported

    async def _report_changes(self) -> bool:
        return await self._each(self._must_report, self._report)

    async def _each(
        self, is_due: Callable[[_OwnChunk], bool], step: Callable[[_OwnChunk], Awaitable[None]]
    ) -> bool:
        """Do a step for each chunk for which it is due. Returns False if a step must be tried again."""
        is_complete = True
        for listed in [each for each in self._own_chunks() if is_due(each)]:
            own = self._newest(listed)
            if own is None or not is_due(own):
                continue
            try:
                await step(own)
            except (KafkaError, OSError) as error:
                is_complete = False
                self._meters.copy_failures.mark()
                logger.info("chunk %d of %s: %s", own.chunk.start_offset, own.name, error)
        return is_complete

    def _must_report(self, own: _OwnChunk) -> bool:
        """Whether the metadata do not show yet that this broker has received or lost a chunk."""
        return (own.chunk_id in self._store) != (self._view.local_id in own.chunk.isr)

    def _must_copy(self, own: _OwnChunk) -> bool:
        if self._view.local_id in own.chunk.isr:
            return own.chunk_id in self._unreadable and own.chunk_id in self._store
        is_missing = own.chunk_id not in self._store and bool(own.chunk.isr)
        return is_missing and not self._is_in_failed_folder(own)

    async def _copy(self, own: _OwnChunk) -> None:
        """Copy a chunk from another broker, and report that it is here."""
        if own.chunk_id in self._store:
            await self._replace(own)
            return
        self.check_topic(own.topic.name)
        source = self._source(own, own.chunk.isr)
        await self._store.copy(own.name, own.chunk_id, own.chunk.end_offset + 1, source)
        self._unreadable.discard(own.chunk_id)  # An earlier copy was unreadable.
        logger.info("chunk %d of %s is copied", own.chunk.start_offset, own.name)
        newest = self._newest(own)
        if newest is None:
            # An image removed the chunk from this broker before the copy was complete.
            await self._store.drop(own.name, own.chunk_id)
        else:
            await self._send_report(newest, is_held=True)

    async def _report(self, own: _OwnChunk) -> None:
        """Report a chunk that this broker has received or lost."""
        is_here = own.chunk_id in self._store
        if not is_here:
            # An image that came after the start of the round may have ended the chunk. Until the logs match
            # this image, the partition's old log is being renamed, and the chunk only seems to be lost.
            await self._settled()
            if own.chunk_id in self._store:
                return
            if not self._is_lost(own):
                raise KafkaError(ErrorCode.kafka_storage_error, "its log is not renamed yet")
            logger.error("chunk %d of %s is not on this broker any more", own.chunk.start_offset, own.name)
        await self._send_report(own, is_held=is_here)

    async def _send_report(self, own: _OwnChunk, *, is_held: bool) -> None:
        home = self._store.directory_of(own.chunk_id)
        directory_id = None if home is None else home.directory_id
        await self._reports.held(own.chunk_id, own.chunk.epoch, directory_id, is_held=is_held)

    async def _replace(self, own: _OwnChunk) -> None:
        """Copy a chunk again from the other brokers that have it, because this broker's copy cannot be
        read."""
        others = tuple(each for each in own.chunk.isr if each != self._view.local_id)
        if others:
            source = self._source(own, others)
            await self._store.copy(own.name, own.chunk_id, own.chunk.end_offset + 1, source)
            logger.warning("chunk %d of %s is copied again", own.chunk.start_offset, own.name)
            if self._newest(own) is None:
                await self._store.drop(own.name, own.chunk_id)
        self._replaced.add(own.chunk_id)
        self._unreadable.discard(own.chunk_id)

    def _source(self, own: _OwnChunk, brokers: tuple[int, ...]) -> _PeerChunk:
        """Return an object that reads the chunk ``own`` from one of ``brokers``."""
        chunk = replace(own.chunk, isr=brokers)
        return _PeerChunk(self._peers, chunk, own.chunk_id, self.pace, lambda: self._newest(own) is not None)

    # -- gauges ---------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Bytes of the inactive chunks that this broker has."""
        local_id = self._view.local_id
        return sum(each.chunk.size_bytes for each in self._own_chunks() if local_id in each.chunk.isr)

    def missing(self) -> list[ChunkRegistration]:
        """The chunks that this broker still has to copy."""
        local_id = self._view.local_id
        return [each.chunk for each in self._own_chunks() if local_id not in each.chunk.isr]

    def missing_bytes(self) -> int:
        """Bytes that this broker still has to copy. Each copied piece makes the number smaller."""
        missing = sum(chunk.size_bytes for chunk in self.missing())
        return max(0, missing - self.pace.copied_bytes)

    # -- lookups --------------------------------------------------------------------------------

    def _is_lost(self, own: _OwnChunk) -> bool:
        """Whether this broker cannot read a chunk that it should have. The result is False if the partition's
        old log may still become the chunk's log, and no other broker has the chunk. This log would not be
        used any more after the report of the loss."""
        if self._store.directory_of(own.chunk_id) is not None:
            return True  # The folder of the chunk is in a log directory that has failed.
        log = self._logs.get(own.name)
        if log is not None and log.segments.segments[0].base_offset <= own.chunk.end_offset:
            return False
        if all(each.is_online for each in self._logs.directories):
            return True
        return self._is_in_failed_folder(own) and len(own.chunk.isr) > 1

    def _is_in_failed_folder(self, own: _OwnChunk) -> bool:
        """Whether this broker's copy is in a log directory that has failed. The copy may be usable after the
        next start, so the chunk is not copied to another log directory."""
        found, directories = self._store.directory_of(own.chunk_id), self._logs.directories
        if found is not None:
            return not found.is_online
        home = own.chunk.directory_of(self._view.local_id)
        known = {each.directory_id: each.is_online for each in directories}
        if home in (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
            return False
        # The id of a log directory that could not be read at the start may be unknown.
        return not known.get(home, None not in known)

    def _newest(self, own: _OwnChunk) -> _OwnChunk | None:
        """The chunk in the newest image; ``None`` if this broker must no longer have the chunk."""
        topic = self._view.image.topics.get_by_id(own.chunk_id.topic_id)
        chunk = (
            None
            if topic is None
            else topic.partitions[own.chunk_id.partition].chunk_at(own.chunk.start_offset)
        )
        if topic is None or chunk is None or self._view.local_id not in chunk.replicas:
            return None
        return own._replace(topic=topic, chunk=chunk)

    def _own_chunks(self) -> Iterator[_OwnChunk]:
        local_id = self._view.local_id
        topics = self._view.image.topics
        for topic in filter(None, map(topics.get, tuple(self._chunked))):
            for index, partition in enumerate(topic.partitions):
                for chunk in partition.chunks:
                    if local_id in chunk.replicas:
                        yield _OwnChunk(topic, ChunkId(topic.topic_id, index, chunk.start_offset), chunk)
