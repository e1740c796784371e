"""Moldau's tools and librdkafka can read each other's records. They choose the same partition for a key, and
their consumers can share a group."""

import json
import threading

import confluent_kafka

from moldau.cli.main import main


def test_each_client_reads_the_records_of_the_other_client(run, node):
    run("topics", "create", "shared", "-p", "8")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
        }
    )
    keys = [f"key-{number}" for number in range(50)]
    for key in keys:
        producer.produce("shared", key=key, value="theirs", headers=[("h", b"1")])
    assert producer.flush(60) == 0
    ours = "".join(f"{key}:ours\n" for key in keys).encode()
    assert run("produce", "shared", "-K", ":", "-z", "snappy", stdin=ours).code == 0
    rows = [json.loads(line) for line in run("consume", "shared", "--json").out.splitlines()]
    places = {
        value: {row["key"]: row["partition"] for row in rows if row["value"] == value}
        for value in ("ours", "theirs")
    }
    assert len(places["ours"]) == 50
    assert places["ours"] == places["theirs"]


def test_both_clients_share_a_group(run, node):
    run("topics", "create", "both", "-p", "2")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "group.id": "both",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe(["both"])
    try:
        while len(consumer.assignment()) != 2:
            consumer.poll(0.1)
        arguments = [
            "consume",
            "both",
            "--group",
            "both",
            "--follow",
            "--count",
            "1",
            "-b",
            node.bootstrap_servers,
        ]
        codes = []
        reader = threading.Thread(target=lambda: codes.append(main(arguments)))
        reader.start()
        while len(consumer.assignment()) != 1:
            consumer.poll(0.1)
        members = json.loads(run("groups", "describe", "both", "--json").out)[0]["members"]
        assert len(members) == 2
        ours = ({"0", "1"} - {str(row.partition) for row in consumer.assignment()}).pop()
        while not codes:
            assert run("produce", "both", "-p", ours, stdin=b"x\n").code == 0
            consumer.poll(0.2)
        reader.join(60)
        assert codes == [0]
    finally:
        consumer.close()
