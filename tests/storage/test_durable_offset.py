"""The file ``durable-offset`` stays open while its log is open."""

import pathlib

from moldau.runtime.files.descriptor_cache import DescriptorCache
from moldau.runtime.files.local_disk import LocalDisk
from moldau.storage.critical_logs.integrity_check import DurableOffset


def stored(folder: pathlib.Path) -> tuple[int | None, int | None]:
    """The offset and the checksum that a new process reads."""
    durable = DurableOffset(LocalDisk(), str(folder))
    return durable.read(), durable.checksum


def test_each_offset_is_stored_in_one_open_file(tmp_path: pathlib.Path) -> None:
    descriptors = DescriptorCache()
    durable = DurableOffset(LocalDisk(descriptors), str(tmp_path))
    for offset in range(1, 6):
        durable.note(offset, durable.generation, checksum=offset + 100)
        assert stored(tmp_path) == (offset, offset + 100)
    assert len(descriptors) == 1
    durable.close()
    assert len(descriptors) == 0
    durable.note(9, durable.generation)
    assert stored(tmp_path) == (5, 105)
    assert len(descriptors) == 0, "a sync that ends late does not open the file again"


def test_offsets_after_a_truncation_are_stored_in_the_new_file(tmp_path: pathlib.Path) -> None:
    """A truncation replaces the file. The open file is then the old file, which nobody reads any more."""
    durable = DurableOffset(LocalDisk(), str(tmp_path))
    for offset in (3, 7):
        durable.note(offset, durable.generation)
    durable.lower(2)
    assert stored(tmp_path) == (2, None)
    durable.note(4, durable.generation)
    assert stored(tmp_path) == (4, None)
    durable.close()
