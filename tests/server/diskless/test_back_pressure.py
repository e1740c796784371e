"""The store is slower than the producers. The node then reads their requests more slowly, and no record is
lost.

The file also tests a plug-in batch coordinator.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from memory_batch_coordinator import OWN_KEY, MemoryBatchCoordinator

from moldau.coordinators.diskless.calls import Backlog
from moldau.diskless.writing.reported_backlogs import LIFETIME_S, ReportedBacklogs
from moldau.metrics import Meters
from moldau.network.context import RequestContext
from moldau.runtime import KafkaError, Machine
from moldau.server.subsystems.diskless import back_pressure
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.diskless.wal_backlog import WalBacklog
from moldau.testing import Node

DISKLESS = {
    "diskless.system.enable": "true",
    "log.diskless.enable": "true",
    "diskless.storage.url": "memory://",
    "diskless.metadata.topic.num.partitions": "1",
}


def test_a_congested_writer_slows_producers_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[bool] = []
    original = back_pressure.BackPressure.throttle_s

    def watched(self: back_pressure.BackPressure, context: RequestContext, waits: bool) -> float:
        pause_s = original(self, context, waits)
        pauses.append(pause_s > 0)
        return pause_s

    monkeypatch.setattr(back_pressure.BackPressure, "throttle_s", watched)
    with Node(properties=DISKLESS) as node:
        assert node._node is not None
        diskless = node._node.find(DisklessSubsystem)
        assert diskless is not None
        writer = diskless.manager.writer
        writer._settings = type(writer._settings)(max_buffered_bytes=2_000)
        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "enable.idempotence": True,
            }
        )
        for number in range(200):
            producer.produce("pressed", b"%600d" % number)
            producer.poll(0)
        assert producer.flush(60) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["pressed"])
        seen = [int(message.value()) for _ in range(200) if (message := consumer.poll(60)) is not None]
        consumer.close()
        check_that_no_scan_runs_with_a_wrong_clock(node, diskless)
    assert seen == list(range(200))
    assert any(pauses)


def check_that_no_scan_runs_with_a_wrong_clock(node: Node, diskless: DisklessSubsystem) -> None:
    """Search for orphans twice: first while the broker's clock differs too much from the controller's clock,
    and then with the right time."""
    assert node._node is not None
    assert node._node.metadata is not None
    assert node._loop is not None
    manager, clock = diskless.manager, node._node.metadata.clock
    before = manager.orphans.last_report
    clock._is_large = True
    asyncio.run_coroutine_threadsafe(manager._scan_for_orphans(), node._loop).result(60)
    assert manager.orphans.last_report is before
    clock._is_large = False
    asyncio.run_coroutine_threadsafe(manager._scan_for_orphans(), node._loop).result(60)
    assert manager.orphans.last_report is not before


def refuse(properties: Mapping[str, str], machine: Machine) -> object:
    """A plug-in coordinator that cannot be created."""
    raise ValueError("it wants more configuration")


def test_another_batch_coordinator_is_loaded_by_its_name() -> None:
    name = f"{__name__}.refuse"
    with pytest.raises(KafkaError, match=r"diskless\.batch\.coordinator\.class\.name .*wants more"):
        Node(properties={**DISKLESS, "diskless.batch.coordinator.class.name": name}).start()


def test_another_batch_coordinator_gives_offsets_and_keeps_its_objects(tmp_path: Path) -> None:
    properties = {
        **DISKLESS,
        "diskless.storage.url": f"file://{tmp_path}/objects",
        "diskless.batch.coordinator.class.name": "memory_batch_coordinator.MemoryBatchCoordinator",
        OWN_KEY: "green",
    }
    with Node(properties=properties) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for number in range(20):
            producer.produce("foreign", b"%d" % number)
        assert producer.flush(60) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["foreign"])
        seen = [int(message.value()) for _ in range(20) if (message := consumer.poll(60)) is not None]
        consumer.close()
        assert seen == list(range(20))
        assert node._node is not None
        diskless = node._node.find(DisklessSubsystem)
        assert diskless is not None
        manager = diskless.manager
        assert isinstance(manager._coordinator, MemoryBatchCoordinator)
        assert manager._coordinator.colour == "green"
        stored = set((tmp_path / "objects" / "wal").rglob("*-*"))
        assert stored
        # Moldau's own coordinators do not refer to these objects, so an orphan scan with these coordinators
        # would delete all objects.
        manager.orphans.settings = replace(
            manager.orphans.settings, max_commit_age_ms=0, clock_skew_ms=-1_000_000, grace_ms=-1_000_000
        )
        assert node._loop is not None
        asyncio.run_coroutine_threadsafe(manager._scan_for_orphans(), node._loop).result(60)
        assert set((tmp_path / "objects" / "wal").rglob("*-*")) == stored


def test_pauses_grow_with_the_excess_up_to_a_maximum() -> None:
    mebibyte = 1024 * 1024
    pauses = [back_pressure.pause_of(excess, mebibyte) for excess in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert pauses == sorted(pauses)
    assert pauses[0] == back_pressure.CONGESTED_PAUSE_S
    assert pauses[-1] == back_pressure.CONGESTED_PAUSE_MAX_S
    assert all(later > 2 * earlier for earlier, later in pairwise(pauses))
    # A client that sends few bytes is delayed less than a client that sends many bytes. No request is delayed
    # until its time-out.
    assert back_pressure.pause_of(1.0, 1_000) == back_pressure.CONGESTED_PAUSE_S
    assert back_pressure.pause_of(1.0, 50 * mebibyte) == back_pressure.CONGESTED_PAUSE_MAX_S


def test_the_backlog_slows_producers_above_its_bound_and_most_at_twice_the_bound() -> None:
    class Coordinators:
        size_bytes = 0

        def __init__(self) -> None:
            self.coordinator_ids = [0]

        def backlog(self) -> Backlog:
            return Backlog(size_bytes=self.size_bytes)

    coordinators = Coordinators()
    backlog = WalBacklog(coordinators, ReportedBacklogs(lambda: 0.0), Machine.real().clock, Meters())

    def excess(size_bytes: int, max_bytes: int) -> float | None:
        coordinators.size_bytes, backlog.max_bytes = size_bytes, max_bytes
        backlog.refresh()
        return backlog.excess

    assert excess(10**15, -1) is None
    assert excess(100, 100) is None
    assert excess(125, 100) == 0.25
    assert excess(200, 100) == excess(10**15, 100) == excess(1, 0) == 1
    assert excess(0, 0) is None


def test_the_backlogs_that_other_coordinators_report_count_for_ten_seconds() -> None:
    """The WAL backlog of the whole cluster slows producers. The broker measures the backlog of each
    coordinator that it leads, so an older report of such a coordinator is ignored."""

    class Coordinators:
        def __init__(self) -> None:
            self.coordinator_ids = [0]

        def backlog(self) -> Backlog:
            return Backlog(size_bytes=100)

    now_s = 50.0
    reported = ReportedBacklogs(lambda: now_s)
    coordinators = Coordinators()
    backlog = WalBacklog(coordinators, reported, Machine.real().clock, Meters())
    backlog.max_bytes = 200
    backlog.refresh()
    reported.report(0, 500)
    reported.report(1, -1)
    assert (backlog.known_bytes, backlog.excess) == (100, None)
    reported.report(1, 60)
    reported.report(2, 90)
    assert (backlog.known_bytes, backlog.excess) == (250, 0.25)
    coordinators.coordinator_ids = [0, 2]  # this broker now leads the coordinator
    assert backlog.known_bytes == 160
    now_s += LIFETIME_S
    reported.report(2, 10)
    assert backlog.known_bytes == 160
    now_s += 1
    assert (backlog.known_bytes, backlog.excess) == (100, None)
