"""The remote segments at the beginning of a restored classic log."""

from dataclasses import replace
from uuid import UUID

from moldau.backup.restore.tiered_logs import RemoteChain, RemoteSegments, remote_chain
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)

NAME = TopicIdPartition(UUID(int=7), "t", 0)
State = RemoteLogSegmentState


def segment(number: int, start: int, end: int, epoch: int = 3) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId.of(NAME, UUID(int=number))
    epochs = (EpochStart(epoch, start),)
    return RemoteLogSegmentMetadata(
        id, start, end, 1, 1, 1, 10, leader_epochs=epochs, state=State.COPY_SEGMENT_STARTED
    )


def test_only_segments_that_can_be_read_count() -> None:
    segments = RemoteSegments()
    for number in range(4):
        segments.apply(segment(number, 10 * number, 10 * number + 9))
    for number in (0, 1, 2):
        done = RemoteLogSegmentMetadataUpdate(
            segment(number, 0, 0).id, 2, State.COPY_SEGMENT_FINISHED, 1, b"custom"
        )
        segments.apply(done)
    first = segment(0, 0, 0).id
    segments.apply(RemoteLogSegmentMetadataUpdate(first, 3, State.DELETE_SEGMENT_STARTED, 1))
    segments.apply(
        RemoteLogSegmentMetadataUpdate(first, 3, State.COPY_SEGMENT_FINISHED, 1)
    )  # refused: the deletion has already started
    finished = segments.finished(NAME)
    assert [each.start_offset for each in finished] == [10, 20]
    assert {each.custom_metadata for each in finished} == {b"custom"}
    segments.apply(RemoteLogSegmentMetadataUpdate(first, 4, State.DELETE_SEGMENT_FINISHED, 1))
    assert segments.finished(replace_partition(5)) == []


def replace_partition(index: int) -> TopicIdPartition:
    return NAME._replace(partition=index)


def test_the_log_begins_where_segments_lead_to_the_newest_one() -> None:
    assert remote_chain([]) is None
    newest = segment(5, 40, 49, epoch=6)
    some = [segment(1, 0, 9), segment(2, 20, 32), segment(3, 30, 39), newest]
    assert remote_chain(some) == RemoteChain(newest, 20)
    # An earlier leader has copied more records. The latest leader had lost these records before it copied its
    # own.
    assert remote_chain([*some, segment(4, 40, 60, epoch=5)]) == RemoteChain(newest, 20)
    assert remote_chain([replace(newest, start_offset=41), *some[:3]]) == RemoteChain(
        replace(newest, start_offset=41), 41
    )
