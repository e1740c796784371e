"""Files whose checksum is stored while they are closed. Any change to a closed file is therefore detected.

SQLite detects only damage to the structure of its pages. A database that is only a cache is sealed when it is
closed cleanly. It is rebuilt when its content does not match the seal.
"""

import enum
import logging
from itertools import count
from typing import Final

from crc32c import crc32c

from moldau.runtime.files.disk import Disk

__all__ = ["SUM_SUFFIX", "Seal", "break_seal", "remove_database", "seal_database"]

logger = logging.getLogger(__name__)

SUM_SUFFIX: Final = ".sum"
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_DATABASE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal", SUM_SUFFIX)


class Seal(enum.Enum):
    """State of a file, according to its checksum file."""

    NONE = "not sealed"
    """The file was not closed cleanly, or does not exist."""
    WHOLE = "whole"
    DAMAGED = "damaged"
    MISSING = "missing"
    """The checksum exists, but the file does not."""


def remove_database(disk: Disk, path: str) -> None:
    """Remove a closed database and all its files. If a folder has the name of one of these files, the folder
    is renamed and not removed.
    """
    for suffix in _DATABASE_SUFFIXES:
        if disk.is_dir(path + suffix):
            _move_aside(disk, path + suffix)
        disk.remove(path + suffix)


def _move_aside(disk: Disk, folder: str) -> None:
    """Rename a folder that this program did not make. The owner of the folder may need its content."""
    target = next(
        f"{folder}.folder-{number}" for number in count(1) if not disk.is_dir(f"{folder}.folder-{number}")
    )
    logger.warning("%s is a folder and should be a file: it is renamed to %s", folder, target)
    disk.rename(folder, target)


def seal_database(disk: Disk, path: str) -> None:
    """Store the checksum of a database that was closed cleanly. This call blocks."""
    if not any(disk.exists(path + suffix) and disk.size(path + suffix) for suffix in ("-wal", "-journal")):
        disk.write_atomically(path + SUM_SUFFIX, _file_sum(disk, path))


def break_seal(disk: Disk, path: str) -> Seal:
    """Compare a file with its checksum. The checksum is then removed durably, because the file may change
    from now on. This call blocks."""
    if disk.is_dir(path + SUM_SUFFIX):
        return Seal.DAMAGED
    if not disk.exists(path + SUM_SUFFIX):
        return Seal.NONE
    expected = disk.read(path + SUM_SUFFIX)
    disk.remove(path + SUM_SUFFIX)
    disk.sync_dir(path.rpartition("/")[0])
    if disk.is_dir(path):
        return Seal.DAMAGED
    if not disk.exists(path):
        return Seal.MISSING
    return Seal.WHOLE if _file_sum(disk, path) == expected else Seal.DAMAGED


def _file_sum(disk: Disk, path: str) -> bytes:
    """Return the size and checksum of a file to which no code writes now. For a gigabyte this takes some
    tenths of a second."""
    file = disk.open(path, read_only=True)
    try:
        size_bytes, crc = file.size(), 0
        for position in range(0, size_bytes, _CHUNK_BYTES):
            crc = crc32c(file.read_at(position, min(_CHUNK_BYTES, size_bytes - position)), crc)
    finally:
        file.close()
    return b"%d %08x\n" % (size_bytes, crc)
