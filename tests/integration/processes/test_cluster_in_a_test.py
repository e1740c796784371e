"""``moldau.testing.Cluster``: its brokers and controllers run in this process. They are killed, restarted and
isolated."""

import asyncio
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.runtime import SystemEntropy
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem

LIMIT_S = 120
QUIET = {"log_level": 0}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the cluster does not come to what is expected"
        time.sleep(0.02)


def metadata(address: str, topic: str) -> tuple[list[int], list[int]]:
    """Return the brokers and the leaders of a topic's partitions, as one broker's metadata contain them."""

    async def asking() -> Any:
        client = RpcClient(SystemEntropy())
        host, _, port = address.partition(":")
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        try:
            return await client.request(host, int(port), ApiKey.METADATA, 12, request)
        finally:
            await client.close()

    answer = asyncio.run(asking())
    partitions = sorted(answer.topics[0].partitions, key=lambda row: row.partition_index)
    return sorted(broker.node_id for broker in answer.brokers), [row.leader_id for row in partitions]


def create(cluster: moldau.testing.Cluster, topic: str, partitions: int, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(LIMIT_S)


def unreachable_leaders(cluster: moldau.testing.Cluster, node_id: int) -> str:
    """The notice on a broker's health page about leaders that the broker cannot reach."""
    return cluster._thread(node_id).ask(lambda node: node.get(PartitionsSubsystem).replication.notice()) or ""


def test_nodes_are_killed_isolated_and_come_back() -> None:
    soon = {"broker.heartbeat.interval.ms": "250", "broker.session.timeout.ms": "1500"}
    with moldau.testing.Cluster(brokers=3, controllers=3, racks=("a", "b"), properties=soon) as cluster:
        assert cluster.brokers == (1, 2, 3)
        assert cluster.controllers == (101, 102, 103)
        create(cluster, "t", 3)
        create(cluster, "copied", 3, 3)
        _, leaders = metadata(cluster.address(1), "t")
        assert sorted(leaders) == [1, 2, 3]
        on_two = leaders.index(2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        producer.produce("t", b"kept", partition=on_two)
        assert producer.flush(LIMIT_S) == 0

        cluster.kill(2)
        wait_for(lambda: metadata(cluster.address(1), "t")[0] == [1, 3])
        assert metadata(cluster.address(1), "t")[1][on_two] == -1
        with pytest.raises(RuntimeError, match="node 2 does not run"):
            cluster.kill(2)
        cluster.restart(2)
        wait_for(lambda: metadata(cluster.address(1), "t") == ([1, 2, 3], leaders))
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", **QUIET})
        consumer.assign([TopicPartition("t", on_two, 0)])
        message = consumer.poll(LIMIT_S)
        assert message is not None
        assert message.value() == b"kept"
        consumer.close()

        cluster.isolate(3)
        wait_for(lambda: metadata(cluster.address(1), "t")[0] == [1, 2])
        # A client of the isolated broker still gets the old metadata.
        assert metadata(cluster.address(3), "t")[0] == [1, 2, 3]
        # On a slow machine, another broker may have become the leader of the partition that is followed.
        wait_for(lambda: "which is followed, does not answer" in unreachable_leaders(cluster, 3))
        cluster.heal(3)
        wait_for(lambda: not unreachable_leaders(cluster, 3))
        wait_for(lambda: metadata(cluster.address(1), "t") == ([1, 2, 3], leaders))

        before = cluster.active_controller()
        assert before is not None
        cluster.kill(before)
        create(cluster, "later", 1)
        assert cluster.active_controller() not in (None, before)
        cluster.restart(before)
        after = cluster.active_controller()
        assert after is not None
        cluster.isolate(after)
        wait_for(lambda: cluster.active_controller() not in (None, after))


def test_a_folder_is_kept_from_one_cluster_to_the_next(tmp_path: pathlib.Path) -> None:
    with moldau.testing.Cluster(brokers=2, data=str(tmp_path)) as cluster:
        create(cluster, "kept", 2)
    with moldau.testing.Cluster(brokers=2, data=str(tmp_path)) as cluster:
        # A broker may know the leader of the other broker's partition a moment after it is ready.
        wait_for(lambda: sorted(metadata(cluster.address(2), "kept")[1]) == [1, 2])
    assert (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()
    with pytest.raises(RuntimeError, match="the cluster is not running"):
        _ = moldau.testing.Cluster().bootstrap_servers


def test_a_cluster_that_fails_to_start_keeps_no_folder() -> None:
    cluster = moldau.testing.Cluster(brokers=2, properties={"authorizer.class.name": "an.Authorizer"})
    with pytest.raises(Exception, match=r"authorizer\.class\.name must not be set"):
        cluster.start()
    with pytest.raises(RuntimeError, match="has no folder"):
        _ = cluster.data


def test_topics_may_be_tiered_on_a_store_that_the_brokers_share() -> None:
    soon = {"remote.log.manager.task.interval.ms": "200"}
    with moldau.testing.Cluster(brokers=3, properties=soon) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        configs = {"remote.storage.enable": "true", "segment.bytes": str(1 << 20)}
        admin.create_topics([NewTopic("tiered", 1, 3, config=configs)])["tiered"].result(LIMIT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        for number in range(40):
            producer.produce("tiered", b"%d" % number + b"." * 100_000)
        assert producer.flush(LIMIT_S) == 0
        wait_for(lambda: len(list(pathlib.Path(cluster.data).glob("objects/tiered/tiered-*/0/*.log"))) >= 3)
