"""Remote segments of a diskless partition are deleted while the logs are saved.

The log start moves at first, and then the deletion of the segments begins. The saved log of the coordinator
may be older than the first step, and the saved metadata of segments may contain the second step.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from saved_cluster import SavedCluster

from moldau.backup.restore.remote_segments import end_of_deleted
from moldau.cluster.image.log_generations import LogGenerations
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState as State
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

PRODUCER = 5
KEPT = [State.COPY_SEGMENT_FINISHED]
DELETED = [State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED]


@pytest.mark.parametrize(("states", "log_start"), [(KEPT, 0), (DELETED, 2)])
def test_the_log_start_is_after_deleted_segments(
    states: Sequence[State], log_start: int, tmp_path: Path
) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await writer.write(PRODUCER, 0)
            await writer.prune(2)
        await saved.save_remote_segment(1, epoch=0, states=states)
        await saved.restore()
        assert (await saved.find(0)).log_start_offset == log_start

    asyncio.run(scene())


def _segment(start: int, end: int, state: State, epoch: int = 0) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId.of(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=start + 1))
    epochs = (EpochStart(epoch, start),)
    return RemoteLogSegmentMetadata(id, start, end, 1, 1, 1, 10, leader_epochs=epochs, state=state)


KEPT_10_TO_29 = [_segment(10, 19, KEPT[-1]), _segment(20, 29, KEPT[-1])]


@pytest.mark.parametrize(
    ("segments", "found"),
    [
        ([_segment(0, 9, DELETED[-1]), *KEPT_10_TO_29], 10),
        ([_segment(0, 29, DELETED[-1])], 30),
        # The segment before the deleted segment was not deleted yet.
        ([_segment(0, 9, KEPT[-1]), _segment(10, 19, DELETED[-1]), KEPT_10_TO_29[1]], 20),
        # Another segment contains the records of the deleted segment.
        ([_segment(0, 9, DELETED[-1]), _segment(0, 12, KEPT[-1]), *KEPT_10_TO_29], None),
        # A copy that has not finished is deleted.
        ([_segment(0, 9, KEPT[-1]), *KEPT_10_TO_29, _segment(30, 39, DELETED[-1])], None),
        # No segment whose deletion has begun has the offsets 0 to 9, so these do not count as deleted.
        (KEPT_10_TO_29, None),
        ([_segment(0, 9, DELETED[-1], epoch=1), *KEPT_10_TO_29], None),
    ],
)
def test_records_were_deleted_if_the_deletion_of_their_segment_has_begun(
    segments: Sequence[RemoteLogSegmentMetadata], found: int | None
) -> None:
    assert end_of_deleted(segments, LogGenerations(), 0, 30) == found
