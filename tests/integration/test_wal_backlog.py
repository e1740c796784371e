"""The size of the WAL backlog is measured. The backlog slows producers down only if it consists of bytes that
could have left the WAL already."""

import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from deadlines import TIMEOUT_S, eventually

from moldau.server.subsystems.diskless import back_pressure
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.testing import Node

PROPERTIES = {
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.append.commit.interval.ms": "5",
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.metadata.topic.replication.factor": "1",
    "diskless.consolidation.enable": "false",
    "diskless.consolidation.interval.ms": "50",
    "diskless.consolidation.max.age.ms": "0",
    "diskless.wal.backlog.max.bytes": "1000",
    "metrics.listener": "127.0.0.1:0",
}


def meters(node: Node) -> dict[str, float]:
    with urllib.request.urlopen(f"{node.monitoring_url}/metrics", timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("moldau_diskless_Wal_Backlog"):
            name, _, value = line.rpartition(" ")
            found[name.removeprefix("moldau_diskless_Wal_Backlog")] = float(value)
    return found


def test_a_backlog_is_measured_and_slows_producers_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response contains the remaining throttle time. The test sets the longest throttle time to 100 s, so
    that the remaining time is larger than 0 also on a slow machine."""
    monkeypatch.setattr(back_pressure, "CONGESTED_PAUSE_MAX_S", 100.0)
    with Node(diskless=True, properties=PROPERTIES) as node:
        assert node._node is not None
        diskless = node._node.find(DisklessSubsystem)
        assert diskless is not None
        assert diskless.pressure.congestion is None
        told_s: list[float] = []
        sender = Producer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "throttle_cb": lambda event: told_s.append(event.throttle_time),
            }
        )
        sender.produce("t", b"v" * 3_000)
        assert sender.flush(TIMEOUT_S) == 0
        eventually(lambda: meters(node)["Bytes"] > 3_000, "the batch is measured")
        assert meters(node)["Batches"] == 1
        eventually(lambda: meters(node)["AgeMs"] > 0, "it ages")
        eventually(lambda: diskless.pressure.congestion == 1, "producers are slowed down")
        assert not told_s
        sender.produce("t", b"v" * 900_000)
        assert sender.flush(TIMEOUT_S) == 0
        (told,) = told_s
        assert 0 < told < 100 * 900_000 / 1024**2 + 1
        entry = ConfigEntry(
            "diskless.consolidation.enable", "true", incremental_operation=AlterConfigOpType.SET
        )
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(TIMEOUT_S)
        eventually(lambda: diskless.pressure.congestion is None, "they are not, when it has left the WAL")
        assert meters(node) == {"Bytes": 0, "Batches": 0, "AgeMs": 0}
