"""The pace of copies, and the question whether a copy can reach the end of its leader's log at this pace."""

from uuid import UUID

import pytest

from moldau.protocol.partitions import PartitionKey
from moldau.replication.fetching.catching_up import (
    CHECK_S,
    CatchUpPace,
    CopyProgress,
    CopyTurns,
    copy_limits,
    is_far_behind,
)
from moldau.replication.fetching.fetch_session import FetchLimits


def test_copies_of_all_leaders_share_one_rate() -> None:
    pace, now_s = CatchUpPace(1_000_000), 50.0
    paused_s = [pace.pause_s(100_000, now_s) for _ in range(3)]
    assert paused_s == pytest.approx([0.08, 0.18, 0.28]), "the first 20 ms are in reserve"
    assert pace.pause_s(0, now_s) == pytest.approx(0.28)
    assert pace.pause_s(0, now_s + 1) == 0


def test_a_copy_that_comes_closer_keeps_its_pace() -> None:
    progress, distance = CopyProgress(0.0), 1000.0
    for check in range(20):
        progress.copied(int(distance), check * CHECK_S)
        distance *= 0.89
    assert not progress.is_too_slow


def test_a_copy_that_does_not_come_closer_is_not_limited_any_more() -> None:
    progress = CopyProgress(0.0)
    progress.copied(1000, 0.0)
    progress.copied(5000, CHECK_S - 0.1)
    assert not progress.is_too_slow, "it is too early to decide"
    progress.copied(901, CHECK_S)
    assert progress.is_too_slow
    progress.copied(1, 2 * CHECK_S)
    assert progress.is_too_slow, "the copy would otherwise alternate between both rates"


@pytest.mark.parametrize(("response", "expected"), [(10 << 20, 1 << 20), (4096, 4096)])
def test_responses_of_copies_are_small(response: int, expected: int) -> None:
    limits = FetchLimits(response_max_bytes=response)
    assert copy_limits(limits) == FetchLimits(response_max_bytes=expected, wait_max_ms=0)


def test_partitions_are_copied_in_turns() -> None:
    turns, not_ready = CopyTurns(), set[PartitionKey]()

    def given(count: int) -> list[int]:
        keys = [turns.give(lambda key: key not in not_ready) for _ in range(count)]
        return [-1 if key is None else key.partition for key in keys]

    assert given(2) == [-1, -1]
    keys = [PartitionKey(UUID(int=1), index) for index in range(4)]
    for key in keys[:3]:
        turns.add(key)
    assert given(4) == [0, 1, 2, 0]
    turns.add(keys[3])
    turns.add(keys[0])  # a new leader epoch; the partition keeps its place
    assert given(5) == [1, 2, 3, 0, 1]
    not_ready |= {keys[2], keys[3]}
    assert given(3) == [0, 1, 0]
    turns.remove(keys[0])
    assert turns.current is None
    assert given(2) == [1, 1]
    not_ready.clear()
    assert given(4) == [2, 3, 1, 2]
    not_ready |= set(keys)
    assert given(2) == [-1, -1]


@pytest.mark.parametrize(("size_bytes", "large"), [(262_143, False), (262_144, True)])
def test_a_response_shows_that_a_follower_is_far_behind(size_bytes: int, large: bool) -> None:
    assert is_far_behind(size_bytes, FetchLimits()) is large
