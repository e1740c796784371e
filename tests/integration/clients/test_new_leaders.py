"""A librdkafka producer takes a new leader from the response to Produce (KIP-951), not from metadata."""

import logging
import re

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import with_client
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.client.moves import begin_moves

pytestmark = pytest.mark.real_time

LIMIT_S = 120
ORDERS = ((1, 2), (2, 1))
"""The first broker of an order is the preferred replica. A change of the order copies no record."""
TRIES = 10


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())


def test_a_producer_takes_the_leader_from_the_response() -> None:
    lines, logger = Lines(), logging.getLogger("test_new_leaders")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(lines)
    with moldau.testing.Cluster(brokers=2, properties={"auto.leader.rebalance.enable": "false"}) as cluster:
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(LIMIT_S)
        config = {"bootstrap.servers": servers, "debug": "metadata", "topic.metadata.refresh.interval.ms": -1}
        producer = Producer(config, logger=logger)
        producer.produce("t", b"to the first leader")
        assert producer.flush(LIMIT_S) == 0
        told: list[bool] = []
        asked: list[bool] = []
        for number in range(TRIES):
            before, after = ORDERS[number % 2], ORDERS[(number + 1) % 2]
            swap = PlannedMove(PlacedPartition("t", 0, before), after)
            with_client(servers, LIMIT_S, lambda client, swap=swap: begin_moves(client, [swap]))
            admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(LIMIT_S)
            producer.poll(0)
            lines.all.clear()
            producer.produce("t", b"to the new leader")
            assert producer.flush(LIMIT_S) == 0
            told = [bool(re.search(f"updated with leader {after[0]} and epoch", line)) for line in lines.all]
            asked = ["Received metadata" in line for line in lines.all]
            # On a busy machine, the response to an earlier request for metadata may name the new leader. The
            # producer then writes to it at once, and this swap shows neither of the two ways. So the next
            # swap is tried.
            if any(told) or any(asked):
                break
        del producer
    assert True in told
    assert told.index(True) < (asked.index(True) if True in asked else len(asked))
