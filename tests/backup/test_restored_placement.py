"""The brokers that get the replicas of a restored cluster."""

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.backup.restore.placement import NewBroker, ReplicaPlacement
from moldau.runtime import KafkaError


def _placement(*node_ids: int, racks: str = "") -> ReplicaPlacement:
    return ReplicaPlacement(
        [
            NewBroker(node_id, uuid.UUID(int=1000 + node_id), racks[place] if racks else None)
            for place, node_id in enumerate(node_ids)
        ]
    )


def _ids(placement: ReplicaPlacement, *old: int) -> list[int]:
    return [each.node_id for each in placement.replicas(old)]


def test_replicas_of_brokers_with_the_same_ids_do_not_move() -> None:
    placement = _placement(1, 2, 3, 4)
    assert [_ids(placement, 3, 1), _ids(placement, 2, 3)] == [[3, 1], [2, 3]]


def test_fewer_brokers_than_replicas_get_one_replica_each() -> None:
    placement = _placement(1, 2)
    assert [_ids(placement, 3, 1, 2), _ids(placement, 1, 3, 2)] == [[1, 2], [1, 2]]
    assert _ids(_placement(9), 1, 2, 3) == [9]


def test_a_replica_moves_to_a_broker_of_its_rack() -> None:
    placement = _placement(4, 5, 6, racks="abc")
    for node_id, rack in ((1, "c"), (2, "a"), (3, "b")):
        placement.note_old_broker(node_id, rack)
    assert [_ids(placement, 1, 2), _ids(placement, 3, 1)] == [[6, 4], [5, 6]]


def test_replicas_and_leaders_are_spread_over_brokers_with_other_ids() -> None:
    placement = _placement(11, 12, 13)
    found = [_ids(placement, 1 + number % 3, 1 + (number + 1) % 3) for number in range(30)]
    assert set(Counter(each[0] for each in found).values()) == {10}
    assert set(Counter(node_id for each in found for node_id in each).values()) == {20}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5, unique=True),
    st.lists(st.lists(st.integers(1, 9), min_size=0, max_size=5, unique=True), max_size=20),
)
def test_a_partition_has_as_many_replicas_as_there_are_brokers_for(
    node_ids: list[int], partitions: list[list[int]]
) -> None:
    placement = _placement(*node_ids)
    for old in partitions:
        found = _ids(placement, *old)
        assert len(found) == len(set(found)) == max(1, min(len(old), len(node_ids)))
        assert {each for each in old if each in node_ids} <= set(found)


def test_a_cluster_without_brokers_is_refused() -> None:
    with pytest.raises(KafkaError):
        _placement()
