"""For each kind of damaged file, one line names the file. If the start is refused, the message also names the
remedy."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage_house import make_folders, refusal

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER

METADATA = CLUSTER_METADATA_FOLDER
SQLITE = "__diskless_metadata-0/state.sqlite"
REFUSED = {
    "meta.properties": ("meta.properties", "garbage"),
    "vote": (f"{METADATA}/quorum-state", "garbage"),
    "metadata log": (f"{METADATA}/*0.log", "garbage"),
    "metadata snapshot": (f"{METADATA}/*.checkpoint", "garbage"),
    "cut metadata snapshot": (f"{METADATA}/*.checkpoint", "cut"),
    "topic id": ("classic-0/partition.metadata", "garbage"),
    "diskless log": ("__diskless_metadata-0/*0.log", "garbage"),
}
TOLD = {
    "deleted vote": (f"{METADATA}/quorum-state", "deleted"),
    "deleted metadata snapshot": (f"{METADATA}/*.checkpoint", "deleted"),
    "durable offset": (f"{METADATA}/durable-offset", "garbage"),
    "metadata epochs": (f"{METADATA}/leader-epoch-checkpoint", "garbage"),
    "epochs": ("classic-0/leader-epoch-checkpoint", "garbage"),
    "recovery points": ("recovery-point-offset-checkpoint", "garbage"),
    "log starts": ("log-start-offset-checkpoint", "garbage"),
    "watermarks": ("replication-offset-checkpoint", "garbage"),
    "deleted index": ("classic-0/*0.index", "deleted"),
    "cut index": ("classic-0/*0.index", "cut"),
    "first segment": ("classic-0/*00.log", "deleted"),
    "middle segment": ("classic-0/[0-9]*[1-9].log", "deleted"),
    "cut middle segment": ("classic-0/[0-9]*[1-9].log", "cut"),
    "cut database": (SQLITE, "cut"),
    "emptied database": (SQLITE, "emptied"),
    "deleted database": (SQLITE, "deleted"),
    "deleted database and sum": (f"{SQLITE}*", "deleted"),
    "cut remote metadata": ("remote-log-metadata/*", "cut"),
    "deleted remote metadata": ("remote-log-metadata/*", "deleted"),
}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\xff\xfe garbage \n" * 20),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 7]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folders(tmp_path_factory.mktemp("whole"))["stopped"]


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def damaged(folder: Path, pattern: str, how: str) -> Path:
    """Damage the first file that matches a pattern. If the pattern ends in a star, damage all files that
    match. Returns the first path."""
    found = sorted(folder.glob(pattern))
    assert found, pattern
    for path in found if pattern.endswith("*") else found[:1]:
        DAMAGES[how](path)
    return found[0]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_file_and_what_to_do(folder: Path, name: str) -> None:
    path = damaged(folder, *REFUSED[name])
    reason = refusal(folder)
    assert reason is not None
    assert str(path) in reason or str(path.parent) in reason
    assert "docs/operations.md" in reason


@pytest.mark.parametrize("name", TOLD)
def test_rebuilt_files_and_losses_are_reported(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged(folder, *TOLD[name])
    with caplog.at_level(logging.WARNING):
        assert refusal(folder) is None
    told = [record.getMessage() for record in caplog.records]
    named = [line for line in told if str(path) in line or str(path.parent) + ":" in line]
    # If records in the middle of a log are removed, this is reported for the segment, for its indexes, and
    # for the gap after the segment.
    assert 1 <= len(named) <= 3, told


def test_a_whole_folder_starts_without_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert refusal(folder) is None
    assert [record.getMessage() for record in caplog.records if str(folder) in record.getMessage()] == []
