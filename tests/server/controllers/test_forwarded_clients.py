"""Clients' requests are forwarded to a controller in another process. The controller gets the client's
identity (KIP-590)."""

import logging

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing

QUIET = {"log_level": 0}
LIMIT_S = 60


def test_the_controller_names_the_client_behind_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "moldau.cluster.controller.service")
    with moldau.testing.Cluster(brokers=1, controllers=1) as cluster:
        server = {"bootstrap.servers": cluster.bootstrap_servers, **QUIET}
        admin = AdminClient({"client.id": "admin-7", **server})
        admin.create_topics([NewTopic("asked", 1, 1)])["asked"].result(LIMIT_S)
        producer = Producer({"client.id": "producer-8", "allow.auto.create.topics": True, **server})
        producer.produce("automatic", b"value")
        assert producer.flush(LIMIT_S) == 0
    for client in ("admin-7", "producer-8"):
        line = f"controller 101: CreateTopicsRequest of User:ANONYMOUS (client '{client}' at 127.0.0.1)"
        assert line in caplog.messages
