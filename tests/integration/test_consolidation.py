"""Records of diskless topics leave the WAL while real clients read them from offset 0. The tests run with
each of the two engines."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from deadlines import TIMEOUT_S, consume, eventually
from librdkafka_clients import create, producer, read_all

from moldau.client.cluster import Client, with_client
from moldau.client.consolidation import give_up, plan_everywhere, publish_everywhere, renew
from moldau.metrics import Meters
from moldau.network.client.node_connection import NodeAddress
from moldau.objects import open_by_url
from moldau.protocol.own.diskless.describe_topics import DisklessDescribeTopicsRequest
from moldau.runtime import ErrorCode, Machine
from moldau.testing import Node
from moldau.tiered.consolidation.building import build_segments, copy_segment
from moldau.tiered.consolidation.plan import lay_out_units
from moldau.tiered.consolidation.work import BuiltCopy
from moldau.tiered.storage.object_storage_manager import open_object_storage_manager

PARTITIONS, RECORDS = 3, 600
COORDINATORS = 2
PROPERTIES = {
    "diskless.metadata.topic.num.partitions": str(COORDINATORS),
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.topic.num.partitions": "2",
    "remote.log.metadata.topic.replication.factor": "1",
    "diskless.append.commit.interval.ms": "20",
    "diskless.consolidation.interval.ms": "100",
    "diskless.consolidation.segment.bytes": "20000",
    "diskless.consolidation.max.age.ms": "0",
}


def node_in(folder: Path, **more: str) -> Node:
    store = f"file://{folder}/store"
    properties = PROPERTIES | {"diskless.storage.url": store, "rsm.config.url": store}
    properties |= {name.replace("_", "."): value for name, value in more.items()}
    return Node(data=f"{folder}/data", properties=properties, diskless=True)


def tiered_objects(folder: Path, topic: str) -> list[Path]:
    return [path for path in folder.glob(f"store/tiered/{topic}-*/*/*") if path.is_file()]


def wal_of(bootstrap: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Log start, WAL start and high watermark of each partition."""

    async def ask(client: Client) -> dict[int, tuple[int, int, int]]:
        host, _, port = bootstrap.rpartition(":")
        found = {}
        for coordinator in range(COORDINATORS):
            request = DisklessDescribeTopicsRequest(coordinator_id=coordinator)
            answer = await client.ask(request, broker=NodeAddress(host, int(port)), version_max=0)
            for row in answer.topics:
                if row.name == topic:
                    for one in row.partitions:
                        offsets = (one.log_start_offset, one.wal_start_offset, one.high_watermark)
                        found[one.partition_index] = offsets
        return found

    return with_client(bootstrap, TIMEOUT_S, ask)


def until_it_left_the_wal(bootstrap: str, topic: str, records: int = RECORDS) -> None:
    def has_left() -> bool:
        offsets = wal_of(bootstrap, topic)
        return len(offsets) == PARTITIONS and all(one[1:] == (records, records) for one in offsets.values())

    eventually(has_left, f"{topic} leaves the WAL")


def value_of(partition: int, offset: int) -> bytes:
    return b"%d-%d-" % (partition, offset) + b"v" * 90


def fill(bootstrap: str, topic: str, first_ms: int, *, between: object = None) -> None:
    """Produce an equal number of records to each partition, in many batches with dense timestamps."""
    sender = producer(bootstrap, enable_idempotence=True, linger_ms=2, batch_num_messages=20)
    for offset in range(RECORDS):
        for partition in range(PARTITIONS):
            sender.produce(
                topic, value_of(partition, offset), partition=partition, timestamp=first_ms + offset
            )
        if offset % 50 == 49:
            assert sender.flush(TIMEOUT_S) == 0
            if callable(between):
                between()


def check_all(bootstrap: str, topic: str) -> None:
    for partition in range(PARTITIONS):
        messages = read_all(bootstrap, topic, RECORDS, partition)
        assert [(one.offset(), one.value()) for one in messages] == [
            (offset, value_of(partition, offset)) for offset in range(RECORDS)
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consolidated")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Node]:
    with node_in(folder) as running:
        yield running


def test_readers_from_the_start_notice_nothing(node: Node, folder: Path) -> None:
    bootstrap = node.bootstrap_servers
    create(bootstrap, "followed", PARTITIONS)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "auto.offset.reset": "error"})
    reader.assign([TopicPartition("followed", partition, 0) for partition in range(PARTITIONS)])
    seen: dict[int, list[tuple[int, bytes | None]]] = {partition: [] for partition in range(PARTITIONS)}

    def follow(count: int) -> None:
        for message in consume(reader, count):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            seen[partition].append((offset, message.value()))

    fill(bootstrap, "followed", int(time.time() * 1000), between=lambda: follow(20 * PARTITIONS))
    follow(RECORDS * PARTITIONS - sum(map(len, seen.values())))
    reader.close()
    for partition, messages in seen.items():
        assert messages == [(offset, value_of(partition, offset)) for offset in range(RECORDS)]
    until_it_left_the_wal(bootstrap, "followed")
    assert len(tiered_objects(folder, "followed")) >= 2 * PARTITIONS
    check_all(bootstrap, "followed")


