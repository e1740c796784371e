"""Exports and the sink write files into local folders. The files and the names of folders survive a loss of
power."""

import asyncio
import os
import pathlib
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from exporting import FORMATS, create_topic, produce_values, run_here

import moldau.testing
from moldau.pipeline.export.catalogs import CATALOG_FILE
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.sink.store import FileSinkStore
from moldau.pipeline.sink_keys import SINK_PREFIX


class Synced:
    """The files and folders that were synced by calls of ``os.fsync``."""

    def __init__(self) -> None:
        self._names: set[tuple[int, str, int]] = set()
        self._sizes: dict[int, int] = {}
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        state = os.fstat(descriptor)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            with os.scandir(descriptor) as entries:
                self._names.update((state.st_ino, entry.name, entry.inode()) for entry in entries)
        else:
            self._sizes[state.st_ino] = state.st_size

    def lost(self, root: pathlib.Path) -> list[str]:
        """The topmost folder or file that a loss of power could remove. It may be ``root`` itself."""
        lost = []
        for path in [root, *sorted(root.rglob("*"))]:
            state = path.stat()
            if (path.parent.stat().st_ino, path.name, state.st_ino) not in self._names:
                lost.append(f"the name {path}")
            if path.is_file() and self._sizes.get(state.st_ino) != state.st_size:
                lost.append(f"the content of {path}")
        return lost


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    watcher = Synced()
    monkeypatch.setattr(os, "fsync", watcher.fsync)
    return watcher


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        create_topic(running, "orders")
        produce_values(running, "orders", [b"a", b"b"])
        yield running


@pytest.mark.parametrize("table_format", FORMATS)
def test_an_export_is_durable(
    node: moldau.testing.Node, tmp_path: pathlib.Path, table_format: str, synced: Synced
) -> None:
    folder = tmp_path / "lakes" / "one"
    export_once(ExportJob(node.bootstrap_servers, "orders", str(folder), table_format), run_here)
    assert any(folder.rglob("*.parquet"))
    # Two paths are excluded: the catalog file, which SQLite syncs itself, and the scratch folder of an
    # attempt, which is empty and not used any more.
    assert [
        found for found in synced.lost(folder) if CATALOG_FILE not in found and "scratch" not in found
    ] == []


def test_the_sink_is_durable(tmp_path: pathlib.Path, synced: Synced) -> None:
    root = tmp_path / "objects"

    async def write() -> None:
        store = FileSinkStore(f"{root}/")
        await store.put("wal/7/2026112201/object", b"rows")
        assert await store.create(f"{SINK_PREFIX}/query/1.intent", b"key")
        assert not await store.create(f"{SINK_PREFIX}/query/1.intent", b"other")

    asyncio.run(write())
    assert len([path for path in root.rglob("*") if path.is_file()]) == 2
    assert synced.lost(root) == []
