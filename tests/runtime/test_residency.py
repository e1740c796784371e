"""A process reads files through memory maps. The memory of these maps is released, so it stays below a
limit."""

import mmap
import pathlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from moldau.runtime import LocalDisk
from moldau.runtime.files import residency
from moldau.runtime.files.local_file import LocalFile

MIB = 1024 * 1024
BOUND = 32 * MIB


def mapped_bytes() -> int:
    """Resident bytes of mapped files (RssFile)."""
    found = re.search(r"RssFile:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_reading_a_large_file_leaves_a_bounded_residue(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "PROCESS", residency.Residency(BOUND))
    path = tmp_path / "large"
    size = 4 * BOUND
    path.write_bytes(b"\1" * size)
    file = LocalDisk().open(str(path), read_only=True)
    before = mapped_bytes()
    first = file.view(0, MIB)
    for position in range(0, size, MIB):
        assert sum(file.view(position, MIB)[::4096]) == MIB // 4096
    assert mapped_bytes() - before <= BOUND + 8 * MIB
    assert sum(first[::4096]) == MIB // 4096  # an earlier view is still valid
    file.close()


def unlinked_file(tmp_path: pathlib.Path, size: int) -> LocalFile:
    """An open file that has no name, so that its disk space is freed when it is closed."""
    path = tmp_path / "deleted"
    path.write_bytes(b"\1" * size)
    file = LocalDisk().open(str(path), read_only=True)
    path.unlink()
    assert isinstance(file, LocalFile)
    return file


def is_mapped(path: pathlib.Path) -> bool:
    return str(path) in pathlib.Path("/proc/self/maps").read_text()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_map_of_a_closed_file_is_removed_immediately(tmp_path: pathlib.Path) -> None:
    file = unlinked_file(tmp_path, 4 * MIB)
    file.view(0, 2 * MIB)
    assert is_mapped(tmp_path)
    file.close()
    wait_until(lambda: not is_mapped(tmp_path))


def test_map_of_a_closed_file_stays_for_the_views_that_are_left(tmp_path: pathlib.Path) -> None:
    file = unlinked_file(tmp_path, 4 * MIB)
    view = file.view(MIB, 2 * MIB)
    file.close()
    wait_until(lambda: len(residency.PROCESS._retired) == 1)
    assert bytes(view[:4]) == b"\1\1\1\1"
    assert is_mapped(tmp_path)
    view.release()
    wait_until(lambda: not is_mapped(tmp_path))
    assert len(residency.PROCESS._retired) == 0


def test_map_of_a_closed_file_is_removed_by_another_thread(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed_in: list[threading.Thread] = []
    close = residency._close

    def noting(unused: mmap.mmap) -> bool:
        removed_in.append(threading.current_thread())
        return close(unused)

    monkeypatch.setattr(residency, "_close", noting)
    file = unlinked_file(tmp_path, 4 * MIB)
    file.view(0, 2 * MIB)
    file.close()
    wait_until(lambda: not is_mapped(tmp_path))
    assert threading.current_thread() not in removed_in


def test_other_threads_may_record_maps_while_pages_are_released() -> None:
    process = residency.Residency(BOUND)

    class Map:
        """A map. While its pages are released, another thread records a view of a new map."""

        released = 0

        def madvise(self, advice: int) -> None:
            self.released += 1
            process.shown(cast(Any, object()), 1)

    maps = Map(), Map()
    for each in maps:
        process.shown(cast(Any, each), 1)
    process.release_pages()
    assert [each.released for each in maps] == [1, 1]
