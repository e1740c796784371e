"""DescribeQuorum: the leader of the metadata quorum, and the progress of its replicas (KIP-595, KIP-836)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from moldau.cluster.controller.decided_apis import FEW_ROWS_PARSED_BYTES
from moldau.config.broker import BrokerConfig
from moldau.config.listeners import ConfiguredVoter
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
)
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.quorum.description import QuorumDescription, to_wire
from moldau.quorum.wire.requests import METADATA_PARTITION
from moldau.runtime.errors import ErrorCode


def quorum_row(handler: Handler) -> Served:
    """Return the entry of DescribeQuorum in the handler table of a listener."""
    return Served(handler, parsed_bytes_max=FEW_ROWS_PARSED_BYTES)


def describe_quorum(
    quorum: Callable[[], QuorumDescription],
    voters: Callable[[], Sequence[ConfiguredVoter]],
    config: BrokerConfig,
    context: RequestContext,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse:
    """Describe the metadata partition. Every other partition in the request gets the error
    UNKNOWN_TOPIC_OR_PARTITION.

    Raises ``KafkaError(not_leader_or_follower)`` when this node does not lead the quorum.
    """
    asked = [
        (topic.topic_name, part.partition_index) for topic in request.topics for part in topic.partitions
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, METADATA_PARTITION)]:
        return _unknown(request)
    listener = config.controller_listeners[0].name if config.controller_listeners else ""
    return replace(
        to_wire(quorum()),
        nodes=[
            Node(
                node_id=voter.node_id,
                listeners=[Listener(name=listener, host=voter.host, port=voter.port)],
            )
            for voter in voters()
        ],
    )


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    DescribeQuorumResponsePartitionData(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.unknown_topic_or_partition,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
