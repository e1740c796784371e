"""Kafka's own tools and controllers work with the quorum: describe, format, dump, vote (KIP-595, KIP-853)."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from foreign_clients import Java

from moldau.testing import Cluster

pytestmark = [pytest.mark.java, pytest.mark.real_time]

TOOLS = "org.apache.kafka.tools"
LIMIT_S = 120
ANY_PORT = 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the quorum does not come to what is expected"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ANY_PORT))
        return int(probe.getsockname()[1])


def test_kafkas_tools_describe_change_and_dump_the_quorum(java: Java, tmp_path: Path) -> None:
    with Cluster(brokers=1, controllers=1, static_voters=False) as cluster:
        node_id = cluster.add_controller()
        brokers = ["--bootstrap-server", cluster.bootstrap_servers]
        controllers = ["--bootstrap-controller", cluster.bootstrap_controllers.split(",")[0]]
        host, _, port = cluster.address(node_id).partition(":")
        config = tmp_path / "new.properties"
        config.write_text(
            f"process.roles=controller\nnode.id={node_id}\nlog.dirs={cluster.data}/controller-{node_id}\n"
            f"controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://{host}:{port}\n"
            f"advertised.listeners=CONTROLLER://{host}:{port}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
            f"controller.quorum.bootstrap.servers={cluster.address(101)}\n"
        )
        quorum = f"{TOOLS}.MetadataQuorumCommand"
        observers = lambda: java.tool(quorum, *brokers, "describe", "--replication")  # noqa: E731
        wait_for(lambda: f"{node_id}" in observers())
        answers = java.tools(
            [quorum, *brokers, "--command-config", str(config), "add-controller"],
            [quorum, *controllers, "describe", "--status"],
            [f"{TOOLS}.FeatureCommand", *brokers, "describe"],
            [f"{TOOLS}.ClusterTool", "list-endpoints", *controllers],
        )
        assert f"Added controller {node_id} with directory id" in answers[0]
        assert f'"id": {node_id}' in answers[1]
        (feature,) = (line for line in answers[2].splitlines() if line.startswith("Feature: kraft.version"))
        assert "FinalizedVersionLevel: 1" in feature
        assert f"{node_id}" in answers[3]
        data = Path(cluster.data) / "controller-101" / "__cluster_metadata-0"
        segments = ",".join(map(str, sorted([*data.glob("*.log"), *data.glob("*.checkpoint")])))
        dumped = java.tool("kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", segments)
        assert "KRaftVersion" in dumped
        assert "KRaftVoters" in dumped
        assert "REGISTER_BROKER_RECORD" in dumped


def listens(config: str) -> bool:
    """Whether the port of a properties file accepts connections."""
    found = Path(config).read_text().partition("listeners=CONTROLLER://127.0.0.1:")[2]
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(found.split()[0]))) == 0


@contextlib.contextmanager
def kafka_controller(java: Java, cluster: Cluster, node_id: int, folder: Path) -> Iterator[str]:
    """A controller of Apache Kafka that observes the cluster's quorum; its properties file."""
    port = free_port()
    config = folder / "kafka.properties"
    config.write_text(
        f"process.roles=controller\nnode.id={node_id}\nlog.dirs={folder}/kafka\n"
        f"controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT\n"
        f"controller.quorum.bootstrap.servers={cluster.bootstrap_controllers}\n"
        "controller.quorum.election.timeout.ms=300\ncontroller.quorum.fetch.timeout.ms=1000\n"
    )
    properties = Path(cluster.data) / "controller-101" / "meta.properties"
    lines = dict(line.split("=", 1) for line in properties.read_text().splitlines() if "=" in line)
    formatting = ["format", "-t", lines["cluster.id"], "-c", str(config), "--no-initial-controllers"]
    java.tool("kafka.tools.StorageTool", *formatting)
    with (folder / "kafka.log").open("w") as output:
        process = subprocess.Popen(
            java.command("kafka.Kafka", str(config)), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield str(config)
        finally:
            process.kill()
            process.wait()


def test_a_controller_of_kafka_observes_and_votes(java: Java, tmp_path: Path) -> None:
    with Cluster(brokers=1, controllers=2, static_voters=False) as cluster:
        brokers = ["--bootstrap-server", cluster.bootstrap_servers]
        quorum = f"{TOOLS}.MetadataQuorumCommand"
        topics = f"{TOOLS}.TopicCommand"

        def described() -> str:
            return java.tool(quorum, *brokers, "describe", "--replication")

        with kafka_controller(java, cluster, 3000, tmp_path) as config:
            wait_for(lambda: "3000" in described())
            wait_for(lambda: listens(config))
            answers = java.tools(
                [quorum, *brokers, "--command-config", config, "add-controller"],
                [quorum, *brokers, "describe", "--replication"],
                [topics, *brokers, "--create", "--topic", "first"],
            )
            assert "Added controller 3000" in answers[0], (tmp_path / "kafka.log").read_text()
            leader_id = cluster.active_controller()
            assert leader_id is not None
            cluster.kill(leader_id)
            answers = java.tools(
                [topics, *brokers, "--create", "--topic", "second"],
                [topics, *brokers, "--list"],
                [quorum, *brokers, "describe", "--replication"],
            )
            # Two of three voters are left, so each commit needs the one of Kafka.
            assert {"first", "second"} <= set(answers[1].split())
            rows = {words[0]: words[-1] for line in answers[2].splitlines() if (words := line.split())}
            assert rows["3000"] in ("Follower", "Leader")
