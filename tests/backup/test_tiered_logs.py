"""The remote segments at the beginning of a restored classic log."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.backup.restore.remote_segments import RemoteChain, RemoteSegments, remote_chain
from moldau.backup.restore.tiered_logs import TieredLog, write_tiered_logs
from moldau.backup.restore.transactions import DecidedCommit
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.storage.folders.checkpoint import format_checkpoint
from moldau.storage.folders.file_names import LOG_SUFFIX
from moldau.storage.log.append_info import ReadResult
from moldau.storage.log.config import LogConfig
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.producers.producer_snapshot import encode_producer_snapshot
from moldau.storage.producers.producer_state import BatchMetadata, ProducerEntry
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.storage.storage_manager import IndexType

NAME = TopicIdPartition(UUID(int=7), "t", 0)
State = RemoteLogSegmentState


def segment(number: int, start: int, end: int, epoch: int = 3) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId.of(NAME, UUID(int=number))
    epochs = (EpochStart(epoch, start),)
    return RemoteLogSegmentMetadata(
        id, start, end, 1, 1, 1, 10, leader_epochs=epochs, state=State.COPY_SEGMENT_STARTED
    )


def test_only_readable_segments_are_considered() -> None:
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
    )  # refused, because the deletion of this segment has already started
    finished = segments.finished(NAME)
    assert [each.start_offset for each in finished] == [10, 20]
    assert {each.custom_metadata for each in finished} == {b"custom"}
    segments.apply(RemoteLogSegmentMetadataUpdate(first, 4, State.DELETE_SEGMENT_FINISHED, 1))
    assert segments.finished(replace_partition(5)) == []


def replace_partition(index: int) -> TopicIdPartition:
    return NAME._replace(partition=index)


def test_the_log_begins_with_the_first_segment_of_a_chain_without_gaps_to_the_newest_segment() -> None:
    assert remote_chain([]) is None
    newest = segment(5, 40, 49, epoch=6)
    some = [segment(1, 0, 9), segment(2, 20, 32), segment(3, 30, 39), newest]
    assert remote_chain(some) == RemoteChain(newest, 20)
    # An earlier leader has copied more records. The latest leader had lost these records before it copied its
    # own records.
    assert remote_chain([*some, segment(4, 40, 60, epoch=5)]) == RemoteChain(newest, 20)
    assert remote_chain([replace(newest, start_offset=41), *some[:3]]) == RemoteChain(
        replace(newest, start_offset=41), 41
    )


LOST, DECIDED, IDLE = 7, 8, 9
"""Producers: the marker of LOST was in the lost records, the restored coordinator commits the transaction of
DECIDED, and IDLE has no open transaction."""


class Tier:
    """A remote tier with the indexes of a segment. Two transactions are open at the end of the segment."""

    async def fetch_index(self, segment: Any, kind: IndexType) -> bytes:
        if kind is IndexType.LEADER_EPOCH:
            return format_checkpoint([EpochEntry(3, 0)])
        entries = [
            ProducerEntry(producer_id, 2, 5, 1, first_offset, [BatchMetadata(0, 0, 0, 1)])
            for producer_id, first_offset in ((LOST, 4), (DECIDED, 6), (IDLE, None))
        ]
        return encode_producer_snapshot(entries)


@pytest.mark.parametrize(
    ("later", "is_committed"),
    [
        ({"first_epoch": 2}, True),
        # The producer has increased its epoch since the segment was copied.
        ({"first_epoch": 3, "next_epoch": 4}, False),
        # The segment was copied long before the transaction was decided.
        ({"decided_ms": 3_600_000}, False),
    ],
)
def test_a_commit_of_a_later_transaction_does_not_commit_records_of_an_earlier_transaction(
    later: dict[str, int], is_committed: bool, tmp_path: Path
) -> None:
    async def run() -> None:
        logs = {NAME: TieredLog(RemoteChain(segment(1, 0, 9), 0), [str(tmp_path)], 1_003)}
        decided = DecidedCommit(frozenset({("t", 0)}), 3)._replace(**later)
        tier: Any = Tier()
        written = await write_tiered_logs(Machine.real(), tier, logs, {DECIDED: decided})
        assert (DECIDED not in written.aborted) is is_committed

    asyncio.run(run())


def test_a_transaction_whose_marker_is_lost_is_aborted_on_all_replicas(tmp_path: Path) -> None:
    async def run() -> None:
        folders = [str(tmp_path / name) for name in ("a", "b")]
        for folder in folders:
            Path(folder).mkdir()
        logs = {NAME: TieredLog(RemoteChain(segment(1, 0, 9), 0), folders, 1_003)}
        committing = {DECIDED: DecidedCommit(frozenset({("t", 0)}), 3)}
        tier: Any = Tier()
        written = await write_tiered_logs(Machine.real(), tier, logs, committing)
        assert (list(written.problems), set(written.aborted)) == ([], {LOST})
        contents = {
            file.read_bytes()
            for folder in folders
            for file in (Path(folder) / "t-0").iterdir()
            if file.name.endswith(LOG_SUFFIX)
        }
        assert len(contents) == 1, "the replicas are equal"
        config = LogConfig(remote_storage_enable=True)
        path, name = f"{folders[0]}/t-0", TopicPartition("t", 0)
        log = PartitionLog.open(Machine.real(), path, name, config, topic_id=NAME.topic_id)
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 10, 11)
        assert log.last_stable_offset(log.log_end_offset) == 6, "only the decided transaction is open"
        (aborted,) = log.aborted_transactions(0, ReadResult([], 0, 10, 0, 0))
        assert (aborted.producer_id, aborted.first_offset) == (LOST, 4)
        assert [each.epoch for each in log.leader_epochs.entries] == [3, 1_003]
        log.close()

    asyncio.run(run())
