"""What a process has read through its maps does not stay in its memory for ever."""

import pathlib
import re

import pytest

from moldau.runtime import LocalDisk, residency

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
    assert sum(first[::4096]) == MIB // 4096  # a view from before is still good
    file.close()
