"""A damaged metadata log stops the start by name: an empty image would delete what the objects hold."""

import shutil
from pathlib import Path

import pytest
from damage_house import check_everything, flip, make_folders, node, objects, on_node, refusal

LOG = "00000000000000000000.log"
GUARDED = ("__cluster_metadata-0", "__diskless_metadata-0", "__remote_log_metadata-0", "__consumer_offsets-0")
STATES = ("stopped", "killed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_folders(tmp_path_factory.mktemp("whole"))


@pytest.fixture(params=STATES)
def folder(folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(folders[request.param], tmp_path / "data"))


def test_undamaged_everything_is_served(folder: Path) -> None:
    with node(folder) as running:
        on_node(running, check_everything)


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("where", ["begin", "middle", "end"])
def test_flipped_bytes_stop_the_start(folder: Path, name: str, where: str) -> None:
    path = folder / name / LOG
    size = path.stat().st_size
    # The end of a group's log is not synced by an acknowledgement, so that a kill may have torn it.
    if name == "__consumer_offsets-0" and where == "end" and not (folder / ".kafka_cleanshutdown").exists():
        where = "middle"
    before = objects(folder)
    flip(path, {"begin": 20, "middle": size // 2, "end": size - 20}[where])
    reason = refusal(folder)
    assert reason is not None
    assert str(path) in reason
    assert "docs/operations.md" in reason
    assert objects(folder) == before


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
    metadata = folder / "__cluster_metadata-0"
    for name in (LOG, *also_lost):
        (metadata / name).unlink()
    reason = refusal(folder)
    assert reason is not None
    assert str(metadata) in reason


def test_a_folder_that_the_metadata_does_not_know_is_kept(folder: Path) -> None:
    shutil.copytree(folder / "classic-0", folder / "unknown-0")
    with node(folder) as running:
        on_node(running, check_everything)
    (kept,) = folder.glob("unknown-0.*-stray")
    assert {path.name for path in kept.glob("*.log")} == {
        path.name for path in (folder / "classic-0").glob("*.log")
    }
    assert not (folder / "unknown-0").exists()


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
