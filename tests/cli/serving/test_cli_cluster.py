"""One command starts a cluster of processes: its start, its output, and its end."""

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import moldau.testing

TIMEOUT_S = 200
NODES = ("--brokers", "2", "--controllers", "3")


class DevCluster:
    """The command ``moldau dev`` with several nodes that are ready."""

    def __init__(self, data: pathlib.Path, *arguments: str) -> None:
        self.file = data / "cluster.json"
        command = [sys.executable, "-m", "moldau", "dev", "--data", str(data), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        word, self.brokers = self.process.stdout.readline().split()
        assert word == "ready"

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.file.read_text())["nodes"]
        return found

    def pid(self, node_id: int) -> int:
        return next(node["pid"] for node in self.nodes() if node["id"] == node_id)

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., DevCluster]]:
    started: list[DevCluster] = []

    def starting(*arguments: str) -> DevCluster:
        started.append(DevCluster(tmp_path / "data", *arguments))
        return started[-1]

    yield starting
    for cluster in started:
        cluster.process.kill()
        cluster.process.communicate(timeout=TIMEOUT_S)


def test_a_second_start_continues_with_the_data(start: Callable[..., DevCluster], cli: Any) -> None:
    cluster = start(*NODES, "--racks", "a,b")
    nodes = cluster.nodes()
    assert [(node["id"], node["roles"], node["rack"]) for node in nodes] == [
        (1, ["broker"], "a"),
        (2, ["broker"], "b"),
        (101, ["controller"], None),
        (102, ["controller"], None),
        (103, ["controller"], None),
    ]
    assert cluster.brokers == ",".join(f"{node['host']}:{node['port']}" for node in nodes[:2])
    assert len({node["pid"] for node in nodes}) == 5
    assert cli("topics", "create", "kept", "--partitions", "4", "-b", cluster.brokers).code == 0
    lines = b"".join(b"%d\n" % number for number in range(40))
    assert cli("produce", "kept", "-b", cluster.brokers, stdin=lines).code == 0
    many = cli("topics", "create", "many", "--replication-factor", "3", "-b", cluster.brokers)
    assert (many.code, "Replication factor" in many.err) == (1, True)
    diskless = cli("topics", "create", "away", "-c", "diskless.enable=true", "-b", cluster.brokers)
    assert diskless.code == 0
    assert cli("produce", "away", "-b", cluster.brokers, stdin=lines).code == 0
    data = str(cluster.file.parent)
    in_use = refused(cli("dev", "--data", data, *NODES))
    assert in_use == f"{data} is in use by another process (it holds .lock)"
    assert cluster.end(signal.SIGTERM) == (0, "", "")
    assert [node["pid"] for node in cluster.nodes()] == [None] * 5
    single = refused(cli("dev", "--data", data, "--port", "0"))
    assert single.startswith(f"{data} holds a cluster of several nodes: start it with --brokers 2 --contr")
    was = f"{data} holds a cluster with --brokers 2 --controllers 3: "
    fewer = refused(cli("dev", "--data", data, "--brokers", "2"))
    assert fewer == f"{was}the number of controllers cannot be changed yet"
    fewer = refused(cli("dev", "--data", data, "--controllers", "3"))
    assert fewer == f"{was}brokers can be added, but not removed, because they hold data"

    again = start(*NODES)
    read = cli("consume", "kept", "-b", again.brokers)
    assert sorted(map(int, read.out.split())) == list(range(40))
    assert again.end(signal.SIGINT) == (0, "", "")


def test_the_end_of_a_node_is_reported_and_no_node_outlives_the_command(
    start: Callable[..., DevCluster],
) -> None:
    cluster = start("--brokers", "2")
    pid = cluster.pid(2)
    os.kill(pid, signal.SIGKILL)
    assert cluster.process.stderr is not None
    line = cluster.process.stderr.readline()
    again = f"`moldau node --config {cluster.file.parent}/config/broker-2.properties` starts it again"
    assert line == f"moldau: broker 2 (pid {pid}) was ended by SIGKILL; {again}\n"
    left = [os.pidfd_open(cluster.pid(node_id)) for node_id in (1, 101)]
    cluster.process.kill()
    for descriptor in left:
        assert select.select([descriptor], [], [], TIMEOUT_S)[0], "a node goes on without its parent"
        os.close(descriptor)


def refused(ran: Any) -> str:
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    err: str = ran.err
    return err.removeprefix("moldau: ").removesuffix("\n")


def test_a_folder_of_a_single_node_is_refused(tmp_path: pathlib.Path, cli: Any) -> None:
    with moldau.testing.Node(data=str(tmp_path)):
        pass
    assert refused(cli("dev", "--data", str(tmp_path), *NODES)) == (
        f"{tmp_path} holds the data of a single node: start it without --brokers and --controllers,"
        " or take another folder for the cluster"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "node.id=7"), "--set node.id cannot be used with --brokers"),
        (("--set", "num.partitions=0"), "num.partitions"),
        (("--pipeline",), "--pipeline is for a single node"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1: Cannot assign requested address"),
    ],
)
def test_unsuitable_options_are_refused_by_name(
    tmp_path: pathlib.Path, cli: Any, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(cli("dev", "--data", str(tmp_path), "--brokers", "2", *arguments))
    assert not list(tmp_path.glob("*.json"))
