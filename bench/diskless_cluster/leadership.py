"""The preferred replicas of partitions, and the election of these replicas as leaders."""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.cluster.nodes import wait_until
from bench.diskless_cluster.nodes import COORDINATORS_TOPIC, RackNodes
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.runtime.errors import ErrorCode

REASSIGN: Final = (45, 0)
ELECT: Final = (43, 2)


def prefer(nodes: RackNodes, topic: str, orders: Mapping[int, Sequence[int]]) -> None:
    """Change the order of replicas of some partitions. The first replica is the preferred leader."""
    rows = [ReassignablePartition(partition_index=index, replicas=order) for index, order in orders.items()]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=rows)])
    answer = nodes.ask(nodes.brokers[0], REASSIGN, request)
    codes = {row.error_code for found in answer.responses for row in found.partitions}
    if codes != {ErrorCode.none}:
        raise RuntimeError(f"the order of the replicas of {topic} is not changed: {codes}")
    wait_until(lambda: _have_orders(nodes, topic, orders))


def _have_orders(nodes: RackNodes, topic: str, orders: Mapping[int, Sequence[int]]) -> bool:
    found = nodes.partitions_of(topic)
    return all(tuple(found[index].replica_nodes) == tuple(order) for index, order in orders.items())


def elect(nodes: RackNodes, asked: int, topic: str, indexes: Sequence[int]) -> None:
    """Request from the broker ``asked`` that the preferred replicas become the leaders."""
    rows = [TopicPartitions(topic=topic, partitions=indexes)]
    answer = nodes.ask(asked, ELECT, ElectLeadersRequest(topic_partitions=rows))
    codes = {row.error_code for found in answer.replica_election_results for row in found.partition_result}
    if not codes <= {ErrorCode.none, ErrorCode.election_not_needed}:
        raise RuntimeError(f"no election of the leaders of {topic}: {codes}")


def spread_coordinators(nodes: RackNodes) -> None:
    """Distribute the coordinators over the brokers: coordinator 0 prefers the first broker, and so on. The
    automatic placement has a random order."""
    brokers = nodes.brokers
    orders = {
        index: tuple(brokers[(index + step) % len(brokers)] for step in range(len(brokers)))
        for index in range(len(nodes.partitions_of(COORDINATORS_TOPIC)))
    }
    prefer(nodes, COORDINATORS_TOPIC, orders)
    elect(nodes, brokers[0], COORDINATORS_TOPIC, list(orders))
    wait_until(lambda: _are_led(nodes, COORDINATORS_TOPIC, {i: order[0] for i, order in orders.items()}))


def _are_led(nodes: RackNodes, topic: str, leaders: Mapping[int, int]) -> bool:
    found = nodes.partitions_of(topic)
    return all(found[index].leader_id == leader for index, leader in leaders.items())


def wait_until_in_sync(nodes: RackNodes, topic: str) -> None:
    """Wait until all replicas of a topic are in sync."""
    wait_until(
        lambda: all(len(each.isr_nodes) == len(each.replica_nodes) for each in nodes.partitions_of(topic))
    )
