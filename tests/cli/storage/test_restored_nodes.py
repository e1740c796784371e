"""The nodes of a restored cluster, from their properties files."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import moldau.testing
from moldau.backup.restore.living_nodes import living_brokers
from moldau.cli.errors import CommandError
from moldau.cli.storage.restored_nodes import check_nodes, new_cluster, with_store
from moldau.cluster.folders.meta_properties import FormatError, read_meta_properties
from moldau.config.broker import BrokerConfig
from moldau.protocol.records.metadata import BrokerEndpoint, RegisterBrokerRecord
from moldau.runtime import Machine
from moldau.runtime.entropy import SystemEntropy

VOTERS = "1@host-1:9093"


def _config(node_id: int, roles: str, folder: Path | str = "", **properties: str) -> BrokerConfig:
    listeners = {"broker": "PLAINTEXT://:9092", "controller": "CONTROLLER://host:9093"}
    values = {
        "process.roles": roles,
        "node.id": str(node_id),
        "listeners": ",".join(listeners[each] for each in roles.split(",")),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "host:9093",
        "log.dirs": f"{folder}/node-{node_id}",
        "diskless.system.enable": "true",
        "diskless.storage.url": "file:///store",
    }
    values |= {name.replace("_", "."): value for name, value in properties.items()}
    if "controller.quorum.voters" in values:
        del values["controller.quorum.bootstrap.servers"]
    return BrokerConfig.from_properties(values, {})


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ({"rsm_config_url": "file:///store"}, "file:///copy"),
        ({"rsm_config_url": "file:///tier"}, "file:///tier"),
        ({}, None),
    ],
)
def test_a_copy_of_the_store_is_also_the_copy_of_the_tier_in_it(
    tier: dict[str, str], expected: str | None
) -> None:
    config = with_store(_config(1, "broker,controller", **tier), "file:///copy")
    assert config.text("diskless.storage.url") == "file:///copy"
    assert config.static.get("rsm.config.url") == expected


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([_config(1, "controller")], "needs a controller and a broker"),
        ([_config(2, "broker")], "needs a controller and a broker"),
        ([_config(1, "controller"), _config(1, "broker")], "node.id 1 is in several"),
        (
            [_config(1, "broker,controller"), _config(2, "broker", diskless_storage_url="file:///other")],
            "diskless.storage.url differs",
        ),
        (
            [_config(1, "controller", controller_quorum_voters=VOTERS), _config(2, "broker")],
            "in all files, or in none",
        ),
        (
            [_config(7, "broker,controller", controller_quorum_voters=VOTERS.replace("1@", "7@") + ",8@h:1")],
            r"names \[7, 8\], and the files of the controllers \[7\]",
        ),
    ],
)
def test_nodes_that_are_no_cluster_are_refused(nodes: list[BrokerConfig], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        check_nodes(nodes)


def test_controllers_without_configured_voters_are_named_in_the_metadata_log() -> None:
    nodes = [_config(1, "controller"), _config(2, "controller"), _config(3, "broker", broker_rack="a")]
    check_nodes(nodes)
    cluster = new_cluster(nodes, "id", Machine.real(), None)
    assert [each.voter is not None for each in cluster.nodes] == [True, True, False]
    assert cluster.static_voters is None
    assert [(each.node_id, each.rack) for each in cluster.brokers] == [(3, "a")]


def test_folders_for_other_machines_are_below_one_folder(tmp_path: Path) -> None:
    node = _config(4, "broker,controller", log_dirs="/a,/b")
    cluster = new_cluster([node], "id", Machine.real(), tmp_path)
    assert list(cluster.nodes[0].paths) == [f"{tmp_path}/node-4/0", f"{tmp_path}/node-4/1"]


def test_two_nodes_do_not_share_a_folder(tmp_path: Path) -> None:
    nodes = [_config(1, "broker,controller", tmp_path), _config(2, "broker", log_dirs=f"{tmp_path}/node-1")]
    cluster = new_cluster(nodes, "id", Machine.real(), None)
    with pytest.raises(FormatError, match="log folder of node 2 and of node 1"):
        cluster.check(Machine.real())


def test_a_broker_of_the_saved_cluster_that_still_runs_is_found(node: moldau.testing.Node) -> None:
    host, _, port = node.bootstrap_servers.rpartition(":")
    properties = read_meta_properties(Machine.real().disk, node.data)
    assert properties is not None

    def living(cluster_id: str, protocol: int = 0) -> list[str]:
        endpoint = BrokerEndpoint(name="A", host=host, port=int(port), security_protocol=protocol)
        records = [
            RegisterBrokerRecord(broker_id=7, end_points=[endpoint]),
            RegisterBrokerRecord(broker_id=8, end_points=[replace(endpoint, port=1)]),
        ]
        return asyncio.run(living_brokers(records, cluster_id, SystemEntropy()))

    assert living(properties.cluster_id) == [f"broker 7 at {node.bootstrap_servers}"]
    assert living("another cluster at this address") == []
    assert living(properties.cluster_id, protocol=1) == []
