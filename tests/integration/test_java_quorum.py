"""Kafka's tools, controllers and brokers work together with ours (KIP-595, 631, 853, 919).

There are two clusters, each with one process of Kafka, because the start of a JVM takes seconds.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from foreign_clients import Java
from kafka_nodes import (
    LIMIT_S,
    SNAPSHOT_BYTES,
    KafkaNode,
    can,
    copied,
    created,
    free_port,
    members,
    moldau,
    wait_for,
)
from moves_from_kafka import check_a_move_from_kafka_and_back

from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.testing import Cluster
from moldau.testing.node_thread import NodeThread, Wires

pytestmark = [pytest.mark.java, pytest.mark.real_time]

TOOLS = "org.apache.kafka.tools"
FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
FIRST_SEGMENT = "00000000000000000000.log"


def metadata_of(cluster: Cluster, node_id: int) -> Path:
    return Path(cluster.data) / f"controller-{node_id}" / CLUSTER_METADATA_FOLDER


def cluster_id_of(cluster: Cluster) -> str:
    lines = (metadata_of(cluster, 101).parent / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]


def config_of_controller(cluster: Cluster, node_id: int, folder: Path) -> str:
    """A properties file of one of our controllers. Kafka's tool uses this file to add the controller."""
    config = folder / "new.properties"
    config.write_text(
        f"process.roles=controller\nnode.id={node_id}\nlog.dirs={cluster.data}/controller-{node_id}\n"
        f"controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://{cluster.address(node_id)}\n"
        f"advertised.listeners=CONTROLLER://{cluster.address(node_id)}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers={cluster.address(101)}\n"
    )
    return str(config)


def test_tools_and_a_node_of_kafka_join_our_cluster(java: Java, tmp_path: Path) -> None:
    snapshots = {
        "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
        "metadata.max.retention.bytes": "1",
    }
    with Cluster(brokers=1, controllers=1, static_voters=False, properties=snapshots) as cluster:
        node_id = cluster.add_controller()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        # Kafka's nodes do not support Moldau's own feature levels. The first controller has raised these
        # levels, so they are lowered here.
        servers = cluster.bootstrap_servers
        assert moldau(
            "cluster", "upgrade", "moldau.diskless.version=0", "--downgrade", "--bootstrap", servers
        )
        for number in range(100):
            if not (metadata_of(cluster, 101) / FIRST_SNAPSHOT).exists():
                break  # The first snapshot was deleted, so Kafka's node must load a later snapshot.
            assert not created(admin, f"old-{number}", 20)
        kafka = KafkaNode(java, 3000, tmp_path, bootstrap_controllers=cluster.bootstrap_controllers)
        kafka.format(cluster_id_of(cluster))
        with kafka.running() as process:
            wait_for(lambda: 3000 in admin.list_topics(timeout=10).brokers)
            check_tools(java, cluster, kafka, config_of_controller(cluster, node_id, tmp_path), node_id)
            # Kafka's broker and our brokers lead and follow partitions of the same topics.
            assert not created(admin, "mixed", 2, replicas=2)
            copied(servers, "mixed", 2)
            refusal = created(admin, "diskless", 1, **{"diskless.enable": "true"})
            assert "broker 3000 does not support moldau.diskless.version" in refusal
            cluster.restart(killed_until_kafka_leads(cluster, admin))
            added_id = cluster.add_controller({"controller.quorum.auto.join.enable": "true"})
            wait_for(lambda: added_id in members(servers, "voters"))
            # The new controller has begun with a snapshot that Kafka's leader sent.
            assert not (metadata_of(cluster, added_id) / FIRST_SEGMENT).exists()
            process.kill()
            assert not created(admin, "led-by-ours", 1)
            assert cluster.active_controller() is not None


def killed_until_kafka_leads(cluster: Cluster, admin: AdminClient) -> int:
    """Kill the leading controller until Kafka's voter is elected. Returns the id of the killed node.

    Two of three voters are always running, so each commit needs Kafka's voter. Either of them may be elected.
    """
    for attempt in range(20):
        leader_id = cluster.active_controller()
        assert leader_id is not None
        cluster.kill(leader_id)
        assert not created(admin, f"led-by-kafka-{attempt}", 1)
        if cluster.active_controller() is None:
            return leader_id
        cluster.restart(leader_id)
    raise AssertionError("Kafka's voter was not elected in 20 elections")


