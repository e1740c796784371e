"""``/metrics`` and ``/health`` of a running node."""

import json
import urllib.request

import pytest
from confluent_kafka import Producer

from moldau.testing import Node


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_traffic_shows_under_kafkas_names() -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for _ in range(10):
            producer.produce("seen", b"value")
        assert producer.flush(10) == 0
        text = read(f"{node.monitoring_url}/metrics")
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(lines['kafka_server_BrokerTopicMetrics_MessagesInPerSec_total{topic="seen"}']) == 10
        assert float(lines["kafka_server_BrokerTopicMetrics_MessagesInPerSec_total"]) == 10
        assert float(lines['kafka_network_RequestMetrics_RequestsPerSec_total{request="Produce"}']) >= 1
        assert float(lines["kafka_controller_KafkaController_ActiveControllerCount"]) == 1
        assert float(lines["kafka_server_ReplicaManager_PartitionCount"]) == 1
        assert float(lines["kafka_server_ReplicaManager_UnderReplicatedPartitions"]) == 0


def test_a_well_node_says_so() -> None:
    with Node(properties={"metrics.listener": "127.0.0.1:0"}) as node:
        health = json.loads(read(f"{node.monitoring_url}/health"))
        assert health == {"status": "up", "checks": {"quorum": "ok", "storage": "ok", "partitions": "ok"}}


def test_a_node_without_a_listener_serves_none() -> None:
    with Node() as node, pytest.raises(RuntimeError, match=r"metrics\.listener"):
        _ = node.monitoring_url
