"""A damaged metadata log stops the start, and the error names the log. If the node started with an empty
image, it would delete the objects that contain the records."""

import shutil
from pathlib import Path

import pytest
from damage_house import Story, check_everything, flip, make_folders, node, objects, on_node, refusal
from plain_requests import Requests

from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
)
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.records.batch import iter_headers
from moldau.runtime.files.local_disk import LocalDisk
from moldau.storage.critical_logs.integrity_check import DurableOffset

LOG = "00000000000000000000.log"
GUARDED = (
    CLUSTER_METADATA_FOLDER,
    f"{DISKLESS_METADATA_TOPIC}-0",
    f"{REMOTE_LOG_METADATA_TOPIC}-0",
    f"{CONSUMER_OFFSETS_TOPIC}-0",
)
STATES = ("stopped", "killed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("whole"))


@pytest.fixture(params=STATES)
def folder(folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(folders[request.param], tmp_path / "data"))


def test_all_records_are_served_without_damage(folder: Path) -> None:
    with node(folder) as running:
        on_node(running, check_everything)


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("where", ["begin", "middle", "end"])
def test_flipped_bytes_stop_the_start(folder: Path, name: str, where: str) -> None:
    path = folder / name / LOG
    size = path.stat().st_size
    # The node does not sync a group's log before it acknowledges. So the log may end with a partial batch
    # after a kill.
    if (
        name == f"{CONSUMER_OFFSETS_TOPIC}-0"
        and where == "end"
        and not (folder / ".kafka_cleanshutdown").exists()
    ):
        where = "middle"
    before = objects(folder)
    flip(path, durable_end(path) - 20 if where == "end" else {"begin": 20, "middle": size // 2}[where])
    reason = refusal(folder)
    assert reason is not None
    assert str(path) in reason
    assert "docs/operations.md" in reason
    assert objects(folder) == before


def durable_end(path: Path) -> int:
    """The position after the last batch that was certainly synced. The node may be killed between the write
    of a batch, such as a no-op record of an idle quorum, and its sync."""
    content = memoryview(path.read_bytes())
    offset = DurableOffset(LocalDisk(), str(path.parent)).read()
    ends = [
        position + header.size_bytes
        for position, header in iter_headers(content)
        if offset is None or header.last_offset < offset
    ]
    return ends[-1] if ends else len(content)


@pytest.mark.parametrize("name", GUARDED)
def test_a_missing_log_file_stops_the_start(folder: Path, name: str) -> None:
    (folder / name / LOG).unlink()
    reason = refusal(folder)
    assert reason is not None
    assert str(folder / name) in reason


@pytest.mark.parametrize("name", GUARDED)
def test_a_missing_folder_stops_the_start(folder: Path, name: str) -> None:
    shutil.rmtree(folder / name)
    reason = refusal(folder)
    assert reason is not None
    assert str(folder / name) in reason


@pytest.mark.parametrize("also_lost", [(), ("durable-offset",), ("durable-offset", "quorum-state")])
def test_an_empty_metadata_log_beside_topics_stops_the_start(
    folder: Path, also_lost: tuple[str, ...]
) -> None:
    metadata = folder / CLUSTER_METADATA_FOLDER
    for name in (LOG, *also_lost):
        (metadata / name).unlink()
    reason = refusal(folder)
    assert reason is not None
    assert str(metadata) in reason


def cut_to_half(path: Path) -> None:
    """Keep the complete batches in the first half of the log."""
    content, position = path.read_bytes(), 0
    while position < len(content) // 2:
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    path.write_bytes(content[:position])


def test_a_cut_metadata_log_without_its_durable_offset_stops_the_start(folder: Path) -> None:
    metadata = folder / CLUSTER_METADATA_FOLDER
    cut_to_half(metadata / LOG)
    (metadata / "durable-offset").unlink()
    reasons = {refusal(folder), refusal(folder)}
    (reason,) = reasons
    assert reason is not None
    assert f"{folder}/replication-offset-checkpoint" in reason
    assert str(metadata) in reason
    assert list(folder.glob("*-stray")) == []


@pytest.mark.parametrize("lost", ["durable-offset", None])
def test_folders_of_unknown_topics_stop_the_start_if_the_metadata_log_may_be_cut(
    folder: Path, lost: str | None
) -> None:
    metadata = folder / CLUSTER_METADATA_FOLDER
    cut_to_half(metadata / LOG)
    (folder / "replication-offset-checkpoint").unlink()
    (metadata / "durable-offset").unlink()
    if lost is None:
        # The files are now as after a restore of the metadata folder alone from an older backup.
        DurableOffset(LocalDisk(), str(metadata)).note(1, 0)
    reasons = {refusal(folder), refusal(folder)}
    (reason,) = reasons
    assert reason is not None
    assert "topic id" in reason
    assert str(metadata) in reason
    assert list(folder.glob("*-stray")) == []


def test_an_older_metadata_folder_beside_newer_partitions_stops_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with node(folder) as running:
        on_node(running, create("first"))
    shutil.copytree(folder / CLUSTER_METADATA_FOLDER, tmp_path / "backup")
    line = (folder / "replication-offset-checkpoint").read_text()
    with node(folder) as running:
        on_node(running, create("second"))
    shutil.rmtree(folder / CLUSTER_METADATA_FOLDER)
    shutil.copytree(tmp_path / "backup", folder / CLUSTER_METADATA_FOLDER)
    checkpoint = folder / "replication-offset-checkpoint"
    newer = checkpoint.read_text()
    checkpoint.write_text(line)
    reason = refusal(folder)
    assert reason is not None
    assert str(folder / ".kafka_cleanshutdown") in reason
    checkpoint.write_text(newer)
    reason = refusal(folder)
    assert reason is not None
    assert "replication-offset-checkpoint" in reason
    # The mark of the clean stop may be lost. The checkpoint may come from the same backup, or may have no
    # line for this log. Even then, the leader epochs that the node wrote after its second start prove the
    # loss.
    (folder / ".kafka_cleanshutdown").unlink()
    shutil.rmtree(folder / "second-0")
    checkpoint.write_text(line)
    reason = refusal(folder)
    assert reason is not None
    assert str(folder / "first-0" / "leader-epoch-checkpoint") in reason
    assert str(folder / CLUSTER_METADATA_FOLDER) in reason
    checkpoint.unlink()
    reason = refusal(folder)
    assert reason is not None
    assert str(folder / "first-0" / "leader-epoch-checkpoint") in reason


def create(topic: str) -> Story:
    async def story(client: Requests) -> None:
        await client.create(topic, diskless_enable="false")
        await client.produce_values("first", b"one")

    return story


def test_a_deleted_topic_s_folder_does_not_stop_the_start(folder: Path) -> None:
    with node(folder) as running:
        shutil.copytree(folder / "classic-0", folder.parent / "kept")
        on_node(running, lambda client: client.delete("classic"))
    shutil.copytree(folder.parent / "kept", folder / "classic-0")
    (folder / "replication-offset-checkpoint").unlink()
    (folder / CLUSTER_METADATA_FOLDER / "durable-offset").unlink()
    with node(folder):
        pass
    assert list(folder.glob("classic-0.*-stray"))


def test_a_folder_that_the_metadata_does_not_know_is_kept(folder: Path) -> None:
    shutil.copytree(folder / "classic-0", folder / "unknown-0")
    with node(folder) as running:
        on_node(running, check_everything)
    (kept,) = folder.glob("unknown-0.*-stray")
    assert {path.name for path in kept.glob("*.log")} == {
        path.name for path in (folder / "classic-0").glob("*.log")
    }
    assert not (folder / "unknown-0").exists()


def test_a_damaged_topic_id_is_repaired(folder: Path) -> None:
    path = folder / "classic-0" / "partition.metadata"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[39] = ord("A") if damaged[39] != ord("A") else ord("B")
    path.write_bytes(damaged)
    with node(folder) as running:
        on_node(running, check_everything)
    assert path.read_bytes() == whole
    assert not list(folder.glob("classic-0.*-stray"))


def test_a_log_of_another_topic_id_is_kept(folder: Path) -> None:
    path = folder / "classic-0" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    with node(folder):
        pass
    (kept,) = folder.glob("classic-0.*-stray")
    assert len(list(kept.glob("*.log"))) > 2


def test_a_node_does_not_format_over_data(folder: Path) -> None:
    path = folder / "meta.properties"
    content = path.read_text()
    path.unlink()
    before = objects(folder)
    reason = refusal(folder)
    assert reason is not None
    cluster_id = next(line for line in content.splitlines() if line.startswith("cluster.id=")).partition("=")[
        2
    ]
    assert f"the cluster is {cluster_id}" in reason
    assert "delete" not in reason
    assert not path.exists()
    path.write_text(f"version=1\ncluster.id={cluster_id}\nnode.id=1\n")
    with node(folder) as running:
        on_node(running, check_everything)
    assert objects(folder) >= before


@pytest.mark.parametrize("name", [f"{DISKLESS_METADATA_TOPIC}-0", f"{CONSUMER_OFFSETS_TOPIC}-0"])
def test_the_topic_id_of_another_topic_stops_the_start_of_a_guarded_log(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(folders["killed"], tmp_path / "data"))
    path, before = folder / name / "partition.metadata", objects(folder)
    path.write_bytes((folder / "classic-0" / "partition.metadata").read_bytes())
    reason = refusal(folder)
    assert reason is not None
    assert f"{path} holds the topic id of classic" in reason
    assert "docs/operations.md" in reason
    assert list(folder.glob("*-stray")) == []
    assert objects(folder) == before


def test_a_topic_with_the_topic_id_of_another_one_waits_for_its_own(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["stopped"], tmp_path / "data"))
    path = folder / "classic-0" / "partition.metadata"
    whole = path.read_bytes()
    path.write_bytes((folder / "tiered-0" / "partition.metadata").read_bytes())
    with node(folder):
        pass
    assert list(folder.glob("*-stray")) == []
    path.write_bytes(whole)
    with node(folder) as running:
        on_node(running, check_everything)
