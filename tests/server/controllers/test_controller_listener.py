"""The controller's own listener serves requests of the quorum and of admins, but no requests for brokers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from plain_requests import PATIENT
from wire_client import WireClient

from moldau.config.definition import ConfigError
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import begin_quorum_epoch as begin
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages import vote
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.own.diskless.oldest_file import DisklessOldestFileRequest
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError, SystemEntropy
from moldau.testing import Node


def ask(port: int, api_key: int, message: Message) -> Message:
    async def request() -> Message:
        client = RpcClient(SystemEntropy(), client_id="test", limits=PATIENT)
        try:
            answer: Message = await client.request("127.0.0.1", port, api_key, None, message)
            return answer
        finally:
            await client.close()

    return asyncio.run(request())


def test_a_controller_listener_serves_the_quorum_and_not_the_clients(free_port: Callable[[], int]) -> None:
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"
    with Node(properties={"listeners": listeners}):
        versions = ask(
            port,
            ApiKey.API_VERSIONS,
            ApiVersionsRequest(client_software_name="t", client_software_version="1"),
        )
        keys = {row.api_key for row in versions.api_keys}  # type: ignore[attr-defined]
        assert {ApiKey.VOTE, ApiKey.FETCH_SNAPSHOT, ApiKey.BROKER_HEARTBEAT} <= keys
        assert not {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.JOIN_GROUP} & keys
        part = DescribeQuorumRequestTopicData(
            topic_name=CLUSTER_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
        )
        quorum = ask(port, ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[part]))
        assert quorum.topics[0].partitions[0].leader_id == 1  # type: ignore[attr-defined]
        cluster = ask(port, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(endpoint_type=2))
        assert cluster.error_code is ErrorCode.none  # type: ignore[attr-defined]
        assert [broker.port for broker in cluster.brokers] == [port]  # type: ignore[attr-defined]
        own = ask(port, DescribeOwnApisRequest.API_KEY, DescribeOwnApisRequest())
        # Calls of coordinators are served only by brokers. Changes of chunks are decided by the controller.
        keys = [row.api_key for row in own.apis]  # type: ignore[attr-defined]
        assert keys == [11140, 11141, 11145, 11146, 11600]
        with pytest.raises(KafkaError) as refused:
            ask(port, DisklessOldestFileRequest.API_KEY, DisklessOldestFileRequest())
        assert refused.value.code is ErrorCode.unsupported_version


def test_a_client_listener_does_not_advertise_the_controllers_apis() -> None:
    with Node() as node:
        port = int(node.bootstrap_servers.rpartition(":")[2])
        versions = ask(
            port,
            ApiKey.API_VERSIONS,
            ApiVersionsRequest(client_software_name="t", client_software_version="1"),
        )
        keys = {row.api_key for row in versions.api_keys}  # type: ignore[attr-defined]
        assert not {ApiKey.VOTE, ApiKey.BROKER_HEARTBEAT, ApiKey.ALTER_PARTITION} & keys


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"process.roles": "broker"}, "process.roles"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"},
            "listener.security.protocol.map|PLAINTEXT has the security protocol SSL",
        ),
    ],
)
def test_unsupported_settings_stop_the_start_and_name_their_keys(
    properties: dict[str, str], named: str
) -> None:
    node = Node(properties=properties)
    with pytest.raises(ConfigError, match=named):
        node.start()


def alter_default(key: str, value: str | None) -> incremental.IncrementalAlterConfigsRequest:
    """Set a cluster-wide default of brokers, or delete it."""
    operation = 1 if value is None else 0
    config = incremental.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = incremental.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    return incremental.IncrementalAlterConfigsRequest(resources=[resource])


def test_limits_of_clients_can_be_removed_on_the_controllers_listener(
    free_port: Callable[[], int],
) -> None:
    port, clients_port = free_port(), free_port()
    properties = {
        # The inter-broker listener always accepts a connection of an operator, but the other listener does
        # not.
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{clients_port},CONTROLLER://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    key = "max.connections.per.ip.overrides"
    with Node(properties=properties):
        answer = ask(port, ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_default(key, "127.0.0.1:0"))
        assert answer.responses[0].error_code is ErrorCode.none, answer  # type: ignore[attr-defined]
        with pytest.raises(KafkaError):
            ask(clients_port, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        answer = ask(port, ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_default(key, None))
        assert answer.responses[0].error_code is ErrorCode.none, answer  # type: ignore[attr-defined]
        cluster = ask(clients_port, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        assert cluster.error_code is ErrorCode.none  # type: ignore[attr-defined]


def test_a_voter_without_a_port_is_described_with_its_assigned_port() -> None:
    part = DescribeQuorumRequestTopicData(
        topic_name=CLUSTER_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
    )
    with Node() as node:
        answer = ask(
            int(node.bootstrap_servers.rpartition(":")[2]),
            ApiKey.DESCRIBE_QUORUM,
            DescribeQuorumRequest(topics=[part]),
        )
        (voter,) = answer.nodes  # type: ignore[attr-defined]
        (listener,) = voter.listeners
        assert listener.name == "CONTROLLER"
        cluster = ask(listener.port, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(endpoint_type=2))
        assert [each.port for each in cluster.brokers] == [listener.port]  # type: ignore[attr-defined]


def epoch_of(port: int) -> int:
    part = DescribeQuorumRequestPartitionData()
    topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[part])
    found = ask(port, ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[topic]))
    return found.topics[0].partitions[0].leader_epoch  # type: ignore[attr-defined, no-any-return]


def test_no_epoch_in_a_request_ends_the_quorum(free_port: Callable[[], int]) -> None:
    """In an earlier version, one request with the highest epoch ended the node, and no restart succeeded."""
    port = free_port()
    highest = 2**31 - 1
    candidate = vote.VoteRequestPartitionData(
        replica_epoch=highest, replica_id=1, last_offset_epoch=highest - 1, last_offset=2**40
    )
    topic = vote.VoteRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[candidate])
    leader = begin.BeginQuorumEpochRequestPartitionData(leader_id=1, leader_epoch=highest)
    begun_topic = begin.BeginQuorumEpochRequestTopicData(
        topic_name=CLUSTER_METADATA_TOPIC, partitions=[leader]
    )
    with Node(properties={"listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"}) as node:
        before = epoch_of(port)
        voted: Any = ask(port, ApiKey.VOTE, vote.VoteRequest(topics=[topic]))
        assert voted.topics[0].partitions[0].error_code is ErrorCode.invalid_request
        begun: Any = ask(port, ApiKey.BEGIN_QUORUM_EPOCH, begin.BeginQuorumEpochRequest(topics=[begun_topic]))
        assert begun.topics[0].partitions[0].error_code is ErrorCode.invalid_request
        assert epoch_of(port) == before
        with WireClient(node.bootstrap_servers) as client:
            assert client.create_topic("after").error_code is ErrorCode.none
