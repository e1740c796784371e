"""The rules of the Disk port. They are checked on the machine's own disk and on the simulated disk."""

import errno
import fcntl
import mmap
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moldau.runtime import Disk, DiskError, LocalDisk
from moldau.runtime.buffers import Buffer
from moldau.runtime.files import local_file
from moldau.simulation.world.disks.disk import SimulatedDisk
from moldau.simulation.world.process import Process


@pytest.fixture(params=["local", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and an empty folder on it."""
    if request.param == "local":
        return LocalDisk(), str(tmp_path)
    disk = SimulatedDisk(random.Random(1), lambda: 1_000, lambda _event: None).mount(Process("test"))
    disk.make_dirs("/somewhere/deep")
    return disk, "/somewhere/deep"


def write(disk: Disk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.write_at(0, [content])
    file.close()


def test_written_bytes_can_be_read(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    assert file.path == f"{folder}/a"
    assert file.write_at(0, [b"hello ", memoryview(b"big "), bytearray(b"world")]) == 15
    assert file.size() == disk.size(file.path) == 15
    assert file.read_at(6, 3) == b"big"
    assert file.read_at(10, 100) == b"world"
    assert file.read_at(100, 1) == b""
    assert bytes(file.view(0, 5)) == b"hello"
    file.sync()
    file.close()
    assert disk.read(f"{folder}/a") == b"hello big world"


@pytest.mark.parametrize("missing", [0, 1_000])
def test_large_writes_go_to_the_system_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    pieces: list[int] = []

    def write_some(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        content = b"".join(buffers)
        pieces.append(len(content))
        return os.pwrite(descriptor, content[: len(content) - missing], position)

    monkeypatch.setattr(os, "pwritev", write_some)
    size_max = local_file.WRITE_SIZE_BYTES_MAX
    chance = random.Random(3)
    content = chance.randbytes(3 * size_max)
    ends = sorted([chance.randrange(len(content)) for _ in range(20)] + [size_max, len(content)])
    buffers = [content[begin:end] for begin, end in pairwise([0, *ends])]
    file = LocalDisk().open(str(tmp_path / "a"), create=True)
    assert file.write_at(5, buffers) == file.write_at(5 + len(content), [content]) == len(content)
    assert file.read_at(0, 1 << 30) == bytes(5) + content + content
    file.close()
    assert max(pieces) == size_max
    assert sum(pieces) == 2 * len(content)


def test_read_once_returns_the_bytes_of_the_file(place: tuple[Disk, str]) -> None:
    disk, folder = place
    content = random.Random(7).randbytes((1 << 20) + 777)
    write(disk, f"{folder}/a", content)
    file = disk.open(f"{folder}/a", read_only=True)
    whole = file.read_once(0, len(content))
    for position in (0, 1, 4096, 500_001, len(content) - 1, len(content), len(content) + 9):
        for size in (0, 1, 4096, 131_072, 300_003, 2 << 20):
            assert bytes(file.read_once(position, size)) == content[position : position + size]
    file.close()
    assert bytes(whole) == content  # No later read used the memory of this read.
    with pytest.raises(DiskError):
        file.read_once(0, 1 << 20)


def test_a_read_past_the_page_cache_that_stops_early_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(7).randbytes(1 << 20)
    path = f"{tmp_path}/a"
    write(LocalDisk(), path, content)
    sizes = iter([70_001, 5, 300_000])
    preadv = os.preadv

    def short(descriptor: int, views: list[memoryview], position: int) -> int:
        return preadv(descriptor, [views[0][: next(sizes, 1 << 20)]], position)

    monkeypatch.setattr(os, "preadv", short)
    file = LocalDisk().open(path, read_only=True)
    assert bytes(file.read_once(4_099, 900_000)) == content[4_099 : 4_099 + 900_000]
    file.close()


def test_a_view_stays_when_the_file_grows_and_closes(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, [b"x" * 100])
    view = file.view(10, 50)
    file.write_at(100, [b"y" * 200_000])
    large = file.view(0, 200_100)
    file.close()
    assert bytes(view) == b"x" * 50
    assert bytes(large[99:101]) == b"xy"


def test_forgotten_pages_are_read_again(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, [b"x" * 200_000])
    view = file.view(0, 100_000)
    file.sync()
    file.forget_pages()
    file.write_at(200_000, [b"y" * 5_000])
    file.forget_pages(100_000, 105_000)  # unsynced bytes may be lost, too
    assert bytes(view) == b"x" * 100_000
    assert file.read_at(199_999, 10_000) == b"x" + b"y" * 5_000
    file.close()
    with pytest.raises(DiskError):
        file.forget_pages()


@pytest.mark.parametrize(("position", "size"), [(0, 1), (1, 70_000), (4_096, 200_000), (99_999, 200_001)])
def test_loaded_bytes_are_viewed_as_other_bytes(place: tuple[Disk, str], position: int, size: int) -> None:
    disk, folder = place
    content = random.Random(1).randbytes(300_000)
    write(disk, f"{folder}/a", content)
    file = disk.open(f"{folder}/a")
    file.load(position, size)
    assert isinstance(file.is_cached(position, size), bool)
    view = file.view_loaded(position, size)
    with pytest.raises(DiskError):
        file.view_loaded(position, 300_001 - position)
    file.close()
    disk.remove(f"{folder}/a")
    assert bytes(view) == content[position : position + size]
    with pytest.raises((DiskError, FileNotFoundError)):
        file.load(position, size)


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("size", [0, 5, 1 << 20, (3 << 20) + 17])
def test_a_file_is_filled_from_memory_wherever_it_begins(
    place: tuple[Disk, str], begin: int, size: int
) -> None:
    disk, folder = place
    memory = memoryview(mmap.mmap(-1, begin + size + 1))
    content = memory[begin : begin + size]
    content[:] = random.Random(size).randbytes(size)
    file = disk.open(f"{folder}/a", create=True)
    file.fill(content)
    assert file.size() == size
    # After ``fill``, ``write_at`` still accepts writes of any length at any position.
    file.write_at(size, [b"more"])
    file.close()
    assert disk.read(f"{folder}/a") == bytes(content) + b"more"


def test_a_view_past_the_end_is_refused(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(0, [b"abc"])
    with pytest.raises(DiskError, match="past the end"):
        file.view(1, 3)
    file.close()


def test_a_gap_reads_as_zeros(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write_at(4, [b"z"])
    assert file.read_at(0, 5) == b"\0\0\0\0z"
    file.truncate(2)
    file.truncate(6)
    assert file.read_at(0, 9) == bytes(6)
    file.close()


def test_a_closed_or_read_only_file_refuses(place: tuple[Disk, str]) -> None:
    disk, folder = place
    write(disk, f"{folder}/a", b"abc")
    reader = disk.open(f"{folder}/a", read_only=True)
    assert reader.read_at(0, 3) == b"abc"
    with pytest.raises(DiskError) as refused:
        reader.write_at(0, [b"x"])
    assert refused.value.errno == errno.EBADF
    reader.close()
    reader.close()
    with pytest.raises(DiskError):
        reader.read_at(0, 1)
    with pytest.raises(DiskError):
        reader.size()


def test_a_removed_file_lives_on_in_its_handle(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    disk.remove(f"{folder}/a")
    disk.remove(f"{folder}/a")
    assert not disk.exists(f"{folder}/a")
    file.write_at(0, [b"ghost"])
    assert file.read_at(0, 5) == b"ghost"
    file.close()


@pytest.mark.parametrize("call", ["open", "read", "size", "modified_ms", "list", "sync_dir"])
def test_an_absent_file_is_not_found(place: tuple[Disk, str], call: str) -> None:
    disk, folder = place
    with pytest.raises(FileNotFoundError):
        getattr(disk, call)(f"{folder}/absent")


def test_removing_an_absent_file_is_no_error(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.remove(f"{folder}/absent")
    disk.remove_tree(f"{folder}/absent")
    assert not disk.exists(f"{folder}/absent")
    assert not disk.is_dir(f"{folder}/absent")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{folder}/absent", f"{folder}/b")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/absent/file", create=True)


def test_folders_are_created_listed_renamed_and_removed(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.make_dirs(f"{folder}/one/two")
    disk.make_dirs(f"{folder}/one/two")
    write(disk, f"{folder}/one/b", b"")
    write(disk, f"{folder}/one/a", b"")
    assert disk.list(f"{folder}/one") == ["a", "b", "two"]
    assert disk.is_dir(f"{folder}/one/two")
    assert not disk.is_dir(f"{folder}/one/a")
    disk.sync_dir(f"{folder}/one")
    disk.rename(f"{folder}/one", f"{folder}/uno")
    assert disk.exists(f"{folder}/uno/two")
    disk.remove_tree(f"{folder}/uno")
    assert disk.list(folder) == []


def test_a_file_in_the_place_of_a_folder(place: tuple[Disk, str]) -> None:
    disk, folder = place
    write(disk, f"{folder}/file", b"")
    disk.make_dirs(f"{folder}/dir/full")
    with pytest.raises(DiskError):
        disk.make_dirs(f"{folder}/file/x")
    with pytest.raises(DiskError):
        disk.list(f"{folder}/file")
    with pytest.raises(DiskError):
        disk.open(f"{folder}/dir")
    with pytest.raises(DiskError):
        disk.remove(f"{folder}/dir")
    with pytest.raises(DiskError):
        disk.rename(f"{folder}/file", f"{folder}/dir")


def test_a_rename_replaces_an_existing_file(place: tuple[Disk, str]) -> None:
    disk, folder = place
    write(disk, f"{folder}/old", b"old")
    write(disk, f"{folder}/new", b"new")
    disk.rename(f"{folder}/new", f"{folder}/old")
    assert disk.list(folder) == ["old"]
    assert disk.read(f"{folder}/old") == b"new"


def test_write_atomically_replaces_whole(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.write_atomically(f"{folder}/a", b"first, long")
    disk.write_atomically(f"{folder}/a", b"second")
    assert disk.read(f"{folder}/a") == b"second"
    assert disk.list(folder) == ["a"]


def test_a_lock_has_one_holder(place: tuple[Disk, str]) -> None:
    disk, folder = place
    lock = disk.lock(f"{folder}/.lock")
    with pytest.raises(DiskError) as refused:
        disk.lock(f"{folder}/.lock")
    assert refused.value.errno == errno.EAGAIN
    lock.close()
    lock.close()
    again: Any = disk.lock(f"{folder}/.lock")
    again.close()


def test_the_size_of_the_file_system_of_a_folder_is_known(place: tuple[Disk, str]) -> None:
    disk, folder = place
    total_bytes, usable_bytes = disk.space(folder)
    assert 0 < usable_bytes <= total_bytes
    with pytest.raises(FileNotFoundError):
        disk.space(f"{folder}/absent")


def test_a_simulated_disk_fills_up() -> None:
    device = SimulatedDisk(random.Random(1), lambda: 1_000, lambda _event: None)
    device.capacity_bytes = 10_000
    disk = device.mount(Process("test"))
    write(disk, "/a", b"x" * 4_000)
    assert disk.space("/") == (10_000, 6_000)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no such writes")
@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_refuses_direct_writes_is_written_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """The file system accepts a part of the first direct write (O_DIRECT), and refuses the next direct
    write."""
    flags = os.O_RDWR
    refused: list[int] = []
    write_now = os.pwrite

    def control(_descriptor: int, command: int, wanted: int = 0) -> int:
        nonlocal flags
        if command == fcntl.F_SETFL:
            flags = wanted
        return flags

    def write_some(descriptor: int, view: memoryview, position: int) -> int:
        if position and flags & os.O_DIRECT:
            refused.append(position)
            raise OSError(refusal, os.strerror(refusal))
        return write_now(descriptor, view[: 2 * mmap.PAGESIZE], position)

    file = LocalDisk().open(f"{tmp_path}/a", create=True)
    content = random.Random(1).randbytes(2 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", control)
        patch.setattr(os, "pwrite", write_some)
        if refusal == errno.EINVAL:
            file.fill(content)
            assert (tmp_path / "a").read_bytes() == content
        else:
            with pytest.raises(DiskError, match=os.strerror(errno.EIO)):
                file.fill(content)
    assert refused == [2 * mmap.PAGESIZE]
    assert flags == os.O_RDWR
    file.close()
