"""The answers of a broker to the calls of tools about its remote tier."""

from collections.abc import Callable, Collection, Iterator

from moldau.network.authorization import Authorizer
from moldau.network.own_serving import BrokerCallHandlers, CallHandlers
from moldau.protocol.own.tiered.describe_topics import (
    TieredDescribedPartition,
    TieredDescribedTopic,
)
from moldau.protocol.own.tiered.list_segments import TieredSegment, TieredSegmentEpoch
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
)
from moldau.replication.partition_interface import (
    Partition,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.topics.registry import PartitionRegistry
from moldau.tiered.calls import CALLS, ListedSegments, ListSegmentsCall, TieredCalls
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.manager import RemoteLogMetadataManager, RemoteMetadataNotReadyError
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteStorageError

SEGMENTS_MAX = 10_000
"""Maximum number of segments in a response, even if the request asks for more. A response with so many
segments takes about two megabytes."""


def tool_calls(
    partitions: PartitionRegistry,
    metadata: RemoteLogMetadataManager | None,
    is_tiered: Callable[[str], bool],
    chunk_bytes: Callable[[PartitionKey], int],
    authorizer: Authorizer,
) -> CallHandlers:
    """The calls of tools, which a :class:`LocalTieredCalls` answers."""
    tier = LocalTieredCalls(partitions, metadata, is_tiered, chunk_bytes)
    return BrokerCallHandlers[TieredCalls](CALLS, tier, authorizer)


class LocalTieredCalls:
    """Answers the calls of tools for the partitions that this broker leads. Implements
    :class:`TieredCalls`."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        metadata: RemoteLogMetadataManager | None,
        is_tiered: Callable[[str], bool],
        chunk_bytes: Callable[[PartitionKey], int],
    ) -> None:
        """``metadata`` is None when there is no remote tier. ``is_tiered`` returns whether a topic is tiered.
        ``chunk_bytes`` returns the size of a partition's inactive chunks."""
        self._chunk_bytes = chunk_bytes
        self._partitions = partitions
        self._manager = metadata
        self._is_tiered = is_tiered

    async def describe_topics(self, names: Collection[str] | None) -> list[TieredDescribedTopic]:
        """Return the offsets and the sizes of the local and the remote tier."""
        metadata = self._metadata()
        wanted = None if names is None else set(names)
        topics: dict[str, TieredDescribedTopic] = {}
        for partition in self._tiered(metadata, wanted):
            row = await _describe(metadata, partition, self._chunk_bytes(partition.key))
            topic = topics.get(partition.topic)
            before = () if topic is None else topic.partitions
            topics[partition.topic] = TieredDescribedTopic(
                name=partition.topic, topic_id=partition.key.topic_id, partitions=[*before, row]
            )
        return list(topics.values())

    def _metadata(self) -> RemoteLogMetadataManager:
        if self._manager is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "this broker has no remote tier (remote.log.storage.system.enable)",
            )
        return self._manager

    def _tiered(self, metadata: RemoteLogMetadataManager, wanted: set[str] | None) -> Iterator[Partition]:
        for partition in self._partitions:
            name = partition.topic
            if not partition.is_leader or (wanted is not None and name not in wanted):
                continue
            if self._is_tiered(name) or metadata.is_ready(_identity(partition)):
                yield partition

    async def list_segments(self, call: ListSegmentsCall) -> ListedSegments:
        """All known segments in every state. One call returns one page."""
        metadata = self._metadata()
        partition = self._partitions.get(call.topic, call.partition_index)
        if partition is None or not partition.is_leader:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"{call.topic}-{call.partition_index} is not led by this broker",
            )
        try:
            segments = metadata.list_remote_log_segments(_identity(partition))
        except RemoteStorageError as error:
            raise KafkaError(_code_of(error), str(error)) from error
        skip, limit = max(0, call.skip), max(0, min(call.limit, SEGMENTS_MAX))
        rows = [_row(each) for each in segments[skip : skip + limit]]
        return ListedSegments(partition.key.topic_id, rows)


async def _describe(
    metadata: RemoteLogMetadataManager, partition: Partition, chunk_bytes: int
) -> TieredDescribedPartition:
    state = partition.state()
    row = TieredDescribedPartition(
        partition_index=partition.key.partition,
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
        local_size_bytes=state.size_bytes + chunk_bytes,
    )
    try:
        offsets = [
            (await partition.find_offset(which, read_committed=False, current_leader_epoch=-1)).offset
            for which in (EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP)
        ]
        segments = metadata.list_remote_log_segments(_identity(partition))
    except (RemoteStorageError, KafkaError) as error:
        return _with(row, error_code=_code_of(error), error_message=str(error))
    finished = [
        each.segment_size_bytes
        for each in segments
        if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    return _with(
        row,
        local_log_start_offset=offsets[0],
        highest_remote_offset=offsets[1],
        remote_size_bytes=sum(finished),
        remote_segments=len(finished),
        unfinished_segments=len(segments) - len(finished),
    )


def _identity(partition: Partition) -> TopicIdPartition:
    return TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)


def _with(row: TieredDescribedPartition, **values: object) -> TieredDescribedPartition:
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return TieredDescribedPartition(**{**fields, **values})


def _code_of(error: Exception) -> ErrorCode:
    if isinstance(error, KafkaError):
        return error.code
    not_ready = isinstance(error, RemoteMetadataNotReadyError)
    return ErrorCode.replica_not_available if not_ready else ErrorCode.unknown_server_error


def _row(metadata: RemoteLogSegmentMetadata) -> TieredSegment:
    return TieredSegment(
        id=metadata.id.id,
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        state=metadata.state,
        size_bytes=metadata.segment_size_bytes,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        broker_id=metadata.broker_id,
        txn_index_empty=metadata.txn_index_empty,
        leader_epochs=[
            TieredSegmentEpoch(epoch=each[0], start_offset=each[1]) for each in metadata.leader_epochs
        ],
        custom_metadata=metadata.custom_metadata,
    )
