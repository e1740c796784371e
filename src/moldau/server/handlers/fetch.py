"""Fetch: read partitions in request order within the byte budget, or wait until there is enough.

A request that finds less than ``min_bytes`` waits in the one waiting room, by partition, until an
append there or its ``max_wait_ms``. Bytes are views of segments and are never joined.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.replication.partition import PartitionKey, ReadOutcome, ReadRequest
from moldau.replication.waiters import Waiter, WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.dispatch import Handler, Outcome
from moldau.server.fetch_sessions import FetchPosition, FetchScope, FetchSessions, FetchTarget
from moldau.server.registry import PartitionRegistry

READ_COMMITTED: Final = 1


@dataclass(slots=True)
class Gathering:
    """What one pass over the partitions of a request found."""

    outcomes: list[tuple[FetchTarget, FetchPosition, ReadOutcome]] = field(default_factory=list)
    size_bytes: int = 0
    must_answer: bool = False
    """An error, a divergence or a redirection: the fetcher should hear of it at once."""
    keys: list[PartitionKey] = field(default_factory=list)
    """Partitions whose growth would give the request more."""


class FetchHandlers:
    """The Fetch API."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        arrivals: WaitingRoom[PartitionKey],
        sessions: FetchSessions,
        fetch_max_bytes: int,
    ) -> None:
        self._partitions = partitions
        self._arrivals = arrivals
        self._sessions = sessions
        self._fetch_max_bytes = fetch_max_bytes

    def table(self) -> dict[int, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, context: RequestContext, request: FetchRequest) -> Outcome:
        replica_id = request.replica_state.replica_id if context.api_version >= 15 else request.replica_id
        try:
            scope = self._open_session(request)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        pending = self._gather(scope, request, replica_id)
        if isinstance(pending, Gathering) and self._is_enough(pending, request):
            return self._answer(scope, pending, request)
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        # The waiter is made here and not in the coroutine, which begins later: what is appended until
        # then must wake it.
        waiter = self._waiter(pending, deadline)
        return self._fetch_later(scope, request, replica_id, pending, waiter, deadline)

    def _open_session(self, request: FetchRequest) -> FetchScope:
        requested = [
            (
                FetchTarget(topic.topic, topic.topic_id, part.partition),
                FetchPosition(
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                ),
            )
            for topic in request.topics
            for part in topic.partitions
        ]
        forgotten = [
            FetchTarget(topic.topic, topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        now_s = asyncio.get_running_loop().time()
        return self._sessions.open(request.session_id, request.session_epoch, requested, forgotten, now_s)

    @staticmethod
    def _is_enough(gathering: Gathering, request: FetchRequest) -> bool:
        return (
            gathering.must_answer
            or gathering.size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or not gathering.outcomes
        )

    async def _fetch_later(
        self,
        scope: FetchScope,
        request: FetchRequest,
        replica_id: int,
        pending: "Gathering | Remote",
        waiter: Waiter[PartitionKey],
        deadline: float,
    ) -> FetchResponse:
        """``waiter`` has been in the room since before ``pending`` could miss anything."""
        while True:
            try:
                gathering = pending if isinstance(pending, Gathering) else await pending.finish()
                if self._is_enough(gathering, request) or not await waiter.future:
                    return self._answer(scope, gathering, request)
            finally:
                waiter.finish(False)
            pending = self._gather(scope, request, replica_id)
            waiter = self._waiter(pending, deadline)

    def _waiter(self, pending: "Gathering | Remote", deadline: float) -> Waiter[PartitionKey]:
        timeout_s = max(0.0, deadline - asyncio.get_running_loop().time())
        return self._arrivals.wait(pending.keys, timeout_s)

    def _gather(self, scope: FetchScope, request: FetchRequest, replica_id: int) -> "Gathering | Remote":
        """Spend the byte budget in order; the first partition with data gets a batch whatever its size."""
        gathering = Gathering()
        remote: Remote | None = None
        budget = min(request.max_bytes, self._fetch_max_bytes)
        read_committed = request.isolation_level == READ_COMMITTED
        for target, position in scope.items():
            read = ReadRequest(
                offset=position.fetch_offset,
                max_bytes=min(position.max_bytes, budget),
                min_one_batch=gathering.size_bytes == 0 and remote is None,
                read_committed=read_committed,
                current_leader_epoch=position.current_leader_epoch,
                last_fetched_epoch=position.last_fetched_epoch,
                replica_id=replica_id,
                client_rack=request.rack_id,
            )
            try:
                partition = self._partitions.find(*target)
            except KafkaError as error:
                note(gathering, target, position, ReadOutcome(error=error.code))
                continue
            gathering.keys.append(partition.key)
            outcome = partition.read(read)
            if isinstance(outcome, ReadOutcome):
                note(gathering, target, position, outcome)
                budget = max(0, budget - outcome.size_bytes)
            else:
                remote = remote or Remote(gathering)
                remote.reads.append((target, position, outcome))
                budget = max(0, budget - read.max_bytes)
        return remote or gathering

    def _answer(self, scope: FetchScope, gathering: Gathering, request: FetchRequest) -> FetchResponse:
        topics: dict[tuple[str, UUID], list[PartitionData]] = {}
        for target, position, outcome in gathering.outcomes:
            if scope.incremental and not has_news(position, outcome):
                continue
            row = self._row(target, outcome)
            topics.setdefault((target.topic, target.topic_id), []).append(row)
            position.told_high_watermark = outcome.high_watermark
            position.told_log_start_offset = outcome.log_start_offset
            position.told_error = outcome.error is not ErrorCode.none
            if scope.session is not None and outcome.size_bytes:
                scope.session.served(target)
        return FetchResponse(
            session_id=scope.session_id,
            responses=[
                FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=rows)
                for (topic, topic_id), rows in topics.items()
            ],
        )

    def _row(self, target: FetchTarget, outcome: ReadOutcome) -> PartitionData:
        if outcome.error is ErrorCode.none and outcome.diverging_epoch is None and outcome.aborted is None:
            return PartitionData(
                partition_index=target.partition,
                high_watermark=outcome.high_watermark,
                last_stable_offset=outcome.last_stable_offset,
                log_start_offset=outcome.log_start_offset,
                aborted_transactions=None,
                preferred_read_replica=outcome.preferred_read_replica,
                records=outcome.views or b"",
            )
        epoch, end = outcome.diverging_epoch or (-1, -1)
        return PartitionData(
            partition_index=target.partition,
            error_code=outcome.error,
            high_watermark=outcome.high_watermark,
            last_stable_offset=outcome.last_stable_offset,
            log_start_offset=outcome.log_start_offset,
            diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end),
            aborted_transactions=[
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in outcome.aborted
            ]
            if outcome.aborted is not None
            else None,
            preferred_read_replica=outcome.preferred_read_replica,
            records=outcome.views or b"",
        )


