"""Kafka's own command line tools and load generators. ``--bootstrap-server`` is their only setting."""

import json

import pytest
from foreign_clients import Java

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"


def events(shown: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]


def test_load_generators_agree(java: Java, bootstrap: str, topic: str, group: str) -> None:
    server = ["--bootstrap-server", bootstrap]
    shared = [*server, "--topic", topic, "--max-messages", "1000"]
    amount = ["--num-records", "20000", "--record-size", "500", "--throughput", "-1"]
    properties = [f"bootstrap.servers={bootstrap}", "acks=all", "compression.type=lz4"]
    # VerifiableProducer prints its last events only when its JVM ends, so it does not share a JVM with the
    # other tools.
    produced = events(java.tool(f"{TOOLS}.VerifiableProducer", *shared, "--acks", "-1"))
    consumed_events, status, performance = java.tools(
        [f"{TOOLS}.VerifiableConsumer", *shared, "--group-id", group, "--reset-policy", "earliest"],
        [f"{TOOLS}.MetadataQuorumCommand", *server, "describe", "--status"],
        [f"{TOOLS}.ProducerPerformance", "--topic", topic, *amount, "--command-property", *properties],
    )
    assert produced[-1]["acked"] == 1000
    consumed = events(consumed_events)
    counts = [event["count"] for event in consumed if event["name"] == "records_consumed"]
    assert sum(int(str(count)) for count in counts) == 1000
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)
    assert "LeaderId:               1" in status
    assert "MaxFollowerLag:         0" in status
    assert "20000 records sent" in performance


def test_console_producer_and_consumer(java: Java, bootstrap: str, topic: str) -> None:
    server = ["--bootstrap-server", bootstrap, "--topic", topic]
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    java.tool(f"{TOOLS}.ConsoleProducer", *server, *keyed, stdin="a:1\nb:2\n")
    printing = ["--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"]
    reading = ["--from-beginning", "--max-messages", "2", "--timeout-ms", "120000"]
    shown = java.tool(f"{TOOLS}.consumer.ConsoleConsumer", *server, *printing, *reading)
    assert shown.splitlines() == ["Offset:0\ta\t1", "Offset:1\tb\t2"]


def test_topic_config_and_group_commands(java: Java, bootstrap: str, topic: str, group: str) -> None:
    server = ["--bootstrap-server", bootstrap]
    topics = [f"{TOOLS}.TopicCommand", *server]
    configs = ["kafka.admin.ConfigCommand", *server, "--entity-type", "topics", "--entity-name", topic]
    groups = [GROUPS, *server, "--timeout", "60000"]
    offsets = [f"{TOOLS}.GetOffsetShell", *server, "--topic", topic]
    answers = java.tools(
        [*topics, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=5000"],
        [*topics, "--describe", "--topic", topic],
        [*configs, "--alter", "--add-config", "max.message.bytes=2000"],
        [*configs, "--describe"],
        [*groups, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"],
        [*groups, "--list"],
        [*groups, "--describe", "--group", group],
        offsets,
        [f"{TOOLS}.LogDirsCommand", *server, "--describe", "--topic-list", topic],
        [f"{TOOLS}.BrokerApiVersionsCommand", *server],
        [f"{TOOLS}.ClusterTool", "cluster-id", *server],
        [*topics, "--delete", "--topic", topic],
        [*topics, "--list"],
    )
    described, altered, reset, listed, lag = answers[1], answers[3], answers[4], answers[5], answers[6]
    assert "PartitionCount: 2" in described
    assert "retention.ms=5000" in described
    assert "max.message.bytes=2000" in altered
    assert topic in reset
    assert group in listed
    assert topic in lag
    assert answers[7].split() == [f"{topic}:0:0", f"{topic}:1:0"]
    assert f'"partition":"{topic}-0"' in answers[8]
    assert "Produce(0): 0 to 13 [usable: 13]" in answers[9]
    assert "Cluster ID: " in answers[10]
    assert topic not in answers[12]
