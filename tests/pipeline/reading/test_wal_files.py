"""Ranges of WAL objects in local files are read directly into their final places in memory."""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.pipeline.consolidation import wal_files
from moldau.pipeline.consolidation.wal_files import WalFiles

CONTENT = random.Random(1).randbytes(5_000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WalFiles:
    root = tmp_path_factory.mktemp("store")
    (root / "wal").mkdir()
    (root / "wal" / "a").write_bytes(CONTENT)
    return WalFiles(str(root))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 200)), max_size=20), st.integers(0, 100))
def test_pieces_with_and_without_gaps(
    files: WalFiles, pieces: Sequence[tuple[int, int]], offset: int
) -> None:
    """A range is a pair: its distance from the previous range, and its length."""
    targets: list[tuple[int, memoryview]] = []
    position = 0
    for gap, size in pieces:
        targets.append((position + gap, memoryview(bytearray(size))))
        position += gap + size
    if offset + position > len(CONTENT):
        return
    asyncio.run(files.scatter("wal/a", offset, targets))
    for start, target in targets:
        assert target == CONTENT[offset + start : offset + start + len(target)]


def test_more_pieces_can_be_read_than_one_system_call_accepts(files: WalFiles) -> None:
    targets = [(at, memoryview(bytearray(1))) for at in range(2 * wal_files.VIEWS_MAX + 3)]
    asyncio.run(files.scatter("wal/a", 7, targets))
    assert b"".join(view for _, view in targets) == CONTENT[7 : 7 + len(targets)]


def test_reads_that_stop_early_continue(files: WalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    read_now = os.preadv

    def read_some(descriptor: int, views: Sequence[memoryview], position: int) -> int:
        return read_now(descriptor, [views[0][:7]], position)

    monkeypatch.setattr(os, "preadv", read_some)
    targets = [(0, memoryview(bytearray(20))), (20, memoryview(bytearray(5))), (40, memoryview(bytearray(9)))]
    asyncio.run(files.scatter("wal/a", 100, targets))
    assert [bytes(view) for _, view in targets] == [CONTENT[100:120], CONTENT[120:125], CONTENT[140:149]]


def test_missing_objects_are_reported(files: WalFiles) -> None:
    assert asyncio.run(files.fetch("wal/a", 4_990, 10)) == CONTENT[4_990:]
    with pytest.raises(StorageError, match="wal/a ends before byte 5001"):
        asyncio.run(files.fetch("wal/a", 4_990, 11))
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(files.fetch("wal/b", 0, 1))
    with pytest.raises(StorageError, match="no object key"):
        asyncio.run(files.fetch("../a", 0, 1))


def test_a_folder_is_no_object(files: WalFiles) -> None:
    with pytest.raises(StorageError, match="directory"):
        asyncio.run(files.fetch("wal", 0, 1))
