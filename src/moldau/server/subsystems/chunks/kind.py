"""Classic partitions that may have inactive chunks, which contain their older records (KIP-1114).

The log of the active chunk is the log of the partition. When the image shows that a chunk has ended, the old
log becomes the chunk's log. The replicas of the new active chunk begin at the border.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from moldau.chunks.chunk_retention import first_offset
from moldau.chunks.hand_overs import HandOvers
from moldau.chunks.log_fates import LogFate, LogRange, fate_of
from moldau.chunks.reading import ChunkedPart, ChunkReads, state_at_border
from moldau.chunks.redirects import ChunkRedirects
from moldau.chunks.tiered_part import TierBelow, TieredChunkedPart
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.appending.freezing import is_frozen
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import StopReason
from moldau.runtime.errors import KafkaError
from moldau.server.topics.partition_kinds import PartitionKind
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_OF_EARLIER_CHUNK: Final = frozenset({LogFate.CARVE, LogFate.DISCARD})

FindState = Callable[[Topic, int], Awaitable[AuxiliaryState]]


class ChunkLogs:
    """The logs and the chunks of this broker. For each existing log, this class decides whether the log
    remains the partition's log, becomes the log of an inactive chunk, or is no longer used."""

    def __init__(self, broker_id: int, logs: LogManager, store: ChunkStore, hand_overs: HandOvers) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._store = store
        self._hand_overs = hand_overs

    def fate(self, topic: Topic, index: int) -> tuple[LogFate, ChunkRegistration | None]:
        """Return the next step for the log of a partition. The result is KEEP if the log needs no step."""
        partition = topic.partitions[index]
        if partition.start_offset < 0:
            return LogFate.KEEP, None
        log = self._logs.get(TopicPartition(topic.name, index))
        if log is None or log.topic_id != topic.topic_id or log.is_offline:
            return LogFate.KEEP, None
        found = LogRange(log.segments.segments[0].base_offset, log.log_end_offset)
        state = self._hand_overs.at(topic.topic_id, index, partition.start_offset)
        fate, chunk = fate_of(found, partition, self._broker_id, has_state=state is not None, has_chunk=False)
        if fate is LogFate.CARVE and chunk is not None and self._id(topic, index, chunk) in self._store:
            return LogFate.DISCARD, chunk
        return fate, chunk

    async def exchange(self, topic: Topic, index: int, find_state: FindState) -> None:
        """Do the next step for the log of a closed partition. Raises ``KafkaError`` if this step fails.

        ``find_state`` is called when this broker needs the state at the border of the active chunk and does
        not have it.
        """
        name = TopicPartition(topic.name, index)
        fate, chunk = self.fate(topic, index)
        if fate is LogFate.CARVE and chunk is not None:
            await self._store.carve(name, self._id(topic, index, chunk), chunk.end_offset + 1)
        elif fate is LogFate.DISCARD:
            self.discard(name)
        elif fate is LogFate.BEGIN:
            border = topic.partitions[index].start_offset
            log, state = self._logs.get(name), self._hand_overs.at(topic.topic_id, index, border)
            assert log is not None, f"{name} has no log"
            if state is None:
                logger.warning("%s: no state was handed over at %d", name, border)
                state = await find_state(topic, index)
            await log.begin_behind_remote(state)

    def discard(self, name: TopicPartition) -> None:
        """Rename the folder of an earlier chunk's log. The log is not used, because the other brokers of that
        chunk may have lost its records."""
        logger.warning("%s: the log is not used: %s", name, LogFate.DISCARD.value)
        self._logs.put_aside(name)

    def prepare(self, topic: Topic, index: int) -> None:
        """Set the known properties of an active chunk's log before the partition opens this log."""
        name, border = TopicPartition(topic.name, index), topic.partitions[index].start_offset
        log, home = self._logs.get(name), self._logs.home_of(name)
        if border < 0 or log is None or home is None:
            return
        log.start.has_chunks = True
        # All records before the border are committed, so the high watermark is at least the border.
        home.high_watermarks[name] = max(home.high_watermarks.get(name, 0), border)

    @staticmethod
    def _id(topic: Topic, index: int, chunk: ChunkRegistration) -> ChunkId:
        return ChunkId(topic.topic_id, index, chunk.start_offset)