class Remote:
    """A pass of which some reads are under way at a slower store."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self.reads: list[tuple[FetchTarget, FetchPosition, asyncio.Future[ReadOutcome]]] = []

    @property
    def keys(self) -> list[PartitionKey]:
        """As a gathering's."""
        return self._gathering.keys

    async def finish(self) -> Gathering:
        """Wait for all of them."""
        for target, position, future in self.reads:
            note(self._gathering, target, position, await future)
        return self._gathering


def note(gathering: Gathering, target: FetchTarget, position: FetchPosition, outcome: ReadOutcome) -> None:
    """Add one partition's outcome to a pass."""
    gathering.outcomes.append((target, position, outcome))
    gathering.size_bytes += outcome.size_bytes
    if (
        outcome.error is not ErrorCode.none
        or outcome.diverging_epoch is not None
        or outcome.preferred_read_replica >= 0
    ):
        gathering.must_answer = True


def has_news(position: FetchPosition, outcome: ReadOutcome) -> bool:
    """Whether an incremental response must mention the partition (KIP-227)."""
    return bool(
        outcome.size_bytes
        or outcome.error is not ErrorCode.none
        or position.told_error
        or outcome.diverging_epoch is not None
        or outcome.preferred_read_replica >= 0
        or outcome.high_watermark != position.told_high_watermark
        or outcome.log_start_offset != position.told_log_start_offset
    )
