"""Files share a limited number of descriptors. The users of files do not notice this."""

import errno
import os
import threading
from pathlib import Path

import pytest

from moldau.runtime.files.descriptor_cache import DescriptorCache
from moldau.runtime.files.disk import DiskError, File
from moldau.runtime.files.local_disk import LocalDisk

LIMIT = 4


@pytest.fixture
def descriptors() -> DescriptorCache:
    return DescriptorCache(lambda: LIMIT)


@pytest.fixture
def disk(descriptors: DescriptorCache) -> LocalDisk:
    return LocalDisk(descriptors)


def use_others(disk: LocalDisk, folder: Path) -> None:
    """Open and use so many other files that all idle files lose their descriptors."""
    for number in range(3 * LIMIT):
        other = disk.open(f"{folder}/other-{number}", create=True)
        other.write_at(0, [b"x"])
        other.close()
    others = [disk.open(f"{folder}/other-{number}") for number in range(3 * LIMIT)]
    for other in others:
        other.close()


def new_file(disk: LocalDisk, path: Path, content: bytes) -> File:
    file = disk.open(str(path), create=True)
    file.write_at(0, [content])
    return file


def test_many_files_stay_usable_on_few_descriptors(
    disk: LocalDisk, descriptors: DescriptorCache, tmp_path: Path
) -> None:
    files = [new_file(disk, tmp_path / str(number), b"%d" % number) for number in range(50)]
    assert len(descriptors) <= LIMIT
    for number, file in enumerate(files):
        file.write_at(2, [b"!"])
        file.sync()
        assert file.read_at(0, 10).rstrip(b"\0!").rstrip(b"\0") == b"%d" % number
        assert bytes(file.view(2, 1)) == b"!"
        assert file.size() == 3
    assert len(descriptors) <= LIMIT
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for file in files:
        file.close()
    assert len(descriptors) == 0
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_file_follows_its_renames(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = new_file(disk, tmp_path / "a" / "one", b"content")
    use_others(disk, tmp_path)
    disk.rename(str(tmp_path / "a" / "one"), str(tmp_path / "a" / "two"))
    use_others(disk, tmp_path)
    assert file.read_at(0, 10) == b"content"
    disk.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    use_others(disk, tmp_path)
    assert file.read_at(0, 10) == b"content"
    assert file.path == str(tmp_path / "b" / "two")


def test_file_stays_readable_without_a_name(disk: LocalDisk, tmp_path: Path) -> None:
    removed = new_file(disk, tmp_path / "removed", b"removed")
    replaced = new_file(disk, tmp_path / "replaced", b"replaced")
    (tmp_path / "folder").mkdir()
    inside = new_file(disk, tmp_path / "folder" / "inside", b"inside")
    use_others(disk, tmp_path)
    disk.remove(str(tmp_path / "removed"))
    disk.write_atomically(str(tmp_path / "replaced"), b"new")
    disk.remove_tree(str(tmp_path / "folder"))
    use_others(disk, tmp_path)
    assert removed.read_at(0, 10) == b"removed"
    assert replaced.read_at(0, 10) == b"replaced"
    assert inside.read_at(0, 10) == b"inside"
    for file in (removed, replaced, inside):
        file.close()


def test_another_file_under_the_same_name_is_never_written_to(disk: LocalDisk, tmp_path: Path) -> None:
    file = new_file(disk, tmp_path / "one", b"mine")
    use_others(disk, tmp_path)
    # Another program has replaced the file. The disk port cannot detect this.
    (tmp_path / "other").write_bytes(b"theirs")
    os.replace(tmp_path / "other", tmp_path / "one")
    with pytest.raises(DiskError) as refused:
        file.write_at(0, [b"mine again"])
    assert refused.value.errno == errno.ESTALE
    assert (tmp_path / "one").read_bytes() == b"theirs"


def test_views_outlive_the_descriptor(disk: LocalDisk, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    file = new_file(disk, tmp_path / "large", content)
    view = file.view(0, len(content))
    use_others(disk, tmp_path)
    assert view == content
    assert file.view(0, len(content)) == content


def test_closed_file_is_not_opened_again(disk: LocalDisk, tmp_path: Path) -> None:
    file = new_file(disk, tmp_path / "one", b"content")
    file.close()
    file.close()
    with pytest.raises(DiskError) as refused:
        file.read_at(0, 1)
    assert refused.value.errno == errno.EBADF


def test_threads_never_meet_the_descriptor_of_another_file(disk: LocalDisk, tmp_path: Path) -> None:
    files = [new_file(disk, tmp_path / str(number), b"%03d" % number) for number in range(4 * LIMIT)]
    wrong: list[object] = []

    def read_all(first: int) -> None:
        try:
            for turn in range(400):
                number = (first + 7 * turn) % len(files)
                files[number].write_at(3, [b"%03d" % number])
                found = files[number].read_at(0, 6)
                if found != b"%03d%03d" % (number, number):
                    wrong.append((number, found))
                if turn % 50 == 0:
                    files[number].sync()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read_all, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_operation_without_a_free_descriptor_is_tried_again(tmp_path: Path) -> None:
    descriptors = DescriptorCache(lambda: 1000)
    disk = LocalDisk(descriptors)
    for number in range(40):
        new_file(disk, tmp_path / str(number), b"x").sync()
    attempts = []

    def takes_one() -> str:
        attempts.append(len(descriptors))
        if len(descriptors) > 10:
            raise OSError(errno.EMFILE, "Too many open files")
        return "done"

    assert descriptors.with_room(takes_one) == "done"
    assert len(attempts) > 1

    def never() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many"):
        descriptors.with_room(never)
    assert len(descriptors) == 0
