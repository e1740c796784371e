"""The order in which batches are read."""

from uuid import UUID

from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.pipeline.reading.wal_plan import in_object_order, is_dense

TOPIC = UUID(int=1)


def batch(partition: int, offset: int, key: str, position: int = 0) -> BatchCoordinate:
    return BatchCoordinate(TOPIC, partition, offset, offset + 9, key, position, 100, -1, 0, 0)


def keys(batches: list[BatchCoordinate]) -> list[tuple[str, int, int]]:
    return [(one.object_key, one.partition_index, one.base_offset) for one in batches]


def test_each_object_is_read_once_for_all_partitions() -> None:
    first = [batch(0, 0, "a"), batch(0, 10, "a"), batch(0, 20, "c")]
    second = [batch(1, 0, "b"), batch(1, 10, "c")]
    third = [batch(2, 0, "a"), batch(2, 10, "b"), batch(2, 20, "c")]
    assert keys(in_object_order([first, second, third])) == [
        ("a", 0, 0),
        ("a", 0, 10),
        ("a", 2, 0),
        ("b", 1, 0),
        ("b", 2, 10),
        ("c", 0, 20),
        ("c", 1, 10),
        ("c", 2, 20),
    ]


def test_orders_that_contradict_each_other_lose_nothing() -> None:
    first = [batch(0, 0, "a"), batch(0, 10, "b")]
    second = [batch(1, 0, "b"), batch(1, 10, "a")]
    ordered = in_object_order([first, second])
    for partition, batches in enumerate([first, second]):
        assert [one for one in ordered if one.partition_index == partition] == batches


def test_an_empty_list_has_no_order() -> None:
    assert in_object_order([]) == []
    assert in_object_order([[], []]) == []


def test_batches_are_dense_when_no_offset_is_missing() -> None:
    batches = [batch(0, 10, "a"), batch(0, 20, "b")]
    assert is_dense(batches, 10)
    assert is_dense(batches, 15)
    assert not is_dense(batches, 9)
    assert not is_dense([batches[0], batch(0, 30, "b")], 10)
