"""The segments that the saved logs of ``__remote_log_metadata`` list, for a restore. Pure."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from moldau.backup.cut_format import LogPiece
from moldau.records.batch import check_batch, iter_headers
from moldau.records.record import iter_records
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemoteLogSegmentState
from moldau.tiered.metadata.records import decode_event
from moldau.tiered.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)

__all__ = ["RemoteChain", "RemoteSegments", "remote_chain"]


class RemoteSegments:
    """The remote segments that the saved logs of ``__remote_log_metadata`` list."""

    def __init__(self) -> None:
        self._segments: dict[TopicIdPartition, dict[UUID, RemoteLogSegmentMetadata]] = defaultdict(dict)

    async def add(self, pieces: AsyncIterator[tuple[LogPiece, memoryview]]) -> None:
        """Apply the events of a log. Raises ``StorageError`` and ``KafkaError``."""
        async for _, content in pieces:
            for position, header in iter_headers(content):
                check_batch(content, position)
                if header.is_control:
                    continue
                for record in iter_records(content[position : position + header.size_bytes]):
                    if record.value is not None:
                        self.apply(decode_event(record.value))

    def apply(self, event: RemoteLogMetadata) -> None:
        """Apply an event. An event that contradicts the state is ignored, as in a running cluster."""
        if isinstance(event, RemoteLogSegmentMetadata):
            self._segments[event.topic_id_partition].setdefault(event.id.id, event)
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            known = self._segments[event.topic_id_partition]
            segment = known.get(event.id.id)
            if segment is None:
                return
            try:
                segment = known[event.id.id] = segment.with_update(event)
            except IllegalTransitionError:
                return
            if segment.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                del known[event.id.id]

    def all_finished(self) -> list[RemoteLogSegmentMetadata]:
        """The readable segments of all partitions."""
        return [each for partition in self._segments for each in self.finished(partition)]

    def of(self, partition: TopicIdPartition) -> Collection[RemoteLogSegmentMetadata]:
        """The segments of a partition in any state, except segments that were deleted completely."""
        return self._segments.get(partition, {}).values()

    def finished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """The readable segments of a partition."""
        return [
            each for each in self.of(partition) if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]


class RemoteChain(NamedTuple):
    """The newest segment of a partition, and the first offset of the longest sequence of segments that has no
    gap and ends with the newest segment.
    """

    newest: RemoteLogSegmentMetadata
    start_offset: int


def remote_chain(finished: Iterable[RemoteLogSegmentMetadata]) -> RemoteChain | None:
    """The longest sequence of segments without a gap that ends with the newest segment. None if there are no
    segments.

    The newest segment is a segment that the latest leader copied. Earlier leaders may have copied records
    with higher offsets, which the latest leader did not have.
    """
    left = sorted(finished, key=lambda each: (each.leader_epochs[-1].epoch, each.end_offset))
    if not left:
        return None
    newest = left.pop()
    start_offset = newest.start_offset
    for segment in sorted(left, key=lambda each: each.end_offset, reverse=True):
        if segment.end_offset + 1 < start_offset:
            break
        start_offset = min(start_offset, segment.start_offset)
    return RemoteChain(newest, start_offset)
