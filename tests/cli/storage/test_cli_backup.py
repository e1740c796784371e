"""``moldau storage restore`` and ``moldau storage backup status`` with stores in different states."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from cli.conftest import Run
from moldau.backup.cut_format import DATA_FOLDER, ClusterCut, LogPieces, ObjectPart, cut_key, encode_cut
from moldau.backup.image_object import ImageEncoder
from moldau.backup.stored_cuts import StoredCuts
from moldau.cli.serving.serve import read_config
from moldau.cli.storage.backup import restored_at_start
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.objects.storage import StorageError
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records.metadata import FeatureLevelRecord

CREATED_MS = 1_700_000_000_000
NO_LOGS: Mapping[PartitionKey, LogPieces] = {}


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """The properties file of a new node."""
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path}/new\ndiskless.system.enable=true\ndiskless.storage.url=file://{tmp_path}/store\n"
    )
    return path


def _store(tmp_path: Path, key: str, content: bytes) -> Path:
    path = tmp_path / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _save(tmp_path: Path, number: int, logs: Mapping[PartitionKey, LogPieces] = NO_LOGS) -> tuple[Path, Path]:
    """Store a cut, by default without logs. Returns the file of the cut, and the file of its metadata."""
    level = FeatureLevelRecord(name="metadata.version", feature_level=26)
    image = asyncio.run(ImageEncoder().encode(MetadataDelta().replay_all([level]).apply()))
    key = f"{DATA_FOLDER}{CREATED_MS + number}-1-image"
    cut = ClusterCut(
        cluster_id="c",
        created_ms=CREATED_MS + number,
        number=number,
        metadata=ObjectPart(key, 0, len(image), crc32c(image)),
        metadata_offset=10,
        metadata_epoch=1,
        logs=logs,
    )
    return _store(tmp_path, cut_key(cut, 1, "a"), encode_cut(cut)), _store(tmp_path, key, image)


def test_a_store_without_states_has_none(tmp_path: Path, properties: Path, cli: Run) -> None:
    (tmp_path / "store").mkdir()
    status = cli("storage", "backup", "status", "-c", str(properties))
    assert (status.code, status.out) == (0, f"no state is saved in file://{tmp_path}/store\n")
    done = cli("storage", "restore", "-c", str(properties))
    assert done.code == 1
    assert done.err.startswith("moldau: no state of a cluster is saved in")
    assert len(done.err.splitlines()) == 1


def test_a_damaged_state_is_named_and_an_older_one_taken(tmp_path: Path, properties: Path, cli: Run) -> None:
    _save(tmp_path, 0)
    newest, _ = _save(tmp_path, 1)
    newest.write_bytes(newest.read_bytes()[:-20])
    key = newest.relative_to(tmp_path / "store")
    status = cli("storage", "backup", "status", "-c", str(properties))
    assert f"damaged: {key}" in status.out
    assert "oldest state: 2023-11-14T22:13:20.000Z, the first of 2" in status.out
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run")
    assert (seen.code, seen.out.splitlines()[0]) == (0, "cluster c, saved at 2023-11-14T22:13:20.000Z")
    assert f"damaged, so an older state is used: {key}" in seen.out


def test_missing_parts_of_a_state_are_named(tmp_path: Path, properties: Path, cli: Run) -> None:
    _, image = _save(tmp_path, 0)
    image.unlink()
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run")
    assert seen.code == 1
    assert f"missing: no object {image.relative_to(tmp_path / 'store')}" in seen.out
    done = cli("storage", "restore", "-c", str(properties))
    assert done.code == 1
    assert done.err.startswith(f"moldau: no object {image.relative_to(tmp_path / 'store')}")
    assert "see --until" in done.err
    assert not (tmp_path / "new").exists()


def test_a_damaged_object_with_records_is_named(tmp_path: Path, properties: Path, cli: Run) -> None:
    _save(tmp_path, 0)
    key = f"wal/0/2023111422/{CREATED_MS:012x}-1-0"
    _store(tmp_path, key, b"damaged")
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run")
    assert (seen.code, seen.out.splitlines()[-1]) == (1, f"missing: {key} is damaged")
    done = cli("storage", "restore", "-c", str(properties), "--no-wait")
    assert (done.code, f"missing: {key} is damaged" in done.out) == (1, True)


def test_a_node_that_restores_at_its_start_names_what_is_missing(
    tmp_path: Path, properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, 0)
    key = f"wal/0/2023111422/{CREATED_MS:012x}-1-0"
    _store(tmp_path, key, b"damaged")
    restored_at_start([read_config(properties, {})])
    assert capsys.readouterr().err.splitlines()[-1] == f"missing: {key} is damaged"


def test_a_folder_with_data_prevents_a_restore(tmp_path: Path, properties: Path, cli: Run) -> None:
    _save(tmp_path, 0)
    log = tmp_path / "new" / "orders-0"
    log.mkdir(parents=True)
    (log / "00000000000000000000.log").touch()
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run", "--json")
    (obstacle,) = json.loads(seen.out)["obstacles"]
    assert seen.code == 1
    assert "is not empty (it holds orders-0): restore into a new folder" in obstacle
    done = cli("storage", "restore", "-c", str(properties))
    assert (done.code, done.err) == (1, f"moldau: {obstacle}\n")
    assert not (tmp_path / "store" / ".moldau" / "backup" / "generations").exists()


def test_a_restore_from_a_copy_names_the_files_with_another_store(
    tmp_path: Path, properties: Path, cli: Run
) -> None:
    _save(tmp_path, 0)
    (tmp_path / "store").rename(tmp_path / "copy")
    copy = f"file://{tmp_path}/copy"
    done = cli("storage", "restore", "-c", str(properties), "--from", copy, "--no-wait")
    assert done.code == 0
    expected = f"{properties} names file://{tmp_path}/store: start its node with diskless.storage.url={copy}"
    assert done.err.splitlines()[-1] == expected


def test_another_count_of_metadata_partitions_of_the_tier_prevents_a_restore(
    tmp_path: Path, properties: Path, cli: Run
) -> None:
    """The restored node could not read any remote segment."""
    _save(
        tmp_path,
        0,
        {PartitionKey(UUID(int=1), index): LogPieces(REMOTE_LOG_METADATA_TOPIC) for index in range(4)},
    )
    tier = ("--set", "remote.log.storage.system.enable=true")
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run", "--json", *tier)
    (obstacle,) = json.loads(seen.out)["obstacles"]
    assert seen.code == 1
    assert obstacle.startswith(
        "remote.log.metadata.topic.num.partitions of node 1 is 50, but the saved __remote_log_metadata has 4"
    )
    done = cli("storage", "restore", "-c", str(properties), *tier)
    assert (done.code, done.err) == (1, f"moldau: {obstacle}\n")
    assert not (tmp_path / "store" / ".moldau" / "backup" / "generations").exists()
    for prefix in ("", "rlmm.config."):
        same = ("--set", f"{prefix}remote.log.metadata.topic.num.partitions=4")
        assert cli("storage", "restore", "-c", str(properties), "--dry-run", *tier, *same).code == 0
    assert cli("storage", "restore", "-c", str(properties), "--dry-run").code == 0


@pytest.mark.parametrize("url", ["hello", "ftp://host/path"])
def test_an_address_that_is_no_store_is_refused(url: str, properties: Path, cli: Run) -> None:
    done = cli("storage", "restore", "-c", str(properties), "--from", url)
    assert done.code == 1
    assert done.err.startswith(f"moldau: diskless.storage.url '{url}'")


async def _without_bucket(*_: object, **__: object) -> None:
    raise StorageError("the bucket or container does not exist (NoSuchBucket)", transient=False)


@pytest.mark.parametrize("command", [["restore"], ["restore", "--dry-run"], ["backup", "status"]])
def test_a_store_that_cannot_be_read_is_named(
    command: list[str], tmp_path: Path, properties: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredCuts, "listed", _without_bucket)
    done = cli("storage", *command, "-c", str(properties))
    expected = f"moldau: file://{tmp_path}/store: the bucket or container does not exist (NoSuchBucket)\n"
    assert (done.code, done.err) == (1, expected)


def test_states_after_the_asked_time_are_not_taken(tmp_path: Path, properties: Path, cli: Run) -> None:
    _save(tmp_path, 0)
    _save(tmp_path, 5_000)
    seen = cli("storage", "restore", "-c", str(properties), "--dry-run", "--until", str(CREATED_MS + 4_999))
    assert seen.out.startswith("cluster c, saved at 2023-11-14T22:13:20.000Z")
    early = cli("storage", "restore", "-c", str(properties), "--until", str(CREATED_MS - 1))
    assert early.code == 1
    assert "until 2023-11-14T22:13:19.999Z" in early.err
