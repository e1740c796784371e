"""The command ``storage format``, and the file ``meta.properties`` that it writes."""

import pathlib
import random
import shutil

import pytest

from moldau.cluster.decisions.features import METADATA_VERSION_LATEST
from moldau.cluster.folders.formatter import (
    BOOTSTRAP_FILE_NAME,
    FormatRequest,
    bootstrap_snapshot,
    format_storage,
    new_cluster_id,
)
from moldau.cluster.folders.meta_properties import FormatError, MetaProperties, read_meta_properties
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records.metadata import RECORDS, FeatureLevelRecord
from moldau.records.batch import check_batch, iter_headers
from moldau.records.record import iter_records
from moldau.runtime import LocalDisk, SeededEntropy
from moldau.simulation.world.disks.disk import SimulatedDisk
from moldau.simulation.world.process import Process

ENTROPY = SeededEntropy(3)
CLUSTER_ID = new_cluster_id(ENTROPY)


def _format(*folders: pathlib.Path, **changes: object) -> list[str]:
    names = [str(folder) for folder in folders]
    values: dict[str, object] = {
        "cluster_id": CLUSTER_ID,
        "node_id": 1,
        "log_dirs": names,
        "metadata_dir": names[0],
        **changes,
    }
    return format_storage(LocalDisk(), ENTROPY, FormatRequest(**values), 1234)  # type: ignore[arg-type]


def test_folders_name_their_node_and_cluster(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert _format(first, second) == [str(first), str(second)]
    properties = read_meta_properties(LocalDisk(), str(first))
    assert properties is not None
    assert (properties.cluster_id, properties.node_id) == (CLUSTER_ID, 1)
    other = read_meta_properties(LocalDisk(), str(second))
    assert other is not None
    assert properties.directory_id != other.directory_id
    lines = (first / "meta.properties").read_text().splitlines()
    assert [line.partition("=")[0] for line in lines[1:]] == [
        "cluster.id",
        "directory.id",
        "node.id",
        "version",
    ]


def test_only_the_metadata_folder_gets_the_bootstrap_snapshot(tmp_path: pathlib.Path) -> None:
    _format(tmp_path / "a", tmp_path / "b")
    content = (tmp_path / "a" / CLUSTER_METADATA_FOLDER / BOOTSTRAP_FILE_NAME).read_bytes()
    batches = list(iter_headers(content))
    assert [header.is_control for _, header in batches] == [True, False, True]
    assert [header.base_offset for _, header in batches] == [0, 1, 4]
    position, header = batches[1]
    records = iter_records(content[position : position + header.size_bytes])
    assert [RECORDS.decode(record.value or b"") for record in records] == [
        FeatureLevelRecord(name="metadata.version", feature_level=29),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
    ]
    for position, header in batches:
        check_batch(memoryview(content)[position : position + header.size_bytes])
    assert not (tmp_path / "b" / CLUSTER_METADATA_FOLDER).exists()


def test_a_level_that_is_given_leaves_the_defaults_of_other_features() -> None:
    level = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0)
    content = bootstrap_snapshot([level], METADATA_VERSION_LATEST, 1234)
    position, header = list(iter_headers(content))[1]
    records = iter_records(content[position : position + header.size_bytes])
    levels = [RECORDS.decode(record.value or b"") for record in records]
    assert sorted((each.name, each.feature_level) for each in levels) == [  # type: ignore[attr-defined]
        ("eligible.leader.replicas.version", 0),
        ("metadata.version", METADATA_VERSION_LATEST),
        ("transaction.version", 2),
    ]


