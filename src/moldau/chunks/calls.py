"""The calls between brokers about chunks (APIs 11142-11144, 11147 and 11148)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from moldau.network.own_calls import BrokerCall, Fields
from moldau.protocol.own.chunks import (
    fetch_chunk_file,
    find_in_chunk,
    hand_over_chunk,
    read_chunk,
    store_chunk_segment,
)
from moldau.protocol.own.rights import Right
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset

__all__ = [
    "CALLS",
    "FETCH_CHUNK_FILE",
    "FIND_IN_CHUNK",
    "HAND_OVER_CHUNK",
    "HAND_OVER_FILE",
    "READ_CHUNK",
    "STORE_CHUNK_SEGMENT",
    "ChunkFileFetch",
    "ChunkFilePiece",
    "ChunkRead",
    "ChunkRecords",
    "ChunkSearch",
    "ChunkSegment",
    "ChunkService",
    "HandedOver",
    "SegmentCopy",
]

HAND_OVER_FILE: Final = "hand-over"
"""A request for a file with this name gets the state at the first offset of the active chunk, from a broker
of this chunk. The folder of a chunk has no file with this name."""


class ChunkRead(NamedTuple):
    """A read of an inactive chunk. It has the same fields as the request."""

    topic_id: UUID
    partition_index: int
    start_offset: int
    fetch_offset: int
    max_bytes: int
    min_one_batch: bool = True
    end_offset: int = -1
    """Batches at or after this offset are not returned; -1 means the end of the chunk."""
    with_aborted: bool = False


class ChunkRecords(NamedTuple):
    """Whole batches of a chunk. There are no batches if only ``aborted`` was requested, or if the offset is
    after the last batch."""

    views: Sequence[memoryview | bytes] = ()
    size_bytes: int = 0
    next_offset: int = -1
    """The offset after the last record of the batches."""
    aborted: Sequence[AbortedTransaction] = ()
    open_offset: int = -1
    """The first offset of a transaction that is open at the end of the chunk; -1 if there is no such
    transaction."""


class ChunkSearch(NamedTuple):
    """A search by timestamp in an inactive chunk. It has the same fields as the request."""

    topic_id: UUID
    partition_index: int
    start_offset: int
    timestamp: int
    from_offset: int = -1


class ChunkFileFetch(NamedTuple):
    """A request for a piece of a chunk's file, or for the list of files. It has the same fields as the
    request message."""

    topic_id: UUID
    partition_index: int
    start_offset: int
    name: str = ""
    position: int = 0
    max_bytes: int = 0


class ChunkFilePiece(NamedTuple):
    """A piece of a file with its CRC-32C, or the sizes of all files by name."""

    files: Mapping[str, int]
    content: bytes = b""
    checksum: int = 0


class SegmentCopy(NamedTuple):
    """A request to store the segment of a chunk in the remote tier, or to describe it. It has the same fields
    as the request message."""

    topic_id: UUID
    partition_index: int
    start_offset: int
    segment_offset: int
    segment_id: UUID = store_chunk_segment.NO_SEGMENT
    leader_id: int = -1
    event_timestamp: int = -1

    @property
    def is_stored(self) -> bool:
        """Whether the segment must be stored. Otherwise the request only asks for its description."""
        return self.segment_id != store_chunk_segment.NO_SEGMENT


class ChunkSegment(NamedTuple):
    """A segment of a chunk. ``end_offset`` is its last offset. ``leader_epochs`` has pairs of an epoch and
    its first offset in the segment."""

    base_offset: int
    end_offset: int
    max_timestamp: int
    size_bytes: int
    has_aborted: bool
    leader_epochs: Sequence[tuple[int, int]]
    custom_metadata: bytes | None = None
    """The result of the storage manager that has stored the segment."""


class HandedOver(NamedTuple):
    """The state of a partition at the border between two chunks, for a replica of the next active chunk. The
    border is ``start_offset``, the first offset of that chunk. The object has the same fields as the request,
    but ``leader_epochs`` has another type."""

    topic_id: UUID
    partition_index: int
    leader_id: int
    leader_epoch: int
    start_offset: int
    log_start_offset: int
    producer_snapshot: bytes
    leader_epochs: Sequence[tuple[int, int]]


class ChunkService(Protocol):
    """Handles the calls at a broker. The methods raise ``KafkaError``."""

    async def read(self, wanted: ChunkRead) -> ChunkRecords: ...

    async def find(self, wanted: ChunkSearch) -> FoundOffset: ...

    async def fetch_file(self, wanted: ChunkFileFetch) -> ChunkFilePiece: ...

    async def take_over(self, state: HandedOver) -> None:
        """Store the state durably."""
        ...

    async def store_segment(self, wanted: SegmentCopy) -> ChunkSegment: ...


async def _read(service: ChunkService, wanted: ChunkRead) -> ChunkRecords:
    return await service.read(wanted)


async def _find(service: ChunkService, wanted: ChunkSearch) -> FoundOffset:
    return await service.find(wanted)


async def _fetch_file(service: ChunkService, wanted: ChunkFileFetch) -> ChunkFilePiece:
    return await service.fetch_file(wanted)


async def _take_over(service: ChunkService, state: HandedOver) -> None:
    await service.take_over(state)


async def _store_segment(service: ChunkService, wanted: SegmentCopy) -> ChunkSegment:
    return await service.store_segment(wanted)


def _fields(arguments: Any, version: int) -> Fields:
    fields: Fields = arguments._asdict()
    return fields


def _records(found: ChunkRecords, version: int) -> Fields:
    return {
        "records": found.views,
        "next_offset": found.next_offset,
        "open_offset": found.open_offset,
        "aborted": [
            read_chunk.ReadChunkAborted(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in found.aborted
        ],
    }


def _found_records(response: Any) -> ChunkRecords:
    records = response.records or b""
    return ChunkRecords(
        (records,) if len(records) else (),
        len(records),
        response.next_offset,
        [AbortedTransaction(each.producer_id, each.first_offset) for each in response.aborted],
        response.open_offset,
    )


def _hand_over(state: HandedOver, version: int) -> Fields:
    epochs = [
        hand_over_chunk.HandedOverEpoch(leader_epoch=epoch, start_offset=start)
        for epoch, start in state.leader_epochs
    ]
    return {**state._asdict(), "leader_epochs": epochs}


def handed_over(request: Any) -> HandedOver:
    """The state that a request contains."""
    return HandedOver(
        request.topic_id,
        request.partition_index,
        request.leader_id,
        request.leader_epoch,
        request.start_offset,
        request.log_start_offset,
        bytes(request.producer_snapshot),
        [(each.leader_epoch, each.start_offset) for each in request.leader_epochs],
    )


READ_CHUNK: Final[BrokerCall[ChunkService, ChunkRead, ChunkRecords]] = BrokerCall(
    request=read_chunk.REQUEST,
    response=read_chunk.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_read,
    request_fields=_fields,
    arguments=lambda request: ChunkRead(*(getattr(request, name) for name in ChunkRead._fields)),
    response_fields=_records,
    result=_found_records,
)
FIND_IN_CHUNK: Final[BrokerCall[ChunkService, ChunkSearch, FoundOffset]] = BrokerCall(
    request=find_in_chunk.REQUEST,
    response=find_in_chunk.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_find,
    request_fields=_fields,
    arguments=lambda request: ChunkSearch(*(getattr(request, name) for name in ChunkSearch._fields)),
    response_fields=lambda found, version: {
        "offset": found.offset,
        "timestamp": found.timestamp_ms,
        "leader_epoch": found.leader_epoch,
    },
    result=lambda response: FoundOffset(response.offset, response.timestamp, response.leader_epoch),
)
HAND_OVER_CHUNK: Final[BrokerCall[ChunkService, HandedOver, None]] = BrokerCall(
    request=hand_over_chunk.REQUEST,
    response=hand_over_chunk.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_take_over,
    request_fields=_hand_over,
    arguments=handed_over,
    response_fields=lambda _, version: {},
    result=lambda response: None,
)
FETCH_CHUNK_FILE: Final[BrokerCall[ChunkService, ChunkFileFetch, ChunkFilePiece]] = BrokerCall(
    request=fetch_chunk_file.REQUEST,
    response=fetch_chunk_file.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_fetch_file,
    request_fields=_fields,
    arguments=lambda request: ChunkFileFetch(*(getattr(request, name) for name in ChunkFileFetch._fields)),
    response_fields=lambda piece, version: {
        "files": [
            fetch_chunk_file.ChunkFile(name=name, size_bytes=size) for name, size in piece.files.items()
        ],
        "content": piece.content,
        "checksum": piece.checksum,
    },
    result=lambda response: ChunkFilePiece(
        {each.name: each.size_bytes for each in response.files}, bytes(response.content), response.checksum
    ),
)
STORE_CHUNK_SEGMENT: Final[BrokerCall[ChunkService, SegmentCopy, ChunkSegment]] = BrokerCall(
    request=store_chunk_segment.REQUEST,
    response=store_chunk_segment.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_store_segment,
    request_fields=_fields,
    arguments=lambda request: SegmentCopy(*(getattr(request, name) for name in SegmentCopy._fields)),
    response_fields=lambda segment, version: {
        **segment._asdict(),
        "leader_epochs": [
            store_chunk_segment.StoredSegmentEpoch(leader_epoch=epoch, start_offset=start)
            for epoch, start in segment.leader_epochs
        ],
    },
    result=lambda response: ChunkSegment(
        response.base_offset,
        response.end_offset,
        response.max_timestamp,
        response.size_bytes,
        response.has_aborted,
        [(each.leader_epoch, each.start_offset) for each in response.leader_epochs],
        None if response.custom_metadata is None else bytes(response.custom_metadata),
    ),
)

CALLS: Final[Mapping[int, BrokerCall[ChunkService, Any, Any]]] = MappingProxyType(
    {
        call.api_key: call
        for call in (READ_CHUNK, FIND_IN_CHUNK, HAND_OVER_CHUNK, FETCH_CHUNK_FILE, STORE_CHUNK_SEGMENT)
    }
)
