"""The output of commands about the nodes of a cluster. The commands are sent to each broker, and to
controllers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import moldau.testing


@pytest.fixture(scope="module")
def cluster() -> "Iterator[moldau.testing.Cluster]":
    with moldau.testing.Cluster(brokers=2, controllers=3, racks=("a", "b")) as running:
        yield running


def test_the_quorum_is_described_through_any_node(cli: Any, cluster: moldau.testing.Cluster) -> None:
    leader_id = cluster.active_controller()
    doors = [("--bootstrap", cluster.address(node_id)) for node_id in cluster.brokers]
    doors.append(("--bootstrap-server", cluster.bootstrap_servers))
    doors += [("--bootstrap-controller", cluster.address(node_id)) for node_id in cluster.controllers]
    for option, address in doors:
        ran = cli("quorum", "describe", "--json", option, address)
        assert (ran.code, ran.err) == (0, ""), address
        found = json.loads(ran.out)
        assert found["leader_id"] == leader_id
        assert found["leader_epoch"] > 0
        assert [row["node_id"] for row in found["voters"]] == [101, 102, 103]
        assert [row["address"] for row in found["voters"]] == [
            cluster.address(node_id) for node_id in cluster.controllers
        ]
        assert {row["node_id"]: row["role"] for row in found["voters"]}[leader_id] == "leader"
        assert [row["node_id"] for row in found["observers"]] == [1, 2]
    shown = cli("quorum", "describe", "-b", cluster.bootstrap_servers).out.splitlines()
    assert shown[0].startswith(f"leader {leader_id}, epoch ")
    assert " ".join(shown[2].split()) == "NODE ROLE ADDRESS LOG END LAG LAST FETCH LAST CAUGHT UP"
    assert [line.split()[0] for line in shown[3:]] == ["101", "102", "103", "1", "2"]


def test_the_brokers_are_listed(cli: Any, cluster: moldau.testing.Cluster) -> None:
    ran = cli("brokers", "list", "--json", "-b", cluster.address(2))
    found = json.loads(ran.out)["brokers"]
    assert [(row["id"], f"{row['host']}:{row['port']}", row["rack"], row["fenced"]) for row in found] == [
        (1, cluster.address(1), "a", False),
        (2, cluster.address(2), "b", False),
    ]
    assert cli("brokers", "list", "-b", cluster.address(1)).out.splitlines()[1].split() == [
        "1",
        cluster.address(1),
        "a",
        "active",
    ]
    wrong = cli("brokers", "list", "-b", cluster.bootstrap_controllers)
    expected = "moldau: the node is a controller: name it with --bootstrap-controller\n"
    assert (wrong.code, wrong.err) == (1, expected)
    wrong = cli("quorum", "describe", "--bootstrap-controller", cluster.bootstrap_servers)
    assert (wrong.code, wrong.err) == (1, "moldau: the node is no controller: name it with --bootstrap\n")


def test_features_are_listed_by_brokers_and_controllers(cli: Any, cluster: moldau.testing.Cluster) -> None:
    of_broker = cli("cluster", "features", "--json", "-b", cluster.address(1))
    of_controller = cli("cluster", "features", "--json", "--bootstrap-controller", cluster.address(102))
    for ran in (of_broker, of_controller):
        features = {each["name"]: each for each in json.loads(ran.out)["features"]}
        assert sorted(features) == [
            "eligible.leader.replicas.version",
            "kraft.version",
            "metadata.version",
            "moldau.chunk.version",
            "moldau.diskless.version",
            "transaction.version",
        ]
        for each in features.values():
            assert each["supported_min"] <= each["level"] <= each["supported_max"]
        assert features["kraft.version"] == {
            "name": "kraft.version",
            "level": 0,
            "supported_min": 0,
            "supported_max": 1,
        }
        assert features["eligible.leader.replicas.version"]["level"] == 1
    assert "metadata.version" in cli("cluster", "features", "-b", cluster.address(1)).out


def test_a_single_node_describes_itself(cli: Any) -> None:
    with moldau.testing.Node() as node:
        found = json.loads(cli("quorum", "describe", "--json", "-b", node.bootstrap_servers).out)
    assert (found["leader_id"], [row["role"] for row in found["voters"]]) == (1, ["leader"])
