"""Changes of voters (KIP-853) by commands: format folders, add and remove voters, and change static voters to
dynamic voters."""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import moldau.testing

LIMIT_S = 60


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the quorum does not come to what is expected"
        time.sleep(0.02)


def quorum(cli: Any, cluster: moldau.testing.Cluster) -> tuple[list[int], list[int], int]:
    """The voters, the observers and the leader of the quorum."""
    ran = cli("quorum", "describe", "--json", "-b", cluster.bootstrap_servers)
    assert ran.err == ""
    found = json.loads(ran.out)
    voters, observers = ([row["node_id"] for row in found[key]] for key in ("voters", "observers"))
    return voters, observers, found["leader_id"]


def file_of(cluster: moldau.testing.Cluster, node_id: int, folder: pathlib.Path) -> str:
    """Write the properties file of a running controller, as an operator would do. Returns its path."""
    path = folder / f"{node_id}.properties"
    host, _, port = cluster.address(node_id).partition(":")
    path.write_text(
        f"process.roles=controller\nnode.id={node_id}\nlog.dirs={cluster.data}/controller-{node_id}\n"
        f"controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://{host}:{port}\n"
        f"controller.quorum.bootstrap.servers={cluster.address(101)}\n"
    )
    return str(path)


def test_controllers_are_added_and_removed_while_brokers_follow(cli: Any, tmp_path: pathlib.Path) -> None:
    with moldau.testing.Cluster(brokers=1, controllers=1, static_voters=False) as cluster:
        assert quorum(cli, cluster) == ([101], [1], 101)
        assert cluster.add_controller() == 102
        wait_for(lambda: quorum(cli, cluster)[1] == [1, 102])
        ran = cli("quorum", "add", "-c", file_of(cluster, 102, tmp_path), "-b", cluster.bootstrap_servers)
        assert (ran.code, ran.out, ran.err) == (0, "node 102 is a voter\n", "")
        ran = cli(
            "quorum",
            "add",
            "-c",
            file_of(cluster, 102, tmp_path),
            "--bootstrap-controller",
            cluster.bootstrap_controllers,
        )
        assert ran.code == 1
        assert "node 102 is a voter already; the voters are [101, 102]" in ran.err
        assert cluster.add_controller({"controller.quorum.auto.join.enable": "true"}) == 103
        wait_for(lambda: quorum(cli, cluster)[0] == [101, 102, 103])
        features = json.loads(cli("cluster", "features", "--json", "-b", cluster.bootstrap_servers).out)
        assert {row["name"]: row["level"] for row in features["features"]}["kraft.version"] == 1

        ran = cli("quorum", "remove", "--node", "101", "-b", cluster.bootstrap_servers)
        assert (ran.code, ran.out, ran.err) == (0, "node 101 is no longer a voter\n", "")
        wait_for(lambda: quorum(cli, cluster)[0] == [102, 103])
        cluster.kill(101)
        ran = cli("topics", "create", "t", "-b", cluster.bootstrap_servers)
        assert (ran.code, ran.err) == (0, "")
        ran = cli("quorum", "remove", "--node", "101", "-b", cluster.bootstrap_servers)
        assert (ran.code, ran.err) == (1, "moldau: node 101 is not a voter; the voters are [102, 103]\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "needs one of --standalone, --initial-controllers and --no-initial-controllers"),
        (("--standalone", "-N"), "--standalone and --no-initial-controllers exclude each other"),
        (("--standalone", "-f", "kraft.version=0"), "kraft.version is 1 without controller.quorum.voters"),
        (("-N", "-f", "other=1"), "Feature other is not known; known are eligible.leader.replicas.version, "),
        (("-N", "-f", "transaction.version=3"), "transaction.version 3 is not between 0 and 2"),
        (
            ("-N", "-f", "metadata.version=22", "-f", "eligible.leader.replicas.version=1"),
            "eligible.leader.replicas.version needs metadata.version 23",
        ),
        (("-N", "-f", "metadata.version=99"), "metadata.version 99 is not between 7 and 29"),
        (("-I", "1@host"), "is not of the form ID@HOST:PORT:DIRECTORY_ID"),
        (("-I", "1@host:9093:AAAAAAAAAAAAAAAAAAAATQ"), "Node 101 is not one of the initial controllers [1]"),
        (
            ("--standalone", "--set", "controller.quorum.voters=101@127.0.0.1:9093"),
            "--standalone cannot be given if controller.quorum.voters is set",
        ),
    ],
)
def test_a_folder_is_not_formatted_by_options_that_do_not_fit(
    cli: Any, tmp_path: pathlib.Path, options: tuple[str, ...], said: str
) -> None:
    config = tmp_path / "c.properties"
    config.write_text(
        f"process.roles=controller\nnode.id=101\nlog.dirs={tmp_path}/data\n"
        "controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:9093\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
    )
    if "controller.quorum.voters" in " ".join(options):
        config.write_text("\n".join(config.read_text().splitlines()[:-1]) + "\n")
    ran = cli("storage", "format", "-c", str(config), "-t", "MkU3OEVBNTcwNTJENDM2Qg", *options)
    assert ran.code == 1
    assert said in ran.err
    assert not (tmp_path / "data").exists()
