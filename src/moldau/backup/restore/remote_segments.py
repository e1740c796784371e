"""The remote segments that the saved logs list, and the partitions that have records in them. Pure."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from moldau.backup.cut_format import LogPiece
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.records.batch import check_batch, iter_headers
from moldau.records.record import iter_records
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemoteLogSegmentState
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.records import decode_event
from moldau.tiered.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.removal.expired_segments import is_of_lineage

__all__ = ["RemoteChain", "RemoteSegments", "end_of_deleted", "remote_chain", "remote_chains", "without_tier"]


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


def remote_chains(segments: RemoteSegments, image: MetadataImage) -> dict[TopicIdPartition, RemoteChain]:
    """The remote segments of classic tiered partitions. ``image`` has the metadata of the cut."""
    chains: dict[TopicIdPartition, RemoteChain] = {}
    for topic in image.topics:
        config = image.config(ResourceType.TOPIC, topic.name)
        if DISKLESS.is_kind_of(topic) or config.get("remote.storage.enable", "").lower() != "true":
            continue
        for index in range(len(topic.partitions)):
            name = TopicIdPartition(topic.topic_id, topic.name, index)
            chain = remote_chain(segments.finished(name))
            if chain is not None:
                chains[name] = chain
    return chains


def end_of_deleted(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, log_start: int, wal_start: int
) -> int | None:
    """The offset before which all records of a diskless partition were deleted while the logs were saved.
    None if the saved log start is correct.

    A log start moves before the deletion of segments begins. But the log start is saved before the metadata
    of segments, so the saved metadata may already have the deletion. Then no segment contains the saved log
    start. ``lineage`` contains the generations of the cut.
    """
    known = [each for each in segments if is_of_lineage(each, lineage, 0)]
    start = wal_start
    for one in sorted(known, key=lambda each: each.end_offset, reverse=True):
        if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and one.end_offset + 1 >= start:
            start = min(start, one.start_offset)
    is_deleted = any(
        one.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        and one.start_offset < start <= one.end_offset + 1
        for one in known
    )
    return start if start > log_start and is_deleted else None


def without_tier(segments: RemoteSegments, image: MetadataImage) -> list[str]:
    """One line for each partition with remote records. A restore that has no access to the remote segments
    does not restore these records."""
    return [
        f"remote records of {topic.name}-{index}: remote.log.storage.system.enable is false"
        for topic in image.topics
        for index in range(len(topic.partitions))
        if segments.finished(TopicIdPartition(topic.topic_id, topic.name, index))
    ]
