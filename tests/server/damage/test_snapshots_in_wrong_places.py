"""If a metadata snapshot was replaced by another snapshot, the node does not start. Otherwise producer ids
would be assigned twice."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from damage_house import node, on_node, refusal
from plain_requests import Requests, eventually

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.partitions import TopicPartition
from moldau.records.builder import build_batch
from moldau.records.control import SnapshotFooter, build_control_batch
from moldau.records.record import Record
from moldau.runtime.files.local_disk import LocalDisk
from moldau.storage.snapshots import snapshot, snapshot_log
from moldau.storage.snapshots.snapshot import LogName

OFTEN = {"metadata_log_max_record_bytes_between_snapshots": "200"}
METADATA = CLUSTER_METADATA_FOLDER


async def producer_id(client: Requests) -> int:
    answer: Any = await client.ask(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4
    )
    assert not answer.error_code
    found: int = answer.producer_id
    return found


def snapshots(folder: Path) -> list[Path]:
    """The node's own snapshots of the metadata, oldest first."""
    return sorted(
        path for path in (folder / METADATA).glob("*.checkpoint") if not path.name.startswith("0" * 20)
    )


def fill(folder: Path) -> None:
    """Create two snapshots of the same epoch. The first snapshot is created before the first producer id is
    assigned, and the second snapshot after it."""

    async def story(client: Requests) -> None:
        await client.create("first", diskless_enable="false")
        await eventually(has(1), "the first snapshot")
        assert await producer_id(client) == 0
        before = len(snapshots(folder))
        await client.create("second", diskless_enable="false")
        await eventually(has(before + 1), "another snapshot")

    def has(count: int) -> Any:
        async def probe() -> bool:
            return len(snapshots(folder)) >= count

        return probe

    with node(folder, **OFTEN) as running:
        on_node(running, story)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots") / "data"
    fill(folder)
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


def test_an_older_snapshot_under_a_newer_name_stops_the_start(folder: Path) -> None:
    oldest, *_, newest = snapshots(folder)
    newest.write_bytes(oldest.read_bytes())
    reason = refusal(folder)
    assert reason is not None
    assert str(newest) in reason
    assert f"offset {int(oldest.name[:20])}" in reason
    assert "docs/operations.md" in reason
    assert newest.read_bytes() == oldest.read_bytes()


def test_an_older_snapshot_of_another_writer_is_known_by_its_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    monkeypatch.setattr(snapshot_log, "origin_of", lambda *_: None)
    fill(folder)
    monkeypatch.undo()
    oldest, *_, newest = snapshots(folder)
    newest.write_bytes(oldest.read_bytes())
    reason = refusal(folder)
    assert reason is not None
    assert str(newest) in reason
    assert "docs/operations.md" in reason


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
def test_a_snapshot_of_another_log_is_refused_with_its_path(folder: Path, is_named: bool) -> None:
    """A snapshot of a coordinator was put into the folder of the metadata log. If its header names a log,
    this is the log of the coordinator. If its header names no log, its records show that it is not a snapshot
    of the metadata."""
    *_, newest = snapshots(folder)
    snapshot_id = snapshot.snapshot_of(newest.name)
    assert snapshot_id is not None
    header = snapshot.FileSnapshotReader(LocalDisk().open(str(newest)), snapshot_id).header()
    other = LogName(TopicPartition(DISKLESS_METADATA_TOPIC, 0), UUID(int=7))
    header = replace(header, origin=snapshot.origin_of(other, snapshot_id) if is_named else None)
    records = [Record(0, 1, None, b"\x01\x02 rows of a table", ())]
    epoch = snapshot_id.epoch
    newest.write_bytes(
        build_control_batch([header], timestamp=1, leader_epoch=epoch)
        + bytes(build_batch(records, base_offset=1, leader_epoch=epoch))
        + build_control_batch([SnapshotFooter()], timestamp=1, base_offset=2, leader_epoch=epoch)
    )
    reason = refusal(folder)
    assert reason is not None
    assert str(newest) in reason
    assert "docs/operations.md" in reason


def test_whole_snapshots_start(folder: Path) -> None:
    async def story(client: Requests) -> None:
        assert await producer_id(client) >= 1000

    with node(folder) as running:
        on_node(running, story)
