"""A transaction writes to diskless and classic partitions. The broker of the diskless coordinator is lost,
and the transaction survives."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, eventually
from test_cluster_in_a_test import metadata
from test_transactions import values

import moldau.testing
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC

SOON = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "1500",
    "diskless.metadata.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
}
TOPICS = {"diskless": "true", "classic": "false"}


def test_a_transaction_outlives_the_coordinator_of_its_partitions() -> None:
    with moldau.testing.Cluster(brokers=3, properties=SOON) as cluster:
        bootstrap = cluster.bootstrap_servers
        wanted = [NewTopic(name, 1, 3, config={"diskless.enable": flag}) for name, flag in TOPICS.items()]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics(wanted).values():
            created.result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(TIMEOUT_S)

        def write(value: str) -> None:
            for topic in TOPICS:
                producer.produce(topic, value, partition=0)
            assert producer.flush(TIMEOUT_S) == 0

        for outcome in ("committed", "aborted"):
            producer.begin_transaction()
            write(f"{outcome} before")
            if outcome == "committed":
                _, (leader,) = metadata(cluster.address(1), DISKLESS_METADATA_TOPIC)
                cluster.kill(leader)
            write(f"{outcome} after")
            if outcome == "committed":
                producer.commit_transaction(TIMEOUT_S)
                cluster.restart(leader)
            else:
                producer.abort_transaction(TIMEOUT_S)
        for topic in TOPICS:
            # The test waits here, because the producer may get its response before a replica of a diskless
            # partition gets the marker.
            found = eventually(lambda name=topic: values(bootstrap, name), f"{topic} has committed values")
            assert found == ["committed before", "committed after"]
