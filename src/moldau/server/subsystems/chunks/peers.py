"""The brokers that have inactive chunks. This broker reads its own chunks, and calls other brokers."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from crc32c import crc32c

from moldau.chunks.calls import (
    FETCH_CHUNK_FILE,
    FIND_IN_CHUNK,
    HAND_OVER_CHUNK,
    HAND_OVER_FILE,
    READ_CHUNK,
    STORE_CHUNK_SEGMENT,
    ChunkFileFetch,
    ChunkFilePiece,
    ChunkRead,
    ChunkRecords,
    ChunkSearch,
    ChunkSegment,
    HandedOver,
    SegmentCopy,
)
from moldau.chunks.hand_overs import HandOvers, auxiliary_state, decode_state
from moldau.chunks.holder import PIECE_MAX_BYTES, ChunkHolder
from moldau.chunks.meters import ChunkMeters
from moldau.chunks.redirects import by_preference
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.network.client.rpc_client import RpcClient
from moldau.network.own_calls import BrokerCall, BrokerChannel
from moldau.protocol.api import ApiKey
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.context import BrokerContext
from moldau.server.subsystems.chunks.tiering import ChunkSegmentStore
from moldau.storage.chunks.chunk_store import ChunkId
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.producers.producer_snapshot import CorruptSnapshotError

logger = logging.getLogger(__name__)

R = TypeVar("R")
A = TypeVar("A", ChunkRead, ChunkSearch, ChunkFileFetch)

_PeerRequest = ChunkRead | ChunkSearch | ChunkFileFetch | SegmentCopy

READ_TIMEOUT_MS: Final = 10_000
"""Time-out in ms of a call that reads a chunk. After a time-out, another broker that has the chunk is called.
"""
FIRST_OFFSET_TIMEOUT_MS: Final = 1_000
"""Time-out in ms of a request for the first offset of a partition. Consumers wait for the response."""
HAND_OVER_TIMEOUT_MS: Final = 5_000
STORE_TIMEOUT_MS: Final = 300_000
"""Time-out in ms of a call that stores a segment in the remote tier."""
_INCARNATION_CHECK_S: Final = 1.0


class ChunkPeers:
    """Reads inactive chunks from this broker's disks, and from other brokers over the network. Implements
    :class:`moldau.chunks.reading.ChunkReads`."""

    def __init__(
        self,
        context: BrokerContext,
        holder: ChunkHolder,
        hand_overs: HandOvers,
        meters: ChunkMeters,
        service: "ChunkCallService",
    ) -> None:
        """``service`` is called directly when this broker is the target of a call."""
        self.service = service
        self._meters = meters
        self._view = context.view
        self._listener_name = context.config.inter_broker_listener_name
        self._rack = context.config.rack
        self._client = RpcClient(context.machine.entropy, client_id=f"chunks-{context.view.local_id}")
        self._holder = holder
        self._hand_overs = hand_overs

    async def read(self, topic: str, chunk: ChunkRegistration, wanted: ChunkRead) -> ChunkRecords:
        return await self._ask(READ_CHUNK, chunk, wanted, lambda: self._holder.read(topic, wanted))

    async def find(
        self, topic: str, chunk: ChunkRegistration, wanted: ChunkSearch, lookup: RecordLookup
    ) -> FoundOffset:
        return await self._ask(FIND_IN_CHUNK, chunk, wanted, lambda: self._holder.find(topic, wanted, lookup))

    async def fetch_file(self, chunk: ChunkRegistration, wanted: ChunkFileFetch) -> ChunkFilePiece:
        """Fetch a part of a chunk's file, from this broker or from another broker. Raises ``KafkaError`` if
        no broker can send it."""
        piece = await self._ask(FETCH_CHUNK_FILE, chunk, wanted, lambda: self._holder.fetch_file(wanted))
        if crc32c(piece.content) != piece.checksum:
            raise KafkaError(ErrorCode.corrupt_message, f"a piece of {wanted.name} was changed on its way")
        return piece

    async def _ask(
        self,
        call: BrokerCall[Any, A, R],
        chunk: ChunkRegistration,
        wanted: A,
        read_here: Callable[[], Coroutine[Any, Any, R]],
    ) -> R:
        """Read the chunk from this broker's copy by ``read_here``. If this broker has no copy, or cannot read
        it, send ``call`` to another broker that has the chunk."""
        error = KafkaError(ErrorCode.kafka_storage_error, "no broker with the chunk is alive")
        if self._has(chunk, wanted):
            try:
                return self._read_here(await read_here())
            except KafkaError as failure:
                error = failure
            logger.warning("chunk %d cannot be read on this broker: %s", chunk.start_offset, error)
        found = await self._call_holder(call, chunk, wanted, error)
        if isinstance(found, ChunkRecords):
            self._meters.proxied_bytes.mark(found.size_bytes)
        return found

    def _read_here(self, found: R) -> R:
        if isinstance(found, ChunkRecords):
            self._meters.local_bytes.mark(found.size_bytes)
        return found

    def _has(self, chunk: ChunkRegistration, wanted: _PeerRequest) -> bool:
        return self._view.local_id in chunk.isr and self._holder.has(ChunkId(*wanted[:3]))

    async def _call_holder(
        self, call: BrokerCall[Any, A, R], chunk: ChunkRegistration, wanted: A, error: KafkaError
    ) -> R:
        """Call the other brokers that have the chunk, one after the other. Raises the error of the last call.
        Raises the given error if there are no other brokers."""
        for broker_id in self._holders(chunk, wanted):
            try:
                return await self._channel(broker_id, READ_TIMEOUT_MS).call(call, wanted)
            except KafkaError as failure:
                logger.info("broker %d cannot read chunk %d: %s", broker_id, chunk.start_offset, failure)
                error = failure
        raise error

    def _holders(self, chunk: ChunkRegistration, wanted: _PeerRequest) -> Iterator[int]:
        """The other brokers that have a chunk."""
        brokers = self._view.image.brokers
        others = [each for each in chunk.isr if each in brokers and each != self._view.local_id]
        place = PartitionKey(wanted.topic_id, wanted.partition_index), wanted.start_offset
        return iter(by_preference(others, place, brokers, self._rack))

    def holders(self, chunk: ChunkRegistration, wanted: SegmentCopy) -> list[int]:
        """The brokers that have a chunk. If this broker has it, this broker is the first."""
        here = [self._view.local_id] if self._has(chunk, wanted) else []
        return [*here, *self._holders(chunk, wanted)]

    async def store_segment(self, broker_id: int, wanted: SegmentCopy) -> ChunkSegment:
        """Let a broker store a segment of its chunk in the remote tier, or describe it. Raises
        ``KafkaError``."""
        if broker_id == self._view.local_id:
            return await self.service.store_segment(wanted)
        if not wanted.is_stored:
            return await self._channel(broker_id, READ_TIMEOUT_MS).call(STORE_CHUNK_SEGMENT, wanted)
        call = self._channel(broker_id, STORE_TIMEOUT_MS).call(STORE_CHUNK_SEGMENT, wanted)
        return await self._while_registered(broker_id, call)

    async def _while_registered(self, broker_id: int, call: Coroutine[Any, Any, R]) -> R:
        """The result of a long call to a broker. If the broker is fenced or starts again meanwhile, the call
        fails. A connection to a host without power does not end by itself, so the time-out alone would let
        the caller wait too long."""
        before = self._incarnation(broker_id)
        task = asyncio.create_task(call)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_INCARNATION_CHECK_S)
                if not task.done() and self._incarnation(broker_id) != before:
                    raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} has ended")
            return await task
        finally:
            task.cancel()

    def _incarnation(self, broker_id: int) -> int | None:
        """The broker epoch of a broker that is not fenced; ``None`` if it is fenced or not registered."""
        broker = self._view.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.epoch

    async def hand_over(self, broker_id: int, state: HandedOver) -> None:
        """Send the state at a border to a broker, which may be this broker. Raises ``KafkaError`` if the call
        fails."""
        if broker_id == self._view.local_id:
            await self.service.take_over(state)
            return
        await self._channel(broker_id, HAND_OVER_TIMEOUT_MS).call(HAND_OVER_CHUNK, state)

    async def handed_over(self, key: PartitionKey, partition: PartitionRegistration) -> AuxiliaryState | None:
        """The state at the first offset of the active chunk, from another broker of this chunk. This broker
        keeps the state, so that it can send it to other brokers."""
        wanted = ChunkFileFetch(*key, partition.start_offset, HAND_OVER_FILE, 0, PIECE_MAX_BYTES)
        brokers = self._view.image.brokers
        # Only the leader and the in-sync replicas are asked. Any other replica may have a state from a
        # creation that failed.
        for broker_id in dict.fromkeys((partition.leader, *partition.isr)):
            if broker_id == self._view.local_id or broker_id not in brokers or brokers[broker_id].fenced:
                continue
            try:
                state = decode_state(await self._whole(broker_id, wanted))
                found = auxiliary_state(state)
            except (KafkaError, ProtocolError, CorruptSnapshotError) as error:
                logger.info("broker %d has no state at %d: %s", broker_id, partition.start_offset, error)
                continue
            with suppress(KafkaError):
                await self._hand_overs.keep(state)
            return found
        return None

    async def _whole(self, broker_id: int, wanted: ChunkFileFetch) -> bytes:
        channel, content = self._channel(broker_id, READ_TIMEOUT_MS), b""
        while True:
            piece = await channel.call(FETCH_CHUNK_FILE, wanted._replace(position=len(content)))
            content += piece.content
            if len(piece.content) < wanted.max_bytes:
                return content

    async def loads(self) -> dict[int, int]:
        """Return the number of bytes on each active broker, in its logs and in its inactive chunks. If the
        size of a broker's logs is not known, its logs count as many bytes as the largest known logs of a
        broker."""
        image = self._view.image
        active = [each.broker_id for each in image.brokers.values() if each.is_active]
        sizes = await asyncio.gather(*map(self._log_bytes, active), return_exceptions=True)
        known = [size for size in sizes if not isinstance(size, BaseException)]
        found = {
            broker_id: max(known, default=0) if isinstance(size, BaseException) else size
            for broker_id, size in zip(active, sizes, strict=True)
        }
        for topic in image.topics:
            for partition in topic.partitions:
                for chunk in partition.chunks:
                    for broker_id in chunk.replicas:
                        if broker_id in found:
                            found[broker_id] += chunk.size_bytes
        return found

    async def _log_bytes(self, broker_id: int) -> int:
        """The bytes of the partitions' logs on a broker. Raises ``KafkaError`` if the call fails."""
        address = self._view.address(broker_id, self._listener_name)
        if address is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not known")
        host, port = address
        everything = DescribeLogDirsRequest(topics=None)
        answer = await self._client.request(
            host, port, ApiKey.DESCRIBE_LOG_DIRS, None, everything, READ_TIMEOUT_MS
        )
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code)
        rows = [row for folder in answer.results for topic in folder.topics for row in topic.partitions]
        return sum(row.partition_size for row in rows)

    async def first_offset(self, topic: str, index: int, partition: PartitionRegistration) -> int:
        """The first offset of a partition, from its leader. Raises ``KafkaError``."""
        address = self._view.address(partition.leader, self._listener_name)
        if address is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {partition.leader} is not known")
        row = ListOffsetsPartition(partition_index=index, timestamp=EARLIEST_TIMESTAMP)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[row])])
        answer = await self._client.request(
            *address, ApiKey.LIST_OFFSETS, None, request, FIRST_OFFSET_TIMEOUT_MS
        )
        found = answer.topics[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            raise KafkaError(found.error_code)
        return int(found.offset)

    def _channel(self, broker_id: int, timeout_ms: int) -> BrokerChannel:
        address = self._view.address(broker_id, self._listener_name)
        if address is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not known")
        return BrokerChannel(self._client, *address, timeout_ms)

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        await self._client.close()


class ChunkCallService:
    """Answers the calls of other brokers: a :class:`moldau.chunks.calls.ChunkService`."""

    def __init__(
        self,
        context: BrokerContext,
        holder: ChunkHolder,
        hand_overs: HandOvers,
        tier: ChunkSegmentStore | None,
    ) -> None:
        """``tier`` is ``None`` if this broker has no remote tier."""
        self._view = context.view
        self._configs = context.metadata.configs
        self._holder = holder
        self._hand_overs = hand_overs
        self._tier = tier

    async def read(self, wanted: ChunkRead) -> ChunkRecords:
        return await self._holder.read(self._topic(wanted), wanted)

    async def find(self, wanted: ChunkSearch) -> FoundOffset:
        topic = self._topic(wanted)
        lookup = self._holder.lookup(topic, wanted.partition_index)
        return await self._holder.find(topic, wanted, lookup)

    async def fetch_file(self, wanted: ChunkFileFetch) -> ChunkFilePiece:
        if not wanted.name:
            # Another broker begins to copy the chunk. An incomplete copy must not be copied.
            await self._holder.check(self._topic(wanted), ChunkId(*wanted[:3]))
        return await self._holder.fetch_file(wanted)

    async def take_over(self, state: HandedOver) -> None:
        self.check_tier(self._topic(state))
        await self._hand_overs.keep(state)

    def check_tier(self, topic: str) -> None:
        """Raise ``KafkaError`` if this broker cannot copy chunks of a topic to the remote tier."""
        if self._tier is None and self._configs.topic(topic).is_tiered:
            reason = "the topic has remote.storage.enable=true, and this broker has no remote tier"
            raise KafkaError(ErrorCode.invalid_config, reason)

    async def store_segment(self, wanted: SegmentCopy) -> ChunkSegment:
        if self._tier is None:
            raise KafkaError(ErrorCode.invalid_request, "this broker has no remote tier")
        return await self._tier.store_segment(self._topic(wanted), wanted)

    def _topic(self, wanted: _PeerRequest | HandedOver) -> str:
        name = self._view.image.topics.name_of(wanted.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        return name
