"""Idempotent producers of client libraries whose batches often arrive before their predecessors.

Two brokers are the gateways of two coordinators, and exchange them again and again. One broker collects
records for most of a second before it commits them, and the other one for a few milliseconds. A producer that
has changed from the slow broker to the fast one has batches in flight at both. The batches at the fast broker
must wait, and each record must be stored exactly once, and in order.

Only batches of the Java client are early here. The other clients were not seen to send a batch to the new
broker while an earlier one was in flight at the old broker.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
from cluster_processes import LIMIT_S, QUIET
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from foreign_clients import Java
from steady_producers import SteadyProducer, check_records, one_of_each, wait_for_more

import moldau.testing
from moldau.client.cluster import with_client
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.client.moves import begin_moves
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.diskless.writing.wal_file import ProducedBatch, WalFile
from moldau.diskless.writing.writer import DisklessWriter
from moldau.protocol.partitions import PartitionKey

pytestmark = [pytest.mark.real_time, pytest.mark.java]

PROPERTIES: Final = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.metadata.topic.replication.factor": "2",
    "diskless.append.early.close.puts.per.second": "0",
    "default.replication.factor": "2",
    "auto.leader.rebalance.enable": "false",
}
INTERVALS_MS: Final = {1: 700, 2: 20}
"""``diskless.append.commit.interval.ms`` of each broker. A batch that arrives early may wait for a second."""
ORDERS: Final = ((1, 2), (2, 1))
"""The replicas of a coordinator. The first one is its gateway. A change of the order copies no record."""
CHANGES: Final = 8

HeldBatch = tuple[PartitionKey, int]
"""The partition and the first sequence of a batch."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[UUID, set[HeldBatch]]:
    """The batches of each topic that were written again into later objects. Writers that are made later are
    observed."""
    found: dict[UUID, set[HeldBatch]] = defaultdict(set)
    hold: Callable[..., bool] = DisklessWriter._hold

    def noted(self: DisklessWriter, file: WalFile, batch: ProducedBatch) -> bool:
        header, key = batch.header, batch.key
        if is_held := hold(self, file, batch):
            found[key.topic_id].add((key, header.base_sequence))
        return is_held

    monkeypatch.setattr(DisklessWriter, "_hold", noted)
    return found


@pytest.fixture
def bootstrap(held: dict[UUID, set[HeldBatch]]) -> Iterator[str]:
    with moldau.testing.Cluster(brokers=2, racks=["a", "a"], properties=PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        name = "diskless.append.commit.interval.ms"
        for broker, interval_ms in INTERVALS_MS.items():
            entry = ConfigEntry(name, str(interval_ms), incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
        yield cluster.bootstrap_servers


@pytest.fixture
def producers(bootstrap: str, java: Java, tmp_path: Path) -> Iterator[list[SteadyProducer]]:
    with one_of_each(bootstrap, java, tmp_path, ("a", "a", "a", "a")) as found:
        yield found


def test_batches_that_arrive_before_their_predecessors_wait(
    bootstrap: str, producers: list[SteadyProducer], held: dict[UUID, set[HeldBatch]]
) -> None:
    exchange(bootstrap, 0)
    for producer in producers:
        producer.start()
    wait_for_more(producers)
    for number in range(1, CHANGES):
        exchange(bootstrap, number)
        wait_for_more(producers)
    for producer in producers:
        producer.end()
    check_records(bootstrap, producers)
    assert len(held[topic_id_of("java", bootstrap)]) >= CHANGES // 2, (
        "few batches were early: nothing is proven"
    )


def topic_id_of(topic: str, bootstrap: str) -> UUID:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(LIMIT_S).topic_id
    halves = found.get_most_significant_bits(), found.get_least_significant_bits()
    return UUID(bytes=b"".join((half % 2**64).to_bytes(8, "big") for half in halves))


def exchange(bootstrap: str, number: int) -> None:
    """Exchange the gateways of the two coordinators."""
    moves = []
    for index in range(2):
        before, after = ORDERS[(number + index + 1) % 2], ORDERS[(number + index) % 2]
        moves.append(PlannedMove(PlacedPartition(DISKLESS_METADATA_TOPIC, index, before), after))
    with_client(bootstrap, LIMIT_S, lambda client: begin_moves(client, moves))
