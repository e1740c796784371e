"""The image shows where the active chunk of a partition begins. The tests check what a broker then does with
the log of the partition."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registered_chunks import chunk, partition

from moldau.chunks.log_fates import LogFate, LogRange, fate_of

BROKER = 1


@pytest.mark.parametrize(
    ("log", "state", "fate"),
    [
        ((0, 10), False, LogFate.CARVE),
        ((0, 12), False, LogFate.CARVE),
        ((3, 10), False, LogFate.CARVE),
        ((0, 9), False, LogFate.DISCARD),
        ((10, 20), True, LogFate.CARVE),
        ((20, 20), True, LogFate.KEEP),
        ((20, 30), False, LogFate.KEEP),
        ((0, 0), True, LogFate.BEGIN),
        ((0, 0), False, LogFate.BEGIN),
        ((10, 10), True, LogFate.BEGIN),
    ],
)
def test_the_fate_of_a_log_on_a_broker_with_both_chunks(
    log: tuple[int, int], state: bool, fate: LogFate
) -> None:
    two = partition(chunk(0, 9, 1, 2), chunk(10, 19, 1, 2))
    assert fate_of(LogRange(*log), two, BROKER, has_state=state, has_chunk=False)[0] is fate


@pytest.mark.parametrize(("state", "fate"), [(True, LogFate.BEGIN), (False, LogFate.KEEP)])
def test_an_empty_log_of_a_follower_begins_at_the_border_only_with_the_state(
    state: bool, fate: LogFate
) -> None:
    two = partition(chunk(0, 9, 1, 2), replicas=(2, 1))
    assert fate_of(LogRange(0, 0), two, BROKER, has_state=state, has_chunk=False)[0] is fate


def test_an_empty_log_that_is_not_in_sync_gets_the_state_from_the_leader() -> None:
    """The state that is handed over contains the start of the log at that moment. A later deletion may have
    moved the start. If this replica used the old state and then became the leader, the deleted records would
    be readable again."""
    two = replace(partition(chunk(0, 9, 1, 2), replicas=(2, 1)), isr=(2,))
    assert fate_of(LogRange(0, 0), two, BROKER, has_state=True, has_chunk=False)[0] is LogFate.KEEP


def test_a_log_that_was_not_in_sync_is_discarded() -> None:
    found = fate_of(LogRange(0, 10), partition(chunk(0, 9, 2)), BROKER, has_state=True, has_chunk=False)
    assert found[0] is LogFate.DISCARD


def test_a_partition_without_chunks_keeps_every_log() -> None:
    found = fate_of(LogRange(0, 10), partition(), BROKER, has_state=True, has_chunk=False)
    assert found == (LogFate.KEEP, None)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    start=st.integers(0, 25),
    size=st.integers(0, 25),
    is_replica=st.booleans(),
    has_state=st.booleans(),
    has_chunk=st.booleans(),
)
def test_a_carved_log_has_all_records_of_its_chunk_and_each_step_makes_progress(
    sizes: list[int], start: int, size: int, is_replica: bool, has_state: bool, has_chunk: bool
) -> None:
    borders = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    chunks = [chunk(first, end - 1, 1) for first, end in pairwise(borders)]
    registration = partition(*chunks, replicas=(1, 2) if is_replica else (2, 3))
    log = LogRange(start, start + size)
    fate, found = fate_of(log, registration, BROKER, has_state=has_state, has_chunk=has_chunk)
    match fate:
        case LogFate.CARVE:
            assert found is not None
            assert found.start_offset <= log.start_offset <= found.end_offset < log.end_offset
            assert not has_chunk
        case LogFate.DISCARD:
            assert log.start_offset < registration.start_offset
        case LogFate.BEGIN:
            assert is_replica
            assert has_state or registration.leader == BROKER
            assert not size
        case LogFate.KEEP:
            assert log.start_offset >= registration.start_offset or not size
