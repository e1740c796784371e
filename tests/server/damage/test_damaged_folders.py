"""A folder that cannot be used stops the start immediately, with one sentence that names the reason."""

import shutil
from pathlib import Path

import pytest

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.runtime.errors import KafkaError
from moldau.testing import Node


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "data"
    with Node(data=str(folder)):
        pass
    return folder


def latest_checkpoint(folder: Path) -> Path:
    return max((folder / CLUSTER_METADATA_FOLDER).glob("*.checkpoint"))


def other_node(folder: Path) -> None:
    path = folder / "meta.properties"
    path.write_text(path.read_text().replace("node.id=1", "node.id=77"))


def flip_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in (folder / CLUSTER_METADATA_FOLDER).glob(pattern):
            path.unlink()


DAMAGES = {
    "another node's": (other_node, "belongs to node 77"),
    "no properties": (lambda folder: (folder / "meta.properties").write_bytes(b""), "meta.properties"),
    "torn quorum state": (
        lambda folder: (folder / CLUSTER_METADATA_FOLDER / "quorum-state").write_text('{"lead'),
        "quorum-state",
    ),
    "no log": (
        lambda folder: remove(folder, "*.log", "durable-offset", "leader-epoch-checkpoint"),
        "quorum-state says",
    ),
    "no log and no vote": (
        lambda folder: remove(folder, "*.log", "durable-offset", "quorum-state"),
        "holds no segment",
    ),
    "empty snapshot": (lambda folder: latest_checkpoint(folder).write_bytes(b""), ".checkpoint"),
    "flipped snapshot": (lambda folder: flip_middle(latest_checkpoint(folder)), ".checkpoint"),
    "snapshot without its end": (
        lambda folder: latest_checkpoint(folder).write_bytes(latest_checkpoint(folder).read_bytes()[:-20]),
        ".checkpoint",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_start_names_what_is_damaged(stopped_folder, tmp_path, name):
    damage, named = DAMAGES[name]
    folder = tmp_path / "data"
    shutil.copytree(stopped_folder, folder)
    damage(folder)
    with pytest.raises(KafkaError, match=named):
        Node(data=str(folder)).start()
    # After the failed start, no task is running and no folder is locked.
    shutil.rmtree(folder)
    with Node(data=str(folder)):
        pass
