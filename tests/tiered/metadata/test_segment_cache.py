"""The cache of a partition's segments, compared with a model that reads all segments each time."""

import random
from collections.abc import Iterable
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from segment_fakes import DELETED, DELETING, FINISHED, STARTED, event, segment

from moldau.tiered.metadata.segment_cache import EPOCHS_A_STEP, SegmentCache, epoch_ranges
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata


def cached(segments: Iterable[RemoteLogSegmentMetadata]) -> SegmentCache:
    cache = SegmentCache()
    for each in segments:
        cache.put(each)
    return cache


def finished(
    number: int, start: int, end: int, *epochs: tuple[int, int], at_ms: int = 2
) -> RemoteLogSegmentMetadata:
    return segment(number, start, end, *epochs, state=FINISHED, at_ms=at_ms)


def number_for(cache: SegmentCache, epoch: int, offset: int) -> int | None:
    found = cache.segment_for(epoch, offset)
    return None if found is None else found.id.id.int


def test_an_offset_belongs_to_the_epoch_that_wrote_it() -> None:
    cache = cached([finished(1, 0, 100, (0, 0), (1, 40), (3, 80)), finished(2, 101, 200, (3, 101))])
    assert number_for(cache, 0, 39) == 1
    assert number_for(cache, 0, 40) is None
    assert number_for(cache, 1, 79) == 1
    assert number_for(cache, 2, 79) is None
    assert number_for(cache, 3, 100) == 1
    assert number_for(cache, 3, 101) == 2
    assert [cache.highest_offset(epoch) for epoch in range(4)] == [39, 79, None, 200]
    assert cache.size_bytes(3) == 2000
    assert [each.id.id.int for each in cache.list(3)] == [1, 2]


def test_only_finished_segments_are_read() -> None:
    one = segment(1, 0, 9)
    cache = cached([one])
    assert cache.segment_for(0, 5) is None
    assert cache.list() == (one,)
    cache.put(one.with_update(event(one, FINISHED)))
    assert number_for(cache, 0, 5) == 1
    cache.put(one.with_update(event(one, DELETING)))
    assert cache.segment_for(0, 5) is None
    assert len(cache.list(0)) == 1
    assert cache.highest_offset(0) == 9


def test_a_longer_copy_hides_a_shorter_copy_until_the_longer_copy_is_deleted() -> None:
    """The leader of epoch 1 copied offsets 0 to 100. The leader of epoch 2 copied these records again, with
    the records up to offset 200."""
    cache = cached([finished(1, 0, 100), finished(2, 0, 200)])
    assert number_for(cache, 0, 50) == 2
    cache.put(segment(2, 0, 200, state=DELETING))
    assert number_for(cache, 0, 50) == 1
    assert cache.segment_for(0, 150) is None


def test_a_shorter_copy_that_finishes_late_hides_nothing() -> None:
    cache = cached([finished(2, 0, 200), finished(1, 0, 100)])
    assert number_for(cache, 0, 50) == 2
    assert number_for(cache, 0, 150) == 2


def test_overlapping_copies_are_both_read() -> None:
    cache = cached([finished(1, 10, 90), finished(2, 5, 100), finished(3, 101, 200)])
    assert number_for(cache, 0, 95) == 2
    assert number_for(cache, 0, 150) == 3
    cache = cached([finished(1, 0, 100), finished(2, 50, 150)])
    assert [number_for(cache, 0, offset) for offset in (0, 49, 50, 100, 150)] == [1, 1, 2, 2, 2]


def test_the_next_segment_with_aborted_transactions() -> None:
    with_index = segment(3, 20, 29, state=FINISHED, txn_index_empty=False)
    cache = cached([finished(1, 0, 9), finished(2, 10, 19), with_index])
    for offset in (0, 10, 29):
        assert cache.next_with_txn_index(0, offset) is with_index
    assert cache.next_with_txn_index(0, 30) is None
    assert cache.next_with_txn_index(1, 0) is None


def test_a_segment_of_very_many_epochs_is_put_in_steps() -> None:
    epochs = [(epoch, epoch * 2) for epoch in range(EPOCHS_A_STEP * 3)]
    cache = cached([finished(1, 0, EPOCHS_A_STEP * 6, *epochs)])
    found = []
    for _ in cache.put_in_steps(segment(1, 0, EPOCHS_A_STEP * 6, *epochs, state=DELETED)):
        assert len(cache.list()) == 1
        found.append(sum(cache.segment_for(*epoch) is not None for epoch in epochs))
    assert found == sorted(found, reverse=True)
    assert all(0 < each < len(epochs) for each in found)
    assert len(found) >= 2
    assert cache.list() == ()


STATES = (STARTED, FINISHED, FINISHED, FINISHED, DELETING, DELETED)


def drawn(number: int, start: int, length: int, dice: int) -> RemoteLogSegmentMetadata:
    """A segment of up to three leader epochs. ``dice`` selects all fields from a few values."""
    dice, first = divmod(dice, 3)
    dice, state = divmod(dice, len(STATES))
    dice, at_ms = divmod(dice, 3)
    dice, with_index = divmod(dice, 2)
    cuts = sorted({start + 1 + dice % (length + 1), start + 1 + dice // 13 % (length + 1)} if length else ())
    return segment(
        number,
        start,
        start + length,
        *[(first + index, offset) for index, offset in enumerate([start, *cuts[: dice % 3]])],
        state=STATES[state],
        txn_index_empty=not with_index,
        at_ms=at_ms,
    )


SEGMENTS = st.builds(
    drawn, st.integers(1, 8), st.integers(0, 6), st.integers(0, 5), st.integers(0, 3 * 6 * 3 * 2 * 13 * 13)
)


def holders(
    model: dict[UUID, RemoteLogSegmentMetadata], epoch: int, offset: int
) -> list[RemoteLogSegmentMetadata]:
    return [
        each
        for each in model.values()
        if each.state is FINISHED
        and any(e == epoch and start <= offset <= end for e, start, end in epoch_ranges(each))
    ]


@given(st.lists(SEGMENTS, max_size=14), st.randoms(use_true_random=False))
def test_the_cache_is_its_segments(puts: list[RemoteLogSegmentMetadata], chance: random.Random) -> None:
    cache = SegmentCache()
    model: dict[UUID, RemoteLogSegmentMetadata] = {}
    highest: dict[int, int] = {}
    for each in puts:
        cache.put(each)
        model.pop(each.id.id, None)
        if each.state is not DELETED:
            model[each.id.id] = each
        if each.state is FINISHED:
            for epoch, _, end in epoch_ranges(each):
                highest[epoch] = max(end, highest.get(epoch, -1))
    shuffled = list(model.values())
    chance.shuffle(shuffled)
    other = cached(shuffled)
    assert len(cache) == len(model)
    for epoch in range(5):
        assert cache.highest_offset(epoch) == highest.get(epoch)
        members = {i for i, each in model.items() if any(e == epoch for e, _, _ in epoch_ranges(each))}
        listed = cache.list(epoch)
        assert {each.id.id for each in listed} == members
        assert [each.start_offset for each in listed] == sorted(each.start_offset for each in listed)
        for offset in range(14):
            found = cache.segment_for(epoch, offset)
            candidates = holders(model, epoch, offset)
            assert (found is None) == (not candidates)
            assert found is None or found in candidates
            # If two brokers have the same segments, both read the same segment, whatever the order of events
            # was.
            assert other.segment_for(epoch, offset) == found