def check_tools(java: Java, cluster: Cluster, kafka: KafkaNode, config: str, node_id: int) -> None:
    """Kafka's tools add a controller of Moldau and a controller of Kafka. They also describe the cluster and
    read our files."""
    brokers = ["--bootstrap-server", cluster.bootstrap_servers]
    controllers = ["--bootstrap-controller", cluster.address(101)]
    quorum, features = f"{TOOLS}.MetadataQuorumCommand", f"{TOOLS}.FeatureCommand"
    elr = "eligible.leader.replicas.version"
    data = metadata_of(cluster, 101)
    files = ",".join(map(str, sorted([*data.glob("*.log"), *data.glob("*.checkpoint")])))
    assert {node_id, 3000} <= set(members(cluster.bootstrap_servers, "observers"))
    answers = java.tools(
        [quorum, *brokers, "--command-config", config, "add-controller"],
        [quorum, *brokers, "--command-config", str(kafka.config), "add-controller"],
        [quorum, *controllers, "describe", "--status"],
        [features, *brokers, "describe"],
        [f"{TOOLS}.ClusterTool", "list-endpoints", *controllers],
        ["kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", files],
        [features, *brokers, "disable", "--feature", elr],
        [features, *controllers, "upgrade", "--feature", f"{elr}=1"],
        [f"!{features}", *brokers, "upgrade", "--feature", "moldau.diskless.version=1"],
        [f"!{features}", *brokers, "downgrade", "--feature", "metadata.version=6"],
    )
    assert f"Added controller {node_id} with directory id" in answers[0]
    assert "Added controller 3000 with directory id" in answers[1], kafka.output.read_text()
    assert f'"id": {node_id}' in answers[2]
    (feature,) = (line for line in answers[3].splitlines() if line.startswith("Feature: kraft.version"))
    assert "FinalizedVersionLevel: 1" in feature
    assert f"{node_id}" in answers[4]
    found = ("KRaftVersion", "KRaftVoters", "REGISTER_BROKER_RECORD", "REGISTER_CONTROLLER_RECORD")
    assert [name for name in found if name not in answers[5]] == []
    assert [f"{elr} was {change}" for change in ("disabled.", "upgraded to 1.")] == [
        answer.strip() for answer in answers[6:8]
    ]
    assert "Broker 3000 does not support moldau.diskless.version level 1." in answers[8]
    assert "Could not downgrade metadata.version to 6." in answers[9]


def config_of(quorum: str, role: str, node_id: int, port: int, folder: Path) -> Path:
    """The properties file of one of our nodes in a cluster of Kafka. ``quorum`` is the line that names the
    controllers."""
    listener = "CONTROLLER" if role == "controller" else "PLAINTEXT"
    joins = role == "controller" and "bootstrap" in quorum
    config = folder / f"{role}-{node_id}.properties"
    config.write_text(
        f"process.roles={role}\nnode.id={node_id}\nlog.dirs={folder}/{role}-{node_id}\n"
        f"controller.listener.names=CONTROLLER\nlisteners={listener}://127.0.0.1:{port}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"{quorum}\ncontroller.quorum.auto.join.enable={str(joins).lower()}\n"
        "controller.quorum.election.timeout.ms=300\ncontroller.quorum.fetch.timeout.ms=1000\n"
        "broker.heartbeat.interval.ms=500\ngroup.initial.rebalance.delay.ms=0\n"
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=4\n"
    )
    return config


@contextmanager
def running(config: Path) -> Iterator[str]:
    """Run one of our nodes with its properties file. Yields ``HOST:PORT``."""
    parsed = BrokerConfig.from_properties(parse_properties(config.read_text()))
    thread = NodeThread(parsed, Wires({}))
    try:
        thread.start().result(LIMIT_S)
        yield f"{parsed.listeners[0].host}:{parsed.listeners[0].port}"
    finally:
        thread.kill()


def test_our_nodes_join_a_cluster_of_kafka(java: Java, tmp_path: Path) -> None:
    """The cluster starts with two static voters, one of Kafka and one of Moldau. Later the voters become
    dynamic."""
    cluster_id, port = "MkU3OEVBNTcwNTJENDM2Qg", free_port()
    kafka = KafkaNode(java, 3000, tmp_path, beside=f"201@127.0.0.1:{port}")
    voter = config_of(kafka.voters, "controller", 201, port, tmp_path)
    later = config_of(kafka.controllers, "controller", 202, free_port(), tmp_path)
    # These feature levels belong to group protocols that our brokers do not serve.
    levels = ("group.version=0", "share.version=0", "streams.version=0")
    kafka.format(cluster_id, *levels, ours=[[str(voter)], [str(later), "--no-initial-controllers"]])
    of_brokers = [
        config_of(kafka.controllers, "broker", node_id, free_port(), tmp_path) for node_id in (7, 8)
    ]
    for of_broker in of_brokers:
        moldau("storage", "format", "--config", str(of_broker), "--cluster-id", cluster_id)
    with kafka.running() as process, ExitStack() as nodes:
        nodes.enter_context(running(voter))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        wait_for(lambda: 3000 in admin.list_topics(timeout=60).brokers)
        # Each of the two voters needs the other voter to commit.
        assert not created(admin, "of-static-voters", 1)
        assert sorted(members(kafka.bootstrap_servers, "voters")) == [201, 3000]
        wait_for(lambda: can("cluster", "upgrade", "kraft.version=1", "--bootstrap", kafka.bootstrap_servers))
        nodes.enter_context(running(later))
        broker, second = (nodes.enter_context(running(each)) for each in of_brokers)
        wait_for(lambda: sorted(members(broker, "voters")) == [201, 202, 3000])
        assert not created(admin, "mixed", 2, replicas=2)
        copied(broker, "mixed", 2)
        folders = {3000: tmp_path / "kafka", 7: tmp_path / "broker-7", 8: tmp_path / "broker-8"}
        check_a_move_from_kafka_and_back(java, f"{broker},{second}", 3000, (7, 8), folders)
        process.kill()
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        assert not created(admin, "led-by-ours", 1)
