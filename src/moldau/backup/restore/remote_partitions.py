"""The partitions of a cut that have records in remote segments. Pure."""

from collections.abc import Iterable

from moldau.backup.restore.tiered_logs import RemoteChain, RemoteSegments, remote_chain
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.removal.expired_segments import is_of_lineage

__all__ = ["end_of_deleted", "remote_chains", "without_tier"]


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
