"""The first offset on the disks of a partition's brokers, for clients (KIP-405's earliest local offset) and
for replicas that begin their log."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from active_replica import KEY, active
from registered_chunks import chunk, partition

from moldau.chunks.reading import ChunkedPart
from moldau.chunks.tiered_part import TieredChunkedPart
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.messages import list_offsets, offset_for_leader_epoch
from moldau.protocol.special_timestamps import EARLIEST_LOCAL_TIMESTAMP
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.remote_beginning import begin_behind_remote
from moldau.runtime import ErrorCode
from moldau.storage.log.auxiliary_state import AuxiliaryState

BOTH = partition(chunk(0, 9, 1), chunk(10, 19, 1))
NONE: Any = None


def earliest_local(
    folder: Path, registration: PartitionRegistration, log_start_offset: int, *, tiered: bool
) -> int:
    async def run() -> int:
        replica = await active(folder)
        replica.become_leader(0, (1,), (1,))
        replica.log.update_log_start_offset(log_start_offset)
        chunked = ChunkedPart(replica, lambda: registration, NONE, NONE)
        part = TieredChunkedPart(replica, lambda: registration, chunked, NONE) if tiered else chunked
        replica.remote.begin(part, is_tiered=tiered, chunks=part)
        found = await replica.find_offset(
            EARLIEST_LOCAL_TIMESTAMP, read_committed=False, current_leader_epoch=-1
        )
        return found.offset

    return asyncio.run(run())


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize(("log_start_offset", "expected"), [(0, 0), (5, 5), (10, 10), (22, 22)])
def test_the_first_local_offset_is_in_the_first_chunk_that_is_left(
    tmp_path: Path, log_start_offset: int, expected: int, *, tiered: bool
) -> None:
    assert earliest_local(tmp_path, BOTH, log_start_offset, tiered=tiered) == expected


@pytest.mark.parametrize("tiered", [False, True])
def test_without_inactive_chunks_the_log_has_the_first_local_offset(tmp_path: Path, *, tiered: bool) -> None:
    assert earliest_local(tmp_path, partition(), 0, tiered=tiered) == 20


class Leader:
    """A leader whose active chunk begins at offset 20 with epoch 6. Epoch 4 begins at offset 5, and epoch 8
    at offset 23."""

    ends = ((3, 5), (4, 20), (6, 23), (8, 30))

    async def __call__(self, request: Any) -> Any:
        if isinstance(request, list_offsets.ListOffsetsRequest):
            row: Any = SimpleNamespace(error_code=ErrorCode.none, offset=0, timestamp=-1, leader_epoch=3)
        else:
            assert isinstance(request, offset_for_leader_epoch.OffsetForLeaderEpochRequest)
            wanted = request.topics[0].partitions[0].leader_epoch
            epoch, end = max(each for each in self.ends if each[0] <= wanted)
            row = SimpleNamespace(error_code=ErrorCode.none, leader_epoch=epoch, end_offset=end)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[row])])


def test_a_replica_begins_its_log_at_the_border_and_not_at_the_first_local_offset() -> None:
    asked: list[tuple[int, int]] = []
    begun: list[int] = []

    async def state(epoch: int, offset: int, log_start_offset: int) -> AuxiliaryState:
        asked.append((epoch, offset))
        return AuxiliaryState(offset, log_start_offset, (), ())

    async def begin(epoch: int, found: AuxiliaryState) -> None:
        begun.append(found.offset)

    part = SimpleNamespace(auxiliary_state=state)
    remote = SimpleNamespace(part=part, chunks=SimpleNamespace(border=lambda: 20))
    following = SimpleNamespace(begin_behind_remote=begin)
    replica: Any = SimpleNamespace(topic="t", key=KEY, remote=remote, following=following)
    asyncio.run(begin_behind_remote(Leader(), replica, FetchPosition(2, 8, 0, -1), 0))
    assert (asked, begun) == ([(4, 20)], [20])
