"""The log file of a new segment is not truncated, unless an old file has the same name.

If a file was ever truncated to length 0, ext4 writes it to the disk when it is closed for the last time. The
close of a large deleted segment would then block the thread that closes the segment.
"""

import os
import pathlib

import pytest

from moldau.runtime import LocalDisk
from moldau.storage.log.config import LogConfig
from moldau.storage.segments.segment import Segment


@pytest.fixture
def truncated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that were truncated."""
    names: list[str] = []
    truncate = os.ftruncate

    def noting(descriptor: int, size: int) -> None:
        names.append(pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", noting)
    return names


def create_segment(folder: pathlib.Path) -> Segment:
    segment = Segment(LocalDisk(), str(folder), 0, LogConfig())
    segment.create(0, 0)
    return segment


def test_new_log_file_is_not_truncated(tmp_path: pathlib.Path, truncated: list[str]) -> None:
    create_segment(tmp_path).abandon()
    assert "00000000000000000000.log" not in truncated


def test_old_log_file_of_the_same_name_is_emptied(tmp_path: pathlib.Path, truncated: list[str]) -> None:
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(b"old")
    create_segment(tmp_path).abandon()
    assert truncated.count(log.name) == 1
    assert log.read_bytes() == b""
