"""``/metrics`` and ``/health`` of a running node."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from moldau.cli.main import main
from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties
from moldau.testing import Node
from moldau.testing.node_thread import NodeThread, Wires


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def can_connect(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_traffic_shows_under_kafkas_names() -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for _ in range(10):
            producer.produce("seen", b"value")
        assert producer.flush(60) == 0
        text = read(f"{node.monitoring_url}/metrics")
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(lines['kafka_server_BrokerTopicMetrics_MessagesInPerSec_total{topic="seen"}']) == 10
        assert float(lines["kafka_server_BrokerTopicMetrics_MessagesInPerSec_total"]) == 10
        assert float(lines['kafka_network_RequestMetrics_RequestsPerSec_total{request="Produce"}']) >= 1
        assert float(lines["kafka_controller_KafkaController_ActiveControllerCount"]) == 1
        assert float(lines["kafka_server_ReplicaManager_PartitionCount"]) == 1
        assert float(lines["kafka_server_ReplicaManager_UnderReplicatedPartitions"]) == 0


def test_groups_show_under_kafkas_names() -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as node:

        def group_meters() -> dict[str, float]:
            text = read(f"{node.monitoring_url}/metrics")
            rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
            return {name: float(value) for name, value in rows if "roup" in name and "Request" not in name}

        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.create_topics([NewTopic("read", num_partitions=2)])["read"].result(60)
        client = {"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"}
        consumer = Consumer({**client, "enable.auto.commit": False})
        consumer.subscribe(["read"])
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1], "partitions are assigned")
        both = [TopicPartition("read", index, 0) for index in range(2)]
        consumer.commit(offsets=both, asynchronous=False)
        found = group_meters()
        manager = "kafka_coordinator_group_GroupMetadataManager_"
        coordinator = "kafka_server_group_coordinator_metrics_"
        assert found[manager + "NumGroups"] == found[manager + "NumGroupsStable"] == 1
        assert found[manager + "NumGroupsEmpty"] == found[manager + "NumGroupsPreparingRebalance"] == 0
        assert found[manager + "NumOffsets"] == 2
        assert found[coordinator + 'group_count{protocol="classic"}'] == 1
        assert found[coordinator + "offset_commit_count"] == 2
        assert found[coordinator + "group_completed_rebalance_count"] >= 1
        assert found[coordinator + "offset_expiration_count"] == 0
        # The partition of the group is loaded, but other partitions are still loading.
        active = coordinator + 'num_partitions{state="active"}'
        eventually(lambda: group_meters()[active] == 4, "all partitions are loaded")
        consumer.close()
        eventually(lambda: group_meters()[manager + "NumGroupsEmpty"] == 1, "the member is gone")
        with KafkaAdminClient(bootstrap_servers=node.bootstrap_servers) as tool:
            tool.delete_group_offsets("readers", [kafka.TopicPartition("read", 0)])
        found = group_meters()
        assert found[coordinator + "offset_deletion_count"] == 1
        assert found[manager + "NumOffsets"] == 1


def test_a_healthy_node_reports_that_it_is_up() -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as node:
        health = json.loads(read(f"{node.monitoring_url}/health"))
        names = ("quorum", "storage", "partitions", "topics", "errors", "groups", "remote")
        assert set(names) <= set(health["checks"])
        assert health == {"status": "up", "checks": dict.fromkeys(health["checks"], "ok")}


def test_a_node_without_a_metrics_listener_has_no_monitoring_url() -> None:
    with Node() as node, pytest.raises(RuntimeError, match=r"metrics\.listener"):
        _ = node.monitoring_url


def test_the_health_page_of_a_broker_names_the_missing_quorum(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    pages, nobody = f"127.0.0.1:{free_port()}", free_port()
    config = tmp_path / "broker.properties"
    config.write_text(
        f"process.roles=broker\nnode.id=1\nlog.dirs={tmp_path}/data\nmetrics.listener={pages}\n"
        f"controller.quorum.voters=101@127.0.0.1:{nobody}\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{free_port()}\n"
    )
    assert main(["storage", "format", "--config", str(config), "--cluster-id", "bW9sZGF1LXByb2Nlc3Nlcw"]) == 0
    broker = NodeThread(BrokerConfig.from_properties(parse_properties(config.read_text())), Wires({}))
    broker.start()
    try:
        eventually(lambda: can_connect(pages), "the pages are served")
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(f"http://{pages}/health")
        checks = json.loads(refused.value.read())["checks"]
        assert checks["broker"] == "the broker is starting"
        assert "metadata quorum has" in checks["quorum"]
        assert "kafka_server_raft_metrics_current_leader -1" in read(f"http://{pages}/metrics")
    finally:
        broker.kill()
