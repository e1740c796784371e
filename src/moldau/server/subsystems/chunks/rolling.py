"""Ends active chunks that are large or old, and begins the next chunks on brokers that have room.

The leader of a partition does this if the topic has ``chunk.roll.bytes`` or ``chunk.roll.ms``. In this way a
new broker gets its share of the new records, although no existing records are moved to it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.chunks.placement import rolled_replicas
from moldau.cluster.decisions.chunks.admission import original_replicas
from moldau.cluster.image.image import CHUNK_FEATURE, MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.own.chunks.create_chunks import CreateChunksResult, CreateChunksTopicPartition
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.topics.registry import PartitionRegistry

logger = logging.getLogger(__name__)

CHECK_MS: Final = 2_000
"""Pause in ms between two checks of all active chunks that this broker leads."""
LOAD_AGE_S: Final = 30.0
"""Time in seconds after which the number of bytes on each broker is requested again."""
RETRY_S: Final = 30.0
"""Pause in seconds after a failed creation of a chunk, before another attempt for the same partition."""

Loads = Callable[[], Awaitable[dict[int, int]]]
"""Returns the bytes on each active broker."""
Create = Callable[[CreateChunksTopicPartition], Awaitable[CreateChunksResult]]


class ChunkRolling:
    """Creates chunks of the partitions that this broker leads. This class is used on the event loop."""

    def __init__(
        self,
        machine: Machine,
        partitions: PartitionRegistry,
        image: Callable[[], MetadataImage],
        create: Create,
        loads: Loads,
    ) -> None:
        self._machine = machine
        self._partitions = partitions
        self._image = image
        self._create = create
        self._loads = loads
        self._load: Counter[int] = Counter()
        """The bytes on each broker, plus the expected size of the chunks that were created there since the
        last request."""
        self._load_time_s = float("-inf")
        self._waiting: dict[PartitionKey, float] = {}
        """Partitions for which the creation of a chunk has failed. Before the given time of the event loop's
        clock, such a partition gets no chunk."""

    async def run_once(self) -> None:
        """Create all chunks that are due now, one after another."""
        if not self._image().features.get(CHUNK_FEATURE, 0):
            return
        for partition in self._partitions:
            if isinstance(partition, ClassicPartition) and self._is_due(partition):
                await self._roll(partition)

    def _is_due(self, partition: ClassicPartition) -> bool:
        config = partition.log.config
        if config.chunk_roll_bytes < 0 and config.chunk_roll_ms < 0:
            return False
        metadata = self._image().topics.partition(*partition.key)
        if not partition.is_leader or metadata is None or metadata.is_reassigning:
            return False
        log, loop = partition.log, asyncio.get_running_loop()
        if log.log_end_offset <= max(metadata.start_offset, log.log_start_offset, log.local_log_start_offset):
            return False
        if self._waiting.get(partition.key, float("-inf")) > loop.time():
            return False
        if 0 <= config.chunk_roll_bytes <= log.size_bytes:
            return True
        since_ms = _begun_ms(partition, metadata)
        return 0 <= config.chunk_roll_ms <= self._machine.clock.now_ms() - since_ms and since_ms >= 0

    async def _roll(self, partition: ClassicPartition) -> None:
        key, loop = partition.key, asyncio.get_running_loop()
        name = f"{partition.topic}-{key.partition}"
        try:
            brokers = await self._brokers(partition)
            row = CreateChunksTopicPartition(
                topic_name=partition.topic, partition_id=key.partition, broker_ids=brokers
            )
            result = await self._create(row)
            if result.error_code is not ErrorCode.none:
                raise KafkaError(result.error_code, result.error_message)
        except KafkaError as error:
            logger.info("%s gets no chunk now: %s", name, error)
            self._waiting = {each: due for each, due in self._waiting.items() if due > loop.time()}
            self._waiting[key] = loop.time() + RETRY_S
            return
        self._load.update(dict.fromkeys(brokers, max(1, partition.log.config.chunk_roll_bytes)))
        logger.info("%s continues at offset %d on brokers %s", name, result.start_offset, list(brokers))

    async def _brokers(self, partition: ClassicPartition) -> tuple[int, ...]:
        """The brokers of the next chunk. Raises ``KafkaError`` if the brokers cannot be chosen."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._load_time_s >= LOAD_AGE_S:
            self._load = Counter(await self._loads())
            self._load_time_s = loop.time()
        image = self._image()
        topic = image.topics.get_by_id(partition.key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        racks = {each.broker_id: each.rack for each in image.brokers.values() if each.is_active}
        metadata = topic.partitions[partition.key.partition]
        count = len(original_replicas(metadata.replicas, metadata.adding_replicas))
        # A broker that became active since the last request for loads counts as empty, because it is probably
        # new.
        led = _led(topic, partition.key.partition)
        return rolled_replicas(count, racks, self._load, led, len(topic.partitions))


def _begun_ms(partition: ClassicPartition, metadata: PartitionRegistration) -> int:
    """The time at which the active chunk began, in ms. For the first chunk of a partition it is the time of
    its first record. It is -1 if the time is not known."""
    if metadata.start_offset >= 0:
        return metadata.start_timestamp_ms
    return partition.log.segments.segments[0].first_timestamp_ms


def _led(topic: Topic, without: int) -> Counter[int]:
    """The number of the topic's partitions that each broker leads. The partition ``without`` is not
    counted."""
    return Counter(each.leader for index, each in enumerate(topic.partitions) if index != without)
