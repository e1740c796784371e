"""How the brokers of the next chunk are planned, and how commands show chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.chunks.placement import next_replicas, rolled_replicas
from moldau.cli.admin.chunks import chunk_fields
from moldau.client.chunks import ChunkedPartition
from moldau.protocol.messages.metadata import MetadataResponseChunk
from moldau.runtime.errors import KafkaError

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
LOAD = {1: 50, 2: 10, 3: 40, 4: 30}


def test_a_new_broker_gets_the_next_chunk() -> None:
    assert next_replicas(2, {1: None, 2: None, 3: None}, {1: 100, 2: 90}) == (3, 2)


def test_racks_are_considered_before_bytes() -> None:
    assert next_replicas(2, RACKS, LOAD) == (2, 4)
    assert next_replicas(3, RACKS, LOAD) == (2, 4, 3)


def test_chunks_that_are_planned_before_count() -> None:
    assert next_replicas(1, RACKS, LOAD, {2: 1}) == (4,)


def test_too_few_brokers_are_an_error() -> None:
    with pytest.raises(KafkaError, match="5 replicas need 5 active brokers, and there are 4"):
        next_replicas(5, RACKS, LOAD)


@given(st.integers(1, 4), st.dictionaries(st.integers(1, 4), st.integers(0, 9)))
def test_no_broker_is_chosen_twice_and_no_rack_is_left_out(count: int, load: dict[int, int]) -> None:
    chosen = next_replicas(count, RACKS, load)
    assert len(set(chosen)) == count
    assert len({RACKS[each] for each in chosen}) == min(count, 2)


def test_the_active_chunk_is_the_last_one() -> None:
    chunk = MetadataResponseChunk(
        start_offset=0, stop_offset=9, end_offset=9, replica_nodes=[1], isr_nodes=[1]
    )
    rows = chunk_fields(ChunkedPartition("t", 0, 2, (2,), (2,), 10, (chunk,)))
    assert [(row["active"], row["start_offset"], row["replicas"]) for row in rows] == [
        (False, 0, [1]),
        (True, 10, [2]),
    ]
    assert chunk_fields(ChunkedPartition("t", 0, 2, (2,), (2,), -1, ())) == []


def test_a_new_broker_leads_half_of_a_topic_and_not_all_of_it() -> None:
    racks, load = dict.fromkeys((1, 2, 3, 4)), {1: 70, 2: 80, 3: 90, 4: 0}
    led = {1: 3, 2: 3, 3: 2}
    leaders = []
    for old in (1, 2, 3, 1, 2, 3, 1, 2):
        led[old] -= 1
        chosen = rolled_replicas(2, racks, load, led, 8)
        leaders.append(chosen[0])
        led[chosen[0]] = led.get(chosen[0], 0) + 1
        assert 4 in chosen, "the empty broker has a replica of each new chunk"
    assert leaders.count(4) == 4


def test_the_other_replicas_are_in_other_racks_than_the_leader() -> None:
    assert rolled_replicas(2, RACKS, LOAD, {}, 4) == (2, 4)
    assert rolled_replicas(3, RACKS, LOAD, {2: 2}, 4) == (4, 2, 3)


def test_the_only_partition_of_a_topic_goes_to_the_emptiest_broker() -> None:
    assert rolled_replicas(1, RACKS, LOAD, {}, 1) == (2,)
    assert rolled_replicas(1, {1: None}, {}, {1: 5}, 1) == (1,)
    with pytest.raises(KafkaError):
        rolled_replicas(1, {}, {}, {}, 1)
