"""Long appends of a follower are split into parts, and other work runs between the parts."""

import asyncio
import pathlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replica_files import Replicas
from test_fetch_answers import EPOCH, FOLLOWER, LEADER, fetcher_of

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.records import Record, build_batch
from moldau.replication.fetching.append_parts import BATCH_COST, TURN_COST, append_parts

SMALL_BATCHES = 4 * TURN_COST // BATCH_COST
"""Number of batches without values that are appended in more than four parts."""


def batches(count: int) -> bytes:
    """Batches with one record each."""
    return b"".join(
        build_batch([Record(0, 1_700_000_000_000, None, b"")], base_offset=offset, leader_epoch=EPOCH)
        for offset in range(count)
    )


@given(st.lists(st.integers(61, 2_000_000), max_size=12), st.integers(0, 60))
def test_parts_have_whole_batches_and_a_bounded_cost(sizes: list[int], more_bytes: int) -> None:
    records = b"".join(struct.pack(">qi", 0, size - 12) + bytes(size - 12) for size in sizes)
    incomplete = struct.pack(">qi", 0, 100)[:more_bytes] + bytes(max(0, more_bytes - 12))
    parts = list(append_parts(records + incomplete))
    assert b"".join(part for part, _ in parts) == records + incomplete
    rest = iter(sizes)
    for number, (part, cost) in enumerate(parts, 1):
        taken, position = [], 0
        while len(part) - position >= 61:
            taken.append(next(rest))
            position += taken[-1]
        assert position == len(part) or (number == len(parts) and len(part) - position == more_bytes)
        assert sum(taken[:-1]) + BATCH_COST * (len(taken) - 1) < TURN_COST
        assert cost >= sum(taken) + BATCH_COST * len(taken)
        assert number == len(parts) or cost >= TURN_COST


@pytest.mark.parametrize("length", [0, 48, -1, -(2**31)])
def test_bytes_after_a_wrong_length_are_one_part(length: int) -> None:
    good = batches(1)
    wrong = struct.pack(">qi", 1, length) + bytes(5 * TURN_COST)
    assert [bytes(part) for part, _ in append_parts(good + wrong)] == [good + wrong]


def test_a_response_without_records_is_one_part() -> None:
    assert [(bytes(part), cost) for part, cost in append_parts(b"")] == [(b"", 0)]


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_event_loop_is_free_between_the_parts_of_an_append(
    tmp_path: pathlib.Path, is_removed: bool
) -> None:
    """Other work can also end the following of the partition. Then the rest is not appended."""

    async def story() -> None:
        pair = Replicas(tmp_path)
        pair.lead(LEADER, EPOCH)
        follower, asked_again = pair.partitions[FOLLOWER], asyncio.Event()
        has_answered = False
        ends: list[int] = []

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            nonlocal has_answered
            if has_answered:
                asked_again.set()
                await asyncio.Event().wait()
            has_answered = True
            asyncio.get_running_loop().call_soon(look)
            row = PartitionData(partition_index=0, high_watermark=0, records=batches(SMALL_BATCHES))
            answer = FetchableTopicResponse(topic_id=follower.key.topic_id, partitions=[row])
            return FetchResponse(session_id=1, responses=[answer])

        def look() -> None:
            ends.append(follower.log.log_end_offset)
            if is_removed and 0 < ends[-1] < SMALL_BATCHES:
                fetcher.remove(follower.key)
                asked_again.set()
            elif ends[-1] < SMALL_BATCHES:
                asyncio.get_running_loop().call_soon(look)

        fetcher = fetcher_of(ask)
        fetcher.add(follower)
        await asked_again.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        between = {end for end in ends if 0 < end < SMALL_BATCHES}
        if is_removed:
            assert follower.log.log_end_offset in between
        else:
            assert len(between) >= 4
            assert follower.log.log_end_offset == SMALL_BATCHES
        await fetcher.stop()

    asyncio.run(story())
