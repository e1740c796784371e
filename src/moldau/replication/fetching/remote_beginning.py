"""Starts the log of a follower after records that are in the remote tier: at the leader's first local offset,
if the follower's log ends before this offset, or where a truncation ends in the remote part of the log.

The new log begins at the end of a remote segment, with the leader epochs and the producers of that segment
(KIP-405, "Follower replication"). The follower's next fetch begins at this offset.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.schema import Message
from moldau.protocol.special_timestamps import EARLIEST_LOCAL_TIMESTAMP
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.core.divergence import UNDEFINED
from moldau.replication.core.follower import FetchPosition
from moldau.replication.partition_interface import FoundOffset
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.auxiliary_state import AuxiliaryState

logger = logging.getLogger(__name__)

AskLeader = Callable[[Message], Awaitable[Any]]
"""Sends a request to the leader; raises ``KafkaError``."""
_STATE_LIMIT_S: Final = 10.0
_CLIENT: Final = -1
"""The replica id of clients, for which the log of the leader ends at the high watermark."""


async def begin_behind_remote(
    ask: AskLeader, partition: ClassicPartition, sent: FetchPosition, log_start_offset: int
) -> None:
    """Drop the follower's log, and begin it again after the remote segment that contains the last record
    before the leader's local log start.

    ``log_start_offset`` is the leader's log start. Raises ``KafkaError`` while this is not possible, for
    example because the remote metadata arrive late or the store fails.
    """
    remote = partition.remote.part
    if remote is None:
        raise KafkaError(ErrorCode.offset_moved_to_tiered_storage, "the topic is not known here to be tiered")
    local = await list_offset(ask, partition, sent, EARLIEST_LOCAL_TIMESTAMP)
    offset, epoch = local.offset, local.leader_epoch
    chunks = partition.remote.chunks
    if chunks is not None and offset < chunks.border():
        # The first local offset is in an inactive chunk. The epoch at the border is not known here.
        offset, epoch = chunks.border(), sent.leader_epoch
    if offset <= sent.offset:
        return
    epoch = await _epoch_before(ask, partition, sent, offset, epoch)
    state = await remote.auxiliary_state(epoch, offset, log_start_offset)
    logger.info(
        "the log of %s-%d ends at offset %d, and the log on the leader's disk begins at offset %d;"
        " the log continues at offset %d",
        partition.topic,
        partition.key.partition,
        sent.offset,
        offset,
        state.offset,
    )
    await partition.following.begin_behind_remote(sent.leader_epoch, state)


async def truncate(
    ask: AskLeader,
    partition: ClassicPartition,
    sent: FetchPosition,
    diverging_epoch: int,
    end_offset: int,
) -> None:
    """Truncate the follower's log at the diverging epoch in the leader's response.

    If the log then ends in its remote part, its producers at this offset are not known here. If possible, the
    local log begins at an earlier offset at which they are known, and the records from there on are fetched
    again.
    """
    following = partition.following
    offset = following.remote_truncation(sent.leader_epoch, diverging_epoch, end_offset)
    state = None if offset is None else await _fetchable_state(ask, partition, sent, offset)
    if state is None:
        await following.truncate(sent.leader_epoch, diverging_epoch, end_offset)
        return
    logger.info(
        "the log of %s-%d is truncated at %d, before its local part; it continues at offset %d",
        partition.topic,
        partition.key.partition,
        offset,
        state.offset,
    )
    await following.begin_behind_remote(sent.leader_epoch, state)


async def _fetchable_state(
    ask: AskLeader, partition: ClassicPartition, sent: FetchPosition, offset: int
) -> AuxiliaryState | None:
    """The newest state in the remote tier at or before ``offset``, if the leader still has all later records
    on its disk. Otherwise the next fetch would only lead to another state in the tier.

    A follower must not wait for the tier before it truncates its log, so an error means that there is no
    state.
    """
    remote = partition.remote.part
    if remote is None:
        return None
    try:
        async with asyncio.timeout(_STATE_LIMIT_S):
            state = await remote.state_before(offset)
            local = await list_offset(ask, partition, sent, EARLIEST_LOCAL_TIMESTAMP)
    except (KafkaError, TimeoutError) as error:
        logger.warning(
            "%s-%d is truncated without the producers at offset %d: %s",
            partition.topic,
            partition.key.partition,
            offset,
            error,
        )
        return None
    return state if state is not None and state.offset >= local.offset else None


async def _epoch_before(
    ask: AskLeader, partition: ClassicPartition, sent: FetchPosition, offset: int, epoch: int
) -> int:
    """Return the epoch of the last record before ``offset``. ``epoch`` is the epoch of the record at this
    offset, or a later epoch."""
    while True:
        earlier, end_offset = await _end_of_epoch(ask, partition, sent, epoch - 1)
        if end_offset <= offset:
            return earlier if end_offset == offset else epoch
        epoch = earlier


async def list_offset(
    ask: AskLeader,
    partition: ClassicPartition,
    sent: FetchPosition,
    timestamp: int,
    replica_id: int = _CLIENT,
) -> FoundOffset:
    """Ask the leader for an offset of its log. ``replica_id`` is the id of a follower, which may read up to
    the end of the log, or the id of clients."""
    wanted = ListOffsetsPartition(
        partition_index=partition.key.partition,
        current_leader_epoch=sent.leader_epoch,
        timestamp=timestamp,
    )
    answer = await ask(
        ListOffsetsRequest(
            replica_id=replica_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])]
        )
    )
    row = answer.topics[0].partitions[0]
    if row.error_code is not ErrorCode.none:
        raise KafkaError(row.error_code)
    return FoundOffset(row.offset, row.timestamp, row.leader_epoch)


async def _end_of_epoch(
    ask: AskLeader, partition: ClassicPartition, sent: FetchPosition, epoch: int
) -> tuple[int, int]:
    """Ask the leader for ``epoch``, or for its next lower epoch. Returns that epoch and its end offset."""
    if epoch < 0:
        return UNDEFINED, UNDEFINED
    wanted = OffsetForLeaderPartition(
        partition=partition.key.partition, current_leader_epoch=sent.leader_epoch, leader_epoch=epoch
    )
    answer = await ask(
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=partition.topic, partitions=[wanted])])
    )
    row = answer.topics[0].partitions[0]
    if row.error_code is not ErrorCode.none:
        raise KafkaError(row.error_code)
    return row.leader_epoch, row.end_offset