class ChunkedKind(PartitionKind[ClassicPartition]):
    """Wraps the kind of classic partitions. That kind handles partitions without chunks."""

    def __init__(
        self,
        inner: PartitionKind[ClassicPartition],
        logs: ChunkLogs,
        reads: ChunkReads,
        redirects: ChunkRedirects,
        image: Callable[[], MetadataImage],
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``run`` runs a task until the broker stops."""
        self._redirects = redirects
        self._inner = inner
        self._logs = logs
        self._reads = reads
        self._image = image
        self._run = run
        self.on_exchanged: Callable[[Topic], None] = lambda _: None
        """Called with a topic after a log of the topic was exchanged. The old log may have become the log of
        a chunk."""
        self.tier_of: Callable[[ClassicPartition], TierBelow] | None = None
        """Returns the records of a tiered partition in the remote tier; ``None`` without a remote tier."""
        self._exchanging = asyncio.Lock()
        self._carving: set[TopicPartition] = set()
        """Partitions that have no replica on this broker any more, and whose logs are becoming chunks. Their
        folders still have the old names."""

    def log_config(self, topic: Topic) -> LogConfig | None:
        return self._inner.log_config(topic)

    def must_exchange(self, topic: Topic, index: int) -> bool:
        if self._carving and TopicPartition(topic.name, index) in self._carving:
            return True
        if topic.partitions[index].start_offset < 0:
            return False
        return self._logs.fate(topic, index)[0] is not LogFate.KEEP

    async def exchange(self, topic: Topic, index: int) -> None:
        async with self._exchanging:
            await self._logs.exchange(topic, index, self._find_state)
        self.on_exchanged(topic)

    async def _find_state(self, topic: Topic, index: int) -> AuxiliaryState:
        """Return the state at the border of the active chunk. It is requested from the other brokers of the
        active chunk, and then from the brokers of the last inactive chunk. If no broker has the state, the
        result is an empty state, because the leader must begin at the border even then."""
        metadata = topic.partitions[index]
        border = metadata.start_offset
        config = self._inner.log_config(topic)
        start_offset = first_offset(metadata.chunks, border)
        if config is not None and config.remote_storage_enable:
            start_offset = 0  # A replica that leads gets the start from the remote tier.
        key = PartitionKey(topic.topic_id, index)
        try:
            return await state_at_border(self._reads, key, metadata, border, start_offset)
        except KafkaError as error:
            logger.error(
                "%s-%d begins at %d without its producers, because their state is lost: %s",
                topic.name,
                index,
                border,
                error,
            )
            return AuxiliaryState(border, start_offset, (), ())

    def retire(self, topic: Topic, index: int) -> bool:
        fate = self._logs.fate(topic, index)[0] if index < len(topic.partitions) else LogFate.KEEP
        if fate is LogFate.CARVE:
            self._carving.add(TopicPartition(topic.name, index))
            self._run(self._carve(topic, index))
        elif fate is LogFate.DISCARD:
            self._logs.discard(TopicPartition(topic.name, index))
        return fate in _OF_EARLIER_CHUNK

    async def _carve(self, topic: Topic, index: int) -> None:
        try:
            await self.exchange(topic, index)
        except KafkaError as error:
            logger.error("%s-%d cannot become a chunk: %s", topic.name, index, error)
        finally:
            self._carving.discard(TopicPartition(topic.name, index))

    def open(self, topic: Topic, index: int) -> ClassicPartition:
        self._logs.prepare(topic, index)
        return self._inner.open(topic, index)

    def apply_role(self, partition: ClassicPartition, topic: Topic, applied: Callable[[], None]) -> None:
        metadata = topic.partitions[partition.key.partition]
        if metadata.start_offset >= 0:
            if partition.remote.part is None:
                self._begin_remote(partition)
            applied = partial(self._role_applied, partition, metadata, applied)
        self._inner.apply_role(partition, topic, applied)

    def _begin_remote(self, partition: ClassicPartition) -> None:
        registration = self.registration_of(partition.key)
        part = ChunkedPart(partition, registration, self._reads, self._redirects)
        if partition.log.config.remote_storage_enable and self.tier_of is not None:
            tier = self.tier_of(partition)
            both = TieredChunkedPart(partition, registration, part, tier)
            partition.remote.begin(both, chunks=both)
        else:
            partition.remote.begin(part, is_tiered=False, chunks=part)

    @staticmethod
    def _role_applied(
        partition: ClassicPartition, metadata: PartitionRegistration, applied: Callable[[], None]
    ) -> None:
        """Move the start of a new leader's log to the first remaining chunk. The previous leader may have
        dropped earlier chunks, and may have stopped before this replica received the new start. If the
        partition is tiered, the dropped chunks are in the remote tier."""
        log, first = partition.log, first_offset(metadata.chunks, metadata.start_offset)
        is_behind = log.log_start_offset < first and not log.config.remote_storage_enable
        if partition.is_leader and is_behind:
            with suppress(KafkaError):  # The disk has failed; the code that owns the log handles it.
                log.update_log_start_offset(min(first, log.log_end_offset))
        applied()

    def registration_of(self, key: PartitionKey) -> Callable[[], PartitionRegistration | None]:
        """Return a function that returns the partition in the newest image."""
        topic_id, index = key

        def registration() -> PartitionRegistration | None:
            topic = self._image().topics.get_by_id(topic_id)
            return None if topic is None else topic.partitions[index]

        return registration

    def reconfigure(self, partition: ClassicPartition) -> None:
        self._inner.reconfigure(partition)

    def close(self, partition: ClassicPartition, reason: StopReason) -> None:
        topic, index = self._image().topics.get_by_id(partition.key.topic_id), partition.key.partition
        is_removed = reason is StopReason.REPLICA_REMOVED and topic is not None
        if is_removed and topic is not None and self._logs.fate(topic, index)[0] in _OF_EARLIER_CHUNK:
            self._inner.close(partition, StopReason.KEPT)
            self.retire(topic, index)
        else:
            self._inner.close(partition, reason)

    def may_suspend(self, partition: ClassicPartition) -> bool:
        # If the log of a frozen partition was moved to another folder now, the partition would be opened
        # again without the freeze. It could then append records in the same leader epoch.
        return not is_frozen(partition) and self._inner.may_suspend(partition)

    def coordinator_replica(self, partition: ClassicPartition) -> ClassicPartition | None:
        return self._inner.coordinator_replica(partition)
