"""Whether bytes of a file are in memory, on this system and on systems that can tell less."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.runtime import LocalDisk
from moldau.runtime.files import page_cache
from moldau.runtime.files.disk import File, FileRange

SIZE_BYTES = 3 << 20


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[File]:
    """A file whose content is only on the disk."""
    file = LocalDisk().open(str(tmp_path / "a"), create=True)
    file.write_at(0, [os.urandom(SIZE_BYTES)])
    file.sync()
    file.forget_pages()
    if file.is_cached(0, SIZE_BYTES):
        pytest.skip("this file system keeps its files in memory, or cannot tell where they are")
    yield file
    file.close()


def refuse(number: int) -> Any:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_loaded_bytes_are_cached(cold: File) -> None:
    FileRange(cold, 5_000, SIZE_BYTES - 5_000).load()
    assert cold.is_cached(5_000, SIZE_BYTES - 5_000)


def test_one_page_that_is_missing_is_found(cold: File) -> None:
    cold.load(0, SIZE_BYTES)
    assert cold.is_cached(0, SIZE_BYTES)
    cold.forget_pages(1 << 20, 1 << 20)
    assert not cold.is_cached(0, SIZE_BYTES)
    assert cold.is_cached(0, 1 << 20)


def test_bytes_after_the_end_are_not_loaded(cold: File) -> None:
    cold.load(SIZE_BYTES - 10, 1 << 20)
    cold.load(SIZE_BYTES + 10, 1 << 20)
    assert cold.is_cached(SIZE_BYTES - 10, 10)


def test_written_bytes_are_cached(tmp_path: Path) -> None:
    file = LocalDisk().open(str(tmp_path / "a"), create=True)
    file.write_at(0, [bytes(SIZE_BYTES)])
    assert file.is_cached(0, 1)
    assert file.is_cached(0, SIZE_BYTES)
    assert file.is_cached(SIZE_BYTES - 1, 1)
    file.close()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_without_sendfile_the_bytes_are_copied_to_load_them(
    cold: File, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "sendfile", refuse(number))
    cold.load(0, SIZE_BYTES)
    assert cold.is_cached(0, SIZE_BYTES)


def test_a_disk_that_fails_is_an_error(cold: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", refuse(errno.EIO))
    with pytest.raises(OSError, match="error"):
        cold.load(0, SIZE_BYTES)


def test_a_kernel_that_cannot_count_pages_is_asked_once(cold: File, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = page_cache._PageCounter()
    asked: list[int] = []

    def refused(number: int, *_: Any) -> int:
        asked.append(number)
        return -1

    monkeypatch.setattr(counter, "_call", refused)
    monkeypatch.setattr(page_cache, "_counter", counter)
    cold.load(0, SIZE_BYTES)
    assert cold.is_cached(0, SIZE_BYTES)
    assert cold.is_cached(0, SIZE_BYTES)
    assert len(asked) == 1


def test_counts_that_miss_a_page_that_was_just_read_are_not_used(
    cold: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the layers of a container, the pages belong to another file, so none of them is counted."""
    counter = page_cache._PageCounter()
    asked: list[int] = []

    def nothing(number: int, descriptor: int, wanted: Any, counts: Any, flags: int) -> int:
        asked.append(descriptor)
        counts[:] = bytes(len(counts))
        return 0

    monkeypatch.setattr(counter, "_call", nothing)
    monkeypatch.setattr(page_cache, "_counter", counter)
    cold.load(0, SIZE_BYTES)
    assert cold.is_cached(0, SIZE_BYTES)
    assert len(asked) == 2
    assert cold.is_cached(0, SIZE_BYTES)
    assert len(asked) == 2


@pytest.mark.parametrize("size_bytes", [0, -1, -1_000])
def test_no_bytes_are_cached(cold: File, size_bytes: int) -> None:
    assert cold.is_cached(5, size_bytes)


def test_a_page_that_the_device_still_reads_is_not_cached(
    cold: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold.load(0, SIZE_BYTES)
    monkeypatch.setattr(os, "preadv", refuse(errno.EAGAIN))
    assert not cold.is_cached(0, SIZE_BYTES)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EIO])
def test_bytes_count_as_cached_if_the_system_cannot_tell(
    cold: File, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cold.load(0, SIZE_BYTES)
    monkeypatch.setattr(os, "preadv", refuse(number))
    assert cold.is_cached(0, SIZE_BYTES)


def test_other_systems_read_at_once(cold: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_NOWAIT", 0)
    assert cold.is_cached(0, SIZE_BYTES)
    cold.load(0, SIZE_BYTES)
    monkeypatch.undo()
    assert cold.is_cached(0, SIZE_BYTES)


def test_a_closed_file_counts_as_cached(cold: File) -> None:
    cold.close()
    assert cold.is_cached(0, SIZE_BYTES)
