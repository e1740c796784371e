"""Partition chunks of a broker (KIP-1114): the kind of its partitions, reads, and calls."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

from moldau.chunks.calls import CALLS, ChunkService
from moldau.chunks.hand_overs import HandOvers
from moldau.chunks.holder import ChunkHolder
from moldau.chunks.leader_start import LeaderStart
from moldau.chunks.meters import ChunkMeters
from moldau.chunks.redirects import ChunkRedirects
from moldau.chunks.stand_in import ChunkStandIn, PartitionElsewhere
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import INTERNAL_TOPICS
from moldau.network.own_serving import BrokerCallHandlers
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import Partition
from moldau.replication.traffic import PartitionTraffic
from moldau.runtime.repeating import Repeating
from moldau.server.context import BrokerContext
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.chunks.creation import ChunkCreation
from moldau.server.subsystems.chunks.kind import ChunkedKind, ChunkLogs
from moldau.server.subsystems.chunks.peers import ChunkCallService, ChunkPeers
from moldau.server.subsystems.chunks.rolling import CHECK_MS, ChunkRolling
from moldau.server.subsystems.chunks.tiering import ChunkSegmentStore, ChunkTiering
from moldau.server.subsystems.chunks.tool_handlers import ChunkToolHandlers
from moldau.server.subsystems.chunks.upkeep import ChunkCopies, ChunkRetention, ControllerReports
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.server.topics.partition_kinds import KindClaim, PartitionKind
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore

logger = logging.getLogger(__name__)


class ChunksSubsystem(Subsystem):
    """The chunks on this broker. Partitions without chunks are handled by the kinds of partitions that
    subsystems before this one contribute."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: PartitionsSubsystem,
        tiered: TieredSubsystem | None,
    ) -> None:
        """``tiered`` is ``None`` if the broker has no remote tier."""
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._copying: asyncio.Task[None] | None = None
        logs, machine, view = context.logs, context.machine, context.view
        self.store = ChunkStore(machine, logs)
        self.store.end_of = self._end_of
        self._hand_overs = HandOvers(machine, logs.directories[0])
        self._holder = ChunkHolder(machine, self.store, self._hand_overs)
        self._meters = ChunkMeters(context.meters.registry)
        segments = None if tiered is None else ChunkSegmentStore(machine, self.store, tiered.storage)
        self._service = ChunkCallService(context, self._holder, self._hand_overs, segments)
        self.peers = ChunkPeers(context, self._holder, self._hand_overs, self._meters, self._service)
        self._inner: PartitionKind[ClassicPartition] = partitions.classic if tiered is None else tiered.kind
        chunk_logs = ChunkLogs(view.local_id, logs, self.store, self._hand_overs)
        self._stand_ins: dict[PartitionKey, ChunkStandIn] = {}
        self._redirects = ChunkRedirects(
            view.local_id,
            lambda: view.image.brokers,
            self._meters.redirects,
            context.config.integer("chunk.redirect.min.bytes"),
        )
        self._kind = ChunkedKind(
            self._inner, chunk_logs, self.peers, self._redirects, lambda: view.image, self._run
        )
        self._kind.on_exchanged = self._drop_removed
        tiering = None if tiered is None else self._begin_tiering(tiered)
        self._partitions = partitions
        reports = ControllerReports(
            view.local_id, context.channel, lambda: partitions.replication.local_epoch
        )
        retention = ChunkRetention(machine, context.partitions, lambda: view.image, reports, tiering)
        interval_ms = context.config.integer("log.retention.check.interval.ms")
        self._retention = Repeating(
            "retention of chunks", retention.run_once, interval_ms, unexpected=machine.unexpected
        )
        self._copies = ChunkCopies(context, self.store, self.peers, reports, self._settled, self._meters)
        self._connect_copies()
        self._creation = ChunkCreation(
            view.local_id,
            machine,
            context.partitions,
            context.channel,
            lambda: view.image,
            self.peers,
            lambda: partitions.replication.local_epoch,
        )
        self._creation.on_pause = self._meters.pause_ms.update
        rolling = ChunkRolling(
            machine, context.partitions, lambda: view.image, self._creation.create, self.peers.loads
        )
        self._rolling = Repeating(
            "creation of chunks", rolling.run_once, CHECK_MS, unexpected=machine.unexpected
        )

    def _begin_tiering(self, tiered: TieredSubsystem) -> ChunkTiering:
        self._kind.tier_of = tiered.tiering.part_of
        return ChunkTiering(tiered, self.peers, self._kind.registration_of)

    def _connect_copies(self) -> None:
        """Set the callbacks between the objects that read, copy and serve chunks, and register the gauges of
        this broker's chunks."""
        self._holder.on_unreadable = self._copies.unreadable
        self._context.logs.offline_listeners.append(lambda _: self._copies.directory_failed())
        self._copies.check_topic = self._service.check_tier
        registry, copies = self._context.meters.registry, self._copies
        held, moved = registry.scoped("moldau.chunks", "Held"), registry.scoped("moldau.chunks", "Copies")
        held.gauge("Chunks", lambda: len(self.store), "Inactive chunks on this broker.")
        held.gauge("SizeBytes", copies.size_bytes, "Bytes of the inactive chunks on this broker.")
        moved.gauge("Pending", lambda: len(copies.missing()), "Chunks that this broker still has to copy.")
        moved.gauge("PendingBytes", copies.missing_bytes, "Bytes that this broker still has to copy.")

    def reconfigure(self) -> None:
        config = self._context.metadata.configs.broker
        self._copies.pace.limit(config.integer("chunk.copy.max.bytes.per.second"))

    def contribution(self) -> Contribution:
        context = self._context
        return Contribution(
            handlers=ChunkToolHandlers(self._creation, context.channel, context.authorizer).table(),
            calls=[BrokerCallHandlers[ChunkService](CALLS, self._service, context.authorizer)],
            kinds=[
                KindClaim(
                    self._kind,
                    lambda topic: topic.name not in INTERNAL_TOPICS,
                    self._stand_in,
                    wraps=self._inner,
                    gives_chunks=True,
                )
            ],
        )

    def _stand_in(self, topic: Topic, index: int) -> Partition | None:
        """Return an object that serves the inactive chunks of a partition, if this broker has no replica of
        the partition's active chunk."""
        local_id, partition = self._context.view.local_id, topic.partitions[index]
        if local_id in partition.replicas:
            return None  # This broker's replica is not open yet; it will answer later.
        if not any(local_id in chunk.isr for chunk in partition.chunks):
            return None
        key = PartitionKey(topic.topic_id, index)
        found = self._stand_ins.get(key)
        if found is not None:
            return found
        traffic = PartitionTraffic(self._context.meters.topics, topic.name)
        registration = self._kind.registration_of(key)
        start = LeaderStart(partial(self.peers.first_offset, topic.name, index))
        partition_elsewhere = PartitionElsewhere(key, topic.name, registration, start)
        found = ChunkStandIn(partition_elsewhere, self._holder, self._redirects, traffic, self._meters)
        self._stand_ins[key] = found
        return found

    async def start(self) -> None:
        self.reconfigure()
        await self.store.load()
        await self._hand_overs.load()

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Remove the chunks that are no longer assigned to this broker in the metadata."""
        removed = {topic.topic_id: topic.name for topic in delta.topics.removed.values()}
        if not (removed or delta.topics.changed):
            return
        if self._copies.changed(delta.topics.changed.values(), image):
            self._copies.wake.set()
        for chunk in self.store:
            if chunk.topic_id not in removed and chunk.topic_id not in delta.topics.changed:
                continue
            topic = image.topics.get_by_id(chunk.topic_id)
            name = removed.get(chunk.topic_id) if topic is None else topic.name
            if name is not None and (topic is None or not self._is_held(topic, chunk)):
                self._drop(name, chunk)
        if removed:
            for key in [each for each in self._stand_ins if each.topic_id in removed]:
                del self._stand_ins[key]
            self._run(self._forget(removed))

    def _drop_removed(self, topic: Topic) -> None:
        """Remove the chunks of a topic that are no longer assigned to this broker. This is done once more
        after a log has become a chunk, because a newer image may have removed this chunk in the meantime."""
        present = self._context.view.image.topics.get_by_id(topic.topic_id)
        for chunk in self.store:
            if chunk.topic_id == topic.topic_id and (present is None or not self._is_held(present, chunk)):
                self._drop(topic.name, chunk)

    def _end_of(self, chunk: ChunkId) -> int | None:
        """The offset after the last record of a chunk in the metadata."""
        partition = self._context.view.image.topics.partition(chunk.topic_id, chunk.partition)
        found = None if partition is None else partition.chunk_at(chunk.start_offset)
        return None if found is None else found.end_offset + 1

    def _is_held(self, topic: Topic, chunk: ChunkId) -> bool:
        found = topic.partitions[chunk.partition].chunk_at(chunk.start_offset)
        return found is not None and self._context.view.local_id in found.replicas

    def _drop(self, topic: str, chunk: ChunkId) -> None:
        logger.info("chunk %d of %s-%d is removed", chunk.start_offset, topic, chunk.partition)
        self._run(self.store.drop(TopicPartition(topic, chunk.partition), chunk))

    async def _forget(self, topic_ids: Iterable[Any]) -> None:
        gone = set(topic_ids)
        for topic_id, partition in self._hand_overs:
            if topic_id in gone:
                await self._hand_overs.forget(topic_id, partition)

    async def serve(self) -> None:
        """Rename the folders of chunks of unknown topics, so that these chunks are not used any more. The
        metadata are complete now, so these topics do not exist."""
        topics = self._context.view.image.topics
        for chunk in self.store:
            if topics.get_by_id(chunk.topic_id) is None:
                self._run(self.store.put_aside(chunk))
        self._copying = asyncio.get_running_loop().create_task(self._copies.run(), name="copies of chunks")
        self._retention.start()
        self._rolling.start()

    async def _settled(self) -> None:
        """Wait until the logs of this broker match the image."""
        await self._partitions.settled()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("work on a chunk failed", exc_info=error)

    async def stop(self) -> None:
        await self._rolling.stop()
        await self._retention.stop()
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
        # If a task is now turning a log into a chunk, the task is completed. Tasks that have not begun are
        # cancelled, and their work is done after the next start.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.peers.close()
        self.store.close()
