"""A diskless coordinator that needs a damaged snapshot stays unloaded, and reports the damage.

No objects are deleted meanwhile. With the restored file all records are available.
"""

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from damage_house import flip, node, objects, on_node
from plain_requests import Requests, eventually, values

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.runtime import ErrorCode

TOPIC = "kept"
LOG = f"{DISKLESS_METADATA_TOPIC}-0"
ROUNDS = 40
SNAPSHOTS = {"diskless_metadata_max_new_records_between_snapshots": "1"}
"""With this config, one new record in the coordinator's log is enough for a new snapshot."""
HASTE = {"diskless_coordinator_orphan_scan_interval_ms": "100"}
RETRIABLE = {
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.offset_not_available,
    ErrorCode.kafka_storage_error,
}


def snapshots(folder: Path) -> list[Path]:
    return sorted((folder / LOG).glob("*.checkpoint"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's folder without its SQLite file, so that the coordinator has to read its snapshot."""
    folder = tmp_path_factory.mktemp("whole") / "data"

    async def has_snapshot() -> bool:
        return bool(snapshots(folder))

    async def story(client: Requests) -> None:
        await client.create(TOPIC, diskless_enable="true")
        for number in range(ROUNDS):
            await client.produce_values(TOPIC, b"%d" % number)
        await eventually(has_snapshot, "a snapshot is there")

    with node(folder, **SNAPSHOTS) as running:
        on_node(running, story)
    for path in (folder / LOG).glob("state.sqlite*"):
        path.unlink()
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "cut": cut,
}


def problems(monitoring_url: str) -> str:
    """The failed checks of the health page. The result is empty for a healthy node."""
    try:
        urllib.request.urlopen(f"{monitoring_url}/health", timeout=100).close()
    except urllib.error.HTTPError as error:
        return str(json.load(error)["checks"])
    return ""


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_snapshot_is_reported_and_no_object_is_deleted(
    stopped: Path, tmp_path: Path, how: str
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "data"))
    path = snapshots(folder)[-1]
    content = path.read_bytes()
    before = objects(folder)
    assert before
    DAMAGES[how](path)
    with node(folder, metrics_listener="127.0.0.1:0", **HASTE) as running:
        url = running.monitoring_url

        async def is_told() -> bool:
            return LOG in await asyncio.to_thread(problems, url)

        async def unloaded(client: Requests) -> None:
            await eventually(is_told, "the health page names the coordinator")
            assert (await client.fetch(TOPIC, 0)).error_code in RETRIABLE

        on_node(running, unloaded)
    assert objects(folder) == before
    path.write_bytes(content)
    for database in (folder / LOG).glob("state.sqlite*"):
        database.unlink()

    async def whole(client: Requests) -> None:
        found = values(await client.read(TOPIC, 0, ROUNDS))
        assert found == [b"%d" % number for number in range(ROUNDS)]

    with node(folder) as running:
        on_node(running, whole)
