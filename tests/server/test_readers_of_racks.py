"""The broker of a rack that reads whole objects from the store."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.server.metadata.cluster_racks import ClusterRacks


def racks_of(
    local_id: int, racks: Mapping[int, str | None], fenced: frozenset[int] = frozenset()
) -> ClusterRacks:
    brokers = {
        broker_id: SimpleNamespace(broker_id=broker_id, rack=rack, is_active=broker_id not in fenced)
        for broker_id, rack in racks.items()
    }
    image = cast(Any, SimpleNamespace(brokers=brokers, topics={}))
    return ClusterRacks(local_id, lambda: image)


def test_a_broker_that_is_alone_in_its_rack_reads_whole_objects() -> None:
    racks = racks_of(1, {1: "a", 2: "b", 3: "c"})
    assert [racks.reader_of("wal/object", writer) for writer in (1, 2, 3)] == [1, 1, 1]
    assert not racks.has_peers


def test_a_broker_whose_peers_are_fenced_reads_whole_objects() -> None:
    racks = racks_of(1, {1: "a", 2: "a", 3: "b"}, fenced=frozenset({2}))
    assert [racks.reader_of("wal/object", writer) for writer in (1, 2, 3)] == [1, 1, 1]


def test_the_writer_reads_for_its_own_rack() -> None:
    racks = racks_of(1, {1: "a", 2: "a", 3: "b"})
    assert [racks.reader_of("wal/object", writer) for writer in (1, 2)] == [1, 2]
    assert racks.reader_of("wal/object", 3) in (1, 2)


def test_a_broker_without_a_rack_reads_ranges() -> None:
    assert racks_of(1, {1: None, 2: "b"}).reader_of("wal/object", 2) is None


@pytest.mark.parametrize(
    ("racks", "fenced", "expected"),
    [
        ({1: "a"}, (), False),
        ({1: "a", 2: "b"}, (), True),
        ({1: None, 2: "b"}, (), True),
        ({1: "a", 2: None}, (), False),
        ({1: "a", 2: "b"}, (2,), False),
    ],
)
def test_keys_contain_sizes_if_another_live_broker_has_a_rack(
    racks: Mapping[int, str | None], fenced: tuple[int, ...], expected: bool
) -> None:
    assert racks_of(1, racks, frozenset(fenced)).has_rack_readers is expected
