"""Moves of partitions between brokers. This module shows the current placement, begins moves, and waits until
they are done (KIP-455)."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.client.cluster import Client, check
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.client.quorum import ENDPOINT_BROKERS, describe_cluster
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    OngoingTopicReassignment,
)
from moldau.runtime.errors import ErrorCode, KafkaError

POLL_S: Final = 0.5
MOVES_A_REQUEST_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Placement:
    """The partitions of a cluster, and its brokers."""

    partitions: Sequence[PlacedPartition]
    racks: Mapping[int, str | None]
    """Racks of the active brokers."""
    fenced: Collection[int]
    load_bytes: Mapping[int, int]


async def placement(client: Client, names: Collection[str] | None) -> Placement:
    """The replicas of the partitions of some topics, and the bytes of these replicas. ``None`` means all
    topics."""
    cluster = await describe_cluster(client, ENDPOINT_BROKERS)
    racks = {row.broker_id: row.rack for row in cluster.brokers if not row.is_fenced}
    load: dict[int, int] = {}
    sizes: dict[tuple[str, int], int] = {}
    for broker_id in racks:
        request = DescribeLogDirsRequest(topics=None)
        for folder in (await client.ask(request, broker=broker_id)).results:
            for topic in folder.topics:
                for row in topic.partitions:
                    load[broker_id] = load.get(broker_id, 0) + row.partition_size
                    key = topic.name, row.partition_index
                    sizes[key] = max(sizes.get(key, 0), row.partition_size)
    partitions = []
    for topic_row in (await client.metadata(names)).topics:
        name = topic_row.name or ""
        check(topic_row.error_code, None, name)
        for part in topic_row.partitions:
            index = part.partition_index
            size_bytes = sizes.get((name, index), 0)
            partitions.append(PlacedPartition(name, index, tuple(part.replica_nodes), size_bytes))
    fenced = {row.broker_id for row in cluster.brokers if row.is_fenced}
    return Placement(partitions, racks, fenced, load)


async def begin_moves(client: Client, moves: Sequence[PlannedMove]) -> None:
    """Request all moves together. Raises :class:`ToolError` for the first refused move. The moves that were
    not refused continue.
    """
    for row in await _alter(client, [(move, move.target) for move in moves]):
        check(row.code, row.message, row.about)


async def cancel_moves(client: Client, moves: Sequence[PlannedMove]) -> None:
    """Cancel moves in progress. Moves that have ended in the meantime are ignored. Raises :class:`ToolError`
    at the first refusal."""
    for row in await _alter(client, [(move, None) for move in moves]):
        if row.code is not ErrorCode.no_reassignment_in_progress:
            check(row.code, row.message, row.about)


class _PartitionResult(NamedTuple):
    about: str
    """The name of the partition."""
    code: ErrorCode
    message: str | None


async def _alter(
    client: Client, wanted: Sequence[tuple[PlannedMove, tuple[int, ...] | None]]
) -> list[_PartitionResult]:
    """Request other replicas for partitions. ``None`` cancels a partition's move."""
    answers = []
    for start in range(0, len(wanted), MOVES_A_REQUEST_MAX):
        topics: dict[str, list[ReassignablePartition]] = {}
        for move, replicas in wanted[start : start + MOVES_A_REQUEST_MAX]:
            row = ReassignablePartition(partition_index=move.partition.index, replicas=replicas)
            topics.setdefault(move.partition.topic, []).append(row)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=client.timeout_ms,
            topics=[ReassignableTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        response = await client.ask(request)
        check(response.error_code, response.error_message, "moving partitions")
        answers += [
            _PartitionResult(f"{topic.name}-{each.partition_index}", each.error_code, each.error_message)
            for topic in response.responses
            for each in topic.partitions
        ]
    return answers


async def moves_in_progress(client: Client) -> Sequence[OngoingTopicReassignment]:
    """All moves in progress."""
    response = await client.ask(ListPartitionReassignmentsRequest(topics=None))
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code, response.error_message)
    topics: Sequence[OngoingTopicReassignment] = response.topics
    return topics


async def moves_of(client: Client, names: Collection[str]) -> list[PlannedMove]:
    """The moves in progress of some topics. An empty collection means all topics."""
    return [
        PlannedMove(
            PlacedPartition(
                topic.name,
                row.partition_index,
                tuple(each for each in row.replicas if each not in row.adding_replicas),
            ),
            tuple(each for each in row.replicas if each not in row.removing_replicas),
        )
        for topic in await moves_in_progress(client)
        for row in topic.partitions
        if not names or topic.name in names
    ]


async def until_moved(client: Client, moves: Iterable[PlannedMove], tell_left: Callable[[int], None]) -> None:
    """Wait until all moves are done. ``tell_left`` is called with the number of unfinished moves when this
    number changes."""
    wanted = {(move.partition.topic, move.partition.index) for move in moves}
    told = -1
    while True:
        ongoing = await client.retrying(lambda: moves_in_progress(client))
        rows = {(topic.name, row.partition_index) for topic in ongoing for row in topic.partitions}
        left = len(rows & wanted)
        if left != told:
            tell_left(left)
            told = left
        if not left:
            return
        await asyncio.sleep(POLL_S)
