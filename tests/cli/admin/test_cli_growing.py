"""A single node becomes a cluster of three controllers and three brokers, by the steps of
``docs/howto/controllers.md``."""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import moldau.testing
from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties
from moldau.runtime.entropy import SystemEntropy
from moldau.server.development_cluster import free_ports
from moldau.testing.node_thread import NodeThread, Wires

LIMIT_S = 60
HOST = "127.0.0.1"
BROKERS, CONTROLLERS = (1, 2, 3), (1, 101, 102)
VALUES = b"".join(b"value-%d\n" % number for number in range(300))
TOPICS = {"local": ("-c", "diskless.enable=false"), "away": ("-c", "diskless.enable=true")}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the cluster does not come to what is expected"
        time.sleep(0.05)


class Nodes:
    """Nodes, each of which is started from its properties file."""

    def __init__(self, cli: Any, folder: pathlib.Path) -> None:
        self._cli = cli
        self._folder = folder
        ports = free_ports(SystemEntropy(), HOST, 6)
        self._clients = {node_id: f"{HOST}:{ports.pop()}" for node_id in BROKERS}
        self._quorum = {node_id: f"{HOST}:{ports.pop()}" for node_id in CONTROLLERS}
        self.single_voter = f"controller.quorum.voters=1@{self._quorum[1]}"
        self.bootstrap = ",".join(self._clients.values())
        self._running: dict[int, NodeThread] = {}

    def data(self, node_id: int) -> pathlib.Path:
        return self._folder / f"node-{node_id}"

    def write(self, node_id: int, voters: str = "") -> pathlib.Path:
        """Write the properties file of a node. ``voters`` is the line with the static voters, if the cluster
        has static voters."""
        found = {"PLAINTEXT": self._clients.get(node_id), "CONTROLLER": self._quorum.get(node_id)}
        roles = {"PLAINTEXT": "broker", "CONTROLLER": "controller"}
        listeners = {name: address for name, address in found.items() if address}
        store = f"file://{self.data(1)}/objects"
        path = self._folder / f"{node_id}.properties"
        joins = "controller.quorum.auto.join.enable=true\n" if node_id in CONTROLLERS else ""
        path.write_text(
            f"process.roles={','.join(roles[name] for name in listeners)}\nnode.id={node_id}\n"
            f"log.dirs={self.data(node_id)}\ncontroller.listener.names=CONTROLLER\n"
            f"listeners={','.join(f'{name}://{address}' for name, address in listeners.items())}\n"
            f"{voters or 'controller.quorum.bootstrap.servers=' + self._quorum[1]}\n"
            f"{joins}controller.quorum.election.timeout.ms=300\n"
            "controller.quorum.fetch.timeout.ms=1000\nbroker.heartbeat.interval.ms=250\n"
            "broker.session.timeout.ms=2000\ngroup.initial.rebalance.delay.ms=0\n"
            f"diskless.system.enable=true\ndiskless.storage.url={store}\n"
            f"remote.log.storage.system.enable=true\nrsm.config.url={store}\n"
            "remote.log.metadata.topic.num.partitions=4\noffsets.topic.num.partitions=4\n"
            "diskless.metadata.topic.num.partitions=1\n"
        )
        return path

    def format(self, node_id: int, cluster_id: str) -> None:
        options = ("--no-initial-controllers",) if node_id in CONTROLLERS else ()
        ran = self._cli("storage", "format", "-c", str(self.write(node_id)), "-t", cluster_id, *options)
        assert (ran.code, ran.err) == (0, "")

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            text = (self._folder / f"{node_id}.properties").read_text()
            thread = NodeThread(BrokerConfig.from_properties(parse_properties(text)), Wires({}))
            self._running[node_id] = thread
        for starting in [self._running[node_id].start() for node_id in node_ids]:
            starting.result(LIMIT_S)

    def stop(self, node_id: int) -> None:
        thread = self._running.pop(node_id)
        thread.begin_stop().result(LIMIT_S)
        thread.finish()

    def kill(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self._running):
            self._running.pop(node_id).kill()


@pytest.fixture
def nodes(cli: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    found = Nodes(cli, tmp_path)
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", found.bootstrap)
    with contextlib.ExitStack() as stack:
        stack.callback(found.kill)
        yield found


@pytest.mark.real_time
def test_a_single_node_becomes_a_cluster_and_then_loses_its_first_node(
    cli: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    with moldau.testing.Node(data=str(nodes.data(1)), diskless=True) as single:
        for topic, options in TOPICS.items():
            at = ("-b", single.bootstrap_servers)
            assert cli("topics", "create", topic, "-p", "2", *options, *at).code == 0
            assert cli("produce", topic, *at, stdin=VALUES).code == 0
        assert cli("consume", "local", "--group", "g", *at).code == 0
    meta = (nodes.data(1) / "meta.properties").read_text().splitlines()
    (cluster_id,) = (line.partition("=")[2] for line in meta if line.startswith("cluster.id="))

    nodes.write(1, nodes.single_voter)
    nodes.start(1)
    refused = cli("quorum", "remove", "--node", "1")
    assert (refused.code, "raise the feature kraft.version to 1" in refused.err) == (1, True)
    wait_for(lambda: cli("cluster", "upgrade", "kraft.version=1").code == 0)
    nodes.stop(1)
    nodes.write(1)
    for node_id in (2, 3, 101, 102):
        nodes.format(node_id, cluster_id)
    nodes.start(1, 2, 3, 101, 102)

    def voters() -> list[int]:
        return [row["node_id"] for row in json.loads(cli("quorum", "describe", "--json").out)["voters"]]

    wait_for(lambda: voters() == list(CONTROLLERS))
    moved = cli("topics", "reassign", "-r", "3", "--yes")
    assert (moved.code, moved.err.splitlines()[-1:]) == (0, ["all moves are done"])
    assert [line.getMessage() for line in caplog.records if line.levelname == "ERROR"] == []
    nodes.kill(1)
    for topic in TOPICS:
        wait_for(
            lambda topic=topic: sorted(cli("consume", topic).out.split()) == sorted(VALUES.decode().split())
        )
    assert cli("consume", "local", "--group", "g").out == ""
    assert cli("quorum", "remove", "--node", "1").code == 0
    wait_for(lambda: voters() == [101, 102])