def test_a_formatted_folder_is_refused_without_the_option_to_ignore_it(tmp_path: pathlib.Path) -> None:
    _format(tmp_path / "a")
    with pytest.raises(FormatError, match="already formatted"):
        _format(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert _format(tmp_path / "a", tmp_path / "b", ignore_formatted=True) == [str(tmp_path / "b")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster_id": "AAAAAAAAAAAAAAAAAAAAAA"}, "belongs to cluster"),
        ({"node_id": 2}, "belongs to node 1, not to node 2"),
        ({"cluster_id": "short"}, "is not base64|bytes where an id has 16"),
        ({"cluster_id": CLUSTER_ID + "=="}, "its one form"),
        ({"node_id": -1}, "negative"),
        ({"metadata_dir": "/elsewhere"}, "not one of the log folders"),
    ],
)
def test_a_folder_of_another_node_or_cluster_is_refused(
    tmp_path: pathlib.Path, changes: dict[str, object], reason: str
) -> None:
    _format(tmp_path / "a")
    with pytest.raises(FormatError, match=reason):
        _format(tmp_path / "a", ignore_formatted=True, **changes)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("version=0\nbroker.id=1\n", "version 0"),
        ("", "version none"),
        ("version=1\nnode.id=1\n", "lacks cluster.id"),
        ("version=1\ncluster.id=x\nnode.id=one\n", "damaged"),
        ("version=1\ncluster.id=\nnode.id=1\n", "its cluster.id is ''"),
        ("version=1\ncluster.id=../x\nnode.id=1\n", "its cluster.id is '../x'"),
        ("version=1\ncluster.id=x\x01y\nnode.id=1\n", "damaged: its cluster.id"),
        ("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=?\n", "damaged"),
    ],
)
def test_damaged_meta_properties_are_refused_with_the_reason(
    tmp_path: pathlib.Path, content: str, reason: str
) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(FormatError, match=reason):
        read_meta_properties(LocalDisk(), str(tmp_path))


def test_properties_as_java_writes_them(tmp_path: pathlib.Path) -> None:
    text = "#\n#Thu Jan 01 00:00:00 UTC 1970\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\\=\\=\nversion=1\nnode.id=7\n"
    (tmp_path / "meta.properties").write_text(text)
    assert read_meta_properties(LocalDisk(), str(tmp_path)) == MetaProperties(
        "AAAAAAAAAAAAAAAAAAAAAA==", 7, None
    )


def test_a_formatted_folder_survives_a_loss_of_power_with_its_parents() -> None:
    for seed in range(20):
        device = SimulatedDisk(random.Random(seed), lambda: 0, lambda _event: None)
        disk = device.mount(Process("test"))
        folder = "/srv/moldau/data"
        format_storage(
            disk,
            ENTROPY,
            FormatRequest(cluster_id=CLUSTER_ID, node_id=1, log_dirs=[folder], metadata_dir=folder),
            1234,
        )
        device.crash()
        assert read_meta_properties(disk, folder) is not None
        assert disk.exists(f"{folder}/__cluster_metadata-0/{BOOTSTRAP_FILE_NAME}")


def _lose_properties(folder: pathlib.Path, *files: str) -> None:
    (folder / "meta.properties").unlink()
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    "file",
    [
        "__cluster_metadata-0/00000000000000000000.log",
        "__cluster_metadata-0/quorum-state",
        "__cluster_metadata-0/00000000000000000042-0000000001.checkpoint",
        "orders-0/00000000000000000000.log",
        "orders-0/partition.metadata",
        "orders-0.00000000000000000000000000000001-stray/00000000000000000000.log",
        "objects/.moldau/clusters/the-claim",
    ],
)
@pytest.mark.parametrize("ignore_formatted", [False, True])
def test_a_folder_with_data_is_not_formatted(
    tmp_path: pathlib.Path, file: str, ignore_formatted: bool
) -> None:
    _format(tmp_path / "a")
    _lose_properties(tmp_path / "a", file)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FormatError, match="holds data of a cluster") as raised:
        _format(tmp_path / "a", tmp_path / "b", ignore_formatted=ignore_formatted)
    assert file.partition("/")[0] in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_refusal_names_the_cluster_that_claims_the_objects(tmp_path: pathlib.Path) -> None:
    _format(tmp_path / "a")
    _lose_properties(tmp_path / "a", "t-0/partition.metadata", "objects/.moldau/clusters/the-claim")
    with pytest.raises(FormatError, match="the cluster is the-claim"):
        _format(tmp_path / "a")


def test_new_metadata_is_not_made_beside_old_data(tmp_path: pathlib.Path) -> None:
    _format(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "t-0").mkdir()
    (tmp_path / "b" / "t-0" / "partition.metadata").write_bytes(b"")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FormatError, match="would get new metadata"):
        _format(tmp_path / "a", tmp_path / "b", ignore_formatted=True)
    assert not (tmp_path / "a").exists()


def test_a_format_that_was_interrupted_is_done_again(tmp_path: pathlib.Path) -> None:
    _format(tmp_path / "a")
    (tmp_path / "a" / "meta.properties").unlink()
    assert _format(tmp_path / "a") == [str(tmp_path / "a")]
