"""Committed offsets of many groups in one partition, and the time in which a new coordinator loads them."""

import time
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.cluster.nodes import METADATA, ClusterNodes, wait_until
from bench.partitions import Connection
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.runtime.errors import ErrorCode

TOPIC: Final = "committed"
OFFSETS_A_GROUP: Final = 1_000
OFFSET_COMMIT: Final = (8, 8)
OFFSET_FETCH: Final = (9, 8)
FIND_COORDINATOR: Final = (10, 4)
LAST_OFFSET: Final = 7


def load_s(nodes: ClusterNodes, offsets: int) -> float:
    """Commit the offsets, and kill the coordinator. Returns the seconds from the election of its successor to
    the first response with offsets. ``__consumer_offsets`` must have one partition."""
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, OFFSETS_A_GROUP, 1)])[TOPIC].result(120)
    groups = [f"group-{number}" for number in range(offsets // OFFSETS_A_GROUP)]
    request = FindCoordinatorRequest(coordinator_keys=groups[:1])
    wait_until(lambda: _is_found(nodes, request))
    wait_until(lambda: _leader(nodes) != -1)
    first = _leader(nodes)
    connection = Connection(nodes.address(first))
    for group in groups:
        _commit(connection, group)
    connection.close()
    nodes.kill(first)
    wait_until(lambda: _leader(nodes) not in (first, -1))
    start = time.perf_counter()
    wait_until(lambda: _has_offsets(nodes, groups[-1]))
    found_s = time.perf_counter() - start
    nodes.start(first)
    nodes.wait_for_brokers(*nodes.brokers)
    return found_s


def _is_found(nodes: ClusterNodes, request: FindCoordinatorRequest) -> bool:
    answer = nodes.ask(nodes.brokers[0], FIND_COORDINATOR, request)
    return bool(answer.coordinators[0].error_code is ErrorCode.none)


def _commit(connection: Connection, group: str) -> None:
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=LAST_OFFSET)
        for index in range(OFFSETS_A_GROUP)
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=rows)]
    )

    def committed() -> bool:
        answer = connection.call(OFFSET_COMMIT, request)
        return {row.error_code for row in answer.topics[0].partitions} == {ErrorCode.none}

    wait_until(committed)


def _leader(nodes: ClusterNodes) -> int:
    """The leader of the partition according to the last broker that responds, or -1."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=CONSUMER_OFFSETS_TOPIC)])
    for node_id in reversed(nodes.brokers):
        try:
            (topic,) = nodes.ask(node_id, METADATA, request).topics
        except (OSError, EOFError):
            continue  # the node is down
        return topic.partitions[0].leader_id if topic.partitions else -1
    return -1


def _has_offsets(nodes: ClusterNodes, group: str) -> bool:
    wanted = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[OFFSETS_A_GROUP - 1])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    (found,) = nodes.ask(_leader(nodes), OFFSET_FETCH, request).groups
    if found.error_code is not ErrorCode.none:
        return False
    offset = found.topics[0].partitions[0].committed_offset
    if offset != LAST_OFFSET:
        raise RuntimeError(f"{group} committed {LAST_OFFSET}, and the new coordinator has {offset}")
    return True