def test_offsets_are_found_and_records_deleted_over_both_parts(node: Node, folder: Path) -> None:
    bootstrap = node.bootstrap_servers
    first_ms = int(time.time() * 1000) - 100_000
    create(bootstrap, "searched", PARTITIONS)
    fill(bootstrap, "searched", first_ms)
    until_it_left_the_wal(bootstrap, "searched")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "s"})
    for offset in (0, 7, RECORDS // 2, RECORDS - 1):
        (found,) = reader.offsets_for_times([TopicPartition("searched", 1, first_ms + offset)], TIMEOUT_S)
        assert found.offset == offset
    reader.close()
    zero = TopicPartition("searched", 0)

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({zero: spec})[zero].result(TIMEOUT_S)
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.max_timestamp()) == (RECORDS - 1, first_ms + RECORDS - 1)
    before = len(tiered_objects(folder, "searched"))
    deleted = admin.delete_records([TopicPartition("searched", 0, RECORDS - 5)])
    assert next(iter(deleted.values())).result(TIMEOUT_S).low_watermark == RECORDS - 5
    assert listed(OffsetSpec.earliest())[0] == RECORDS - 5
    assert [one.offset() for one in read_all(bootstrap, "searched", 5, 0, RECORDS - 5)] == list(
        range(RECORDS - 5, RECORDS)
    )
    eventually(lambda: len(tiered_objects(folder, "searched")) < before, "deleted segments go")
    admin.delete_topics(["searched"])["searched"].result(TIMEOUT_S)
    eventually(lambda: not tiered_objects(folder, "searched"), "the deleted topic leaves nothing")


def test_records_that_have_left_the_wal_need_no_wal_objects_and_no_caches(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        create(node.bootstrap_servers, "kept", PARTITIONS)
        fill(node.bootstrap_servers, "kept", int(time.time() * 1000))
        until_it_left_the_wal(node.bootstrap_servers, "kept")
    shutil.rmtree(tmp_path / "store" / "wal")
    for partition in range(PARTITIONS):
        shutil.rmtree(tmp_path / "data" / f"kept-{partition}")
    with node_in(tmp_path) as node:
        check_all(node.bootstrap_servers, "kept")
        sender = producer(node.bootstrap_servers)
        sender.produce("kept", b"next", partition=0)
        assert sender.flush(TIMEOUT_S) == 0
        last = read_all(node.bootstrap_servers, "kept", 2, 0, RECORDS - 1)
        assert [one.value() for one in last] == [value_of(0, RECORDS - 1), b"next"]


async def consolidate(client: Client, folder: Path) -> int:
    """Consolidate with an engine outside the broker. This engine runs each task twice and repeats every
    report."""
    machine = Machine.real()
    url = f"file://{folder}/store"
    wal = open_by_url(url, {}, machine)
    tier = open_object_storage_manager({"url": url}, machine, Meters())
    plan = await plan_everywhere(client, "test", max_bytes=1 << 30)
    assert (await plan_everywhere(client, "other", max_bytes=1 << 30)).is_empty
    work = {one.segment.segment_id: one for each in plan.plans.values() for one in each.work}
    units = lay_out_units([one.segment for one in work.values()], 50_000)
    stale = UUID(int=1)
    for unit in reversed(units):
        for attempt in ("task-1", "task-2"):
            built = await build_segments(unit.segments, wal, machine.workers)
            copies = [
                BuiltCopy(
                    segment.partition,
                    segment.segment_id,
                    work[segment.segment_id].epoch,
                    await copy_segment(segment, one, tier, attempt),
                )
                for segment, one in zip(unit.segments, built, strict=True)
            ]
        assert await renew(client, plan)
        older = [copy._replace(epoch=copy.epoch - 1) for copy in copies]
        refused = await publish_everywhere(client, plan, older)
        assert {one.error for one in refused} == {ErrorCode.fenced_leader_epoch}
        others = replace(plan, plans={key: replace(one, lease_id=stale) for key, one in plan.plans.items()})
        fat = [copy._replace(custom_metadata=bytes(129)) for copy in copies]
        for plans, told in ((others, copies), (plan, fat)):
            refused = await publish_everywhere(client, plans, told)
            assert {one.error for one in refused} == {ErrorCode.invalid_update_version}
        for _ in range(2):
            published = await publish_everywhere(client, plan, copies)
            assert {one.error for one in published} == {ErrorCode.none}
    await give_up(client, plan)
    assert not await renew(client, plan)
    return len(work)


def test_an_engine_outside_of_the_broker_builds_what_leaders_plan(tmp_path: Path) -> None:
    with node_in(tmp_path, diskless_consolidation_enable="false") as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "bulk", PARTITIONS)
        fill(bootstrap, "bulk", int(time.time() * 1000))
        assert {one[1] for one in wal_of(bootstrap, "bulk").values()} == {0}
        built = with_client(bootstrap, TIMEOUT_S, lambda client: consolidate(client, tmp_path))
        assert built >= 2 * PARTITIONS
        until_it_left_the_wal(bootstrap, "bulk")
        check_all(bootstrap, "bulk")
        names = [path.name for path in tiered_objects(tmp_path, "bulk")]
        assert sum(".task-2." in name for name in names) == 2 * built
