"""Plans of moves. Their first aim is to use different racks, and their second aim is to copy few bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.move_planning import NoRoomError, PlacedPartition, plan_moves

RACKS = {1: "a", 2: "a", 3: "b", 4: "c"}


def targets(replicas: tuple[int, ...], **options: object) -> tuple[int, ...]:
    """The planned replicas of a partition whose current replicas are ``replicas``."""
    options = {"load_bytes": {}, **options}
    moves = plan_moves([PlacedPartition("t", 0, replicas, 100)], RACKS, **options)  # type: ignore[arg-type]
    return moves[0].target if moves else replicas


def test_more_replicas_go_to_other_racks_and_then_to_the_emptiest_broker() -> None:
    assert targets((1,), replication_factor=3) == (1, 3, 4)
    assert targets((1,), replication_factor=2, load_bytes={3: 9, 4: 8}) == (1, 4)
    assert targets((1,), replication_factor=4, load_bytes={3: 9}) == (1, 4, 3, 2)


def test_fewer_replicas_keep_the_leader_and_the_racks() -> None:
    assert targets((1, 2, 3), replication_factor=2) == (1, 3)
    assert targets((3, 4, 1), replication_factor=1) == (3,)


def test_a_broker_that_leaves_is_replaced_in_its_place() -> None:
    assert targets((1, 3), leaving=[1]) == (2, 3)
    assert targets((2, 3), leaving=[1]) == (2, 3)
    assert targets((1, 3, 4), leaving=[1], replication_factor=2) == (3, 4)


def test_too_few_brokers_are_reported() -> None:
    with pytest.raises(NoRoomError, match="4 replicas need 4 brokers, and there are 3"):
        targets((1, 3, 4, 2), leaving=[2])


def test_large_partitions_are_spread_first() -> None:
    partitions = [PlacedPartition("t", index, (1,), size) for index, size in enumerate((1, 50, 40, 10))]
    moves = plan_moves(partitions, {1: None, 2: None, 3: None}, load_bytes={}, leaving=[1])
    assert {move.partition.size_bytes: move.target for move in moves} == {
        50: (2,),
        40: (3,),
        10: (3,),
        1: (2,),
    }
    assert sum(move.moved_bytes for move in moves) == 101


@given(
    st.lists(st.permutations(range(1, 6)).map(lambda ids: tuple(ids[:3])), max_size=8),
    st.integers(1, 4),
    st.sets(st.integers(1, 5), max_size=1),
)
def test_a_plan_moves_no_more_than_it_has_to(
    assignments: list[tuple[int, ...]], factor: int, leaving: set[int]
) -> None:
    racks = {broker_id: "ab"[broker_id % 2] for broker_id in range(1, 6)}
    partitions = [PlacedPartition("t", index, ids, index) for index, ids in enumerate(assignments)]
    moves = plan_moves(partitions, racks, load_bytes={}, replication_factor=factor, leaving=leaving)
    for move in moves:
        stays = set(move.partition.replicas) - leaving
        assert len(set(move.target)) == len(move.target) == factor
        assert not leaving & set(move.target)
        assert len(stays & set(move.target)) == min(factor, len(stays))
