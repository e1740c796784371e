"""A damaged cache of remote metadata is never used. It is rebuilt, or the damage is reported."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from segment_fakes import ORDERS, segment

from moldau.runtime import InlineWorkers, LocalDisk, Machine, SeededEntropy, SystemClock
from moldau.tiered.metadata.lifecycle import RemotePartitionDeleteState
from moldau.tiered.metadata.segments import RemotePartitionDeleteMetadata, TopicIdPartition
from moldau.tiered.metadata.store import NOTHING_APPLIED, AppliedEvents, MetadataStore

TOPIC_ID = UUID(int=5)
OTHER = TopicIdPartition(UUID(int=77), "others", 3)
SEGMENTS = 60
PAGE_BYTES = 4096


@pytest.fixture
def machine() -> Machine:
    return Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def fill(store: MetadataStore) -> None:
    events: list[tuple[int, Any]] = [
        (number, segment(number, 100 * number, 100 * number + 99)) for number in range(SEGMENTS)
    ]
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    events.append((SEGMENTS, RemotePartitionDeleteMetadata(OTHER, marked, 7, 1)))
    store.apply(2, events, AppliedEvents(SEGMENTS + 1, 3))


def state(store: MetadataStore) -> Any:
    loaded = store.load(ORDERS)
    return (
        sorted(map(repr, loaded.segments)),
        dict(loaded.highest_offsets),
        store.applied(2),
        store.deletions(2),
        store.partitions(2),
    )


def unclean_copy(store: MetadataStore, path: Path) -> bytes:
    """The database file after a kill. Its write-ahead log was merged into it."""
    store._connection.execute("pragma wal_checkpoint(truncate)")
    return path.read_bytes()


def positions(content: bytes) -> Iterator[int]:
    chance = random.Random(3)
    for _ in range(150):
        yield chance.randrange(len(content))


def test_a_cleanly_closed_file_is_used_without_a_rebuild(machine: Machine, path: Path) -> None:
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    fill(store)
    expected = state(store)
    store.close()
    inode = path.stat().st_ino
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    assert state(store) == expected
    assert path.stat().st_ino == inode
    store.close()


@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "deleted"])
def test_a_file_that_changed_while_it_was_closed_is_created_again(
    machine: Machine, path: Path, how: str
) -> None:
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    fill(store)
    store.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    match how:
        case "flipped":
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "emptied":
            path.write_bytes(b"")
        case "deleted":
            path.unlink()
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    assert store.applied(2) == NOTHING_APPLIED
    store.close()


def test_flipped_bytes_after_a_kill_have_no_effect_or_cause_a_rebuild(machine: Machine, path: Path) -> None:
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    fill(store)
    expected = state(store)
    whole = unclean_copy(store, path)
    store.close()
    begun_anew = 0
    for number, position in enumerate(positions(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << number % 8
        copy = path.with_name(f"copy-{number}.sqlite")
        copy.write_bytes(damaged)
        opened = MetadataStore.open(machine, str(copy), TOPIC_ID)
        if opened.applied(2) == NOTHING_APPLIED:
            begun_anew += 1
        else:
            assert state(opened) == expected, position
        opened.abandon()
    assert begun_anew > 20


def test_rows_that_change_while_it_runs_are_not_served(machine: Machine, path: Path) -> None:
    store = MetadataStore.open(machine, str(path), TOPIC_ID)
    fill(store)
    expected = state(store)
    whole = unclean_copy(store, path)
    store._connection.pragma("cache_size", 1)
    refused = 0
    for number, position in enumerate(positions(whole)):
        if position < PAGE_BYTES:
            continue
        store._connection.execute("pragma shrink_memory")
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([whole[position] ^ 1 << number % 8]))
            file.flush()
            try:
                found = store.load(ORDERS)
                assert sorted(map(repr, found.segments)) == expected[0], position
                assert dict(found.highest_offsets) == expected[1], position
            except (apsw.CorruptError, apsw.NotADBError):
                refused += 1
            file.seek(position)
            file.write(whole[position : position + 1])
    assert refused > 10
    store.close()
