"""The rows of a Fetch response. Each row has the records of one partition, or an error."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from moldau.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from moldau.replication.partition_interface import ReadOutcome
from moldau.replication.throttling import ReplicationQuota
from moldau.runtime.errors import ErrorCode
from moldau.server.metadata.current_leaders import NAMING_ERRORS, CurrentLeaders
from moldau.server.requests.fetch_sessions import FetchScope, FetchTarget, SessionPosition
from moldau.storage.snapshots.replicated_log import LogPosition

READ_COMMITTED: Final = 1
"""The isolation level in requests."""
FetchedPosition: TypeAlias = tuple[FetchTarget, SessionPosition, ReadOutcome]


class FetchRows:
    """Collects the rows of one response."""

    __slots__ = ("_endpoints", "_leader_quota", "_leaders", "_listener_name", "_now_s", "_scope", "_topics")

    def __init__(
        self,
        scope: FetchScope,
        leader_quota: ReplicationQuota | None,
        now_s: Callable[[], float],
        leaders: CurrentLeaders | None = None,
        listener_name: str | None = None,
    ) -> None:
        """``leaders`` finds the leaders that the response names to clients of a listener (KIP-951).
        ``listener_name`` is ``None`` if the response has no field for these leaders."""
        self._scope = scope
        self._leader_quota = leader_quota
        self._now_s = now_s
        self._leaders = leaders
        self._listener_name = listener_name
        self._topics: dict[tuple[str, UUID], list[PartitionData]] = {}
        self._endpoints: dict[int, NodeEndpoint] = {}

    def add(self, outcomes: Iterable[FetchedPosition]) -> None:
        """Add the rows of some partitions. An incremental response gets only the rows of partitions that have
        changed (see :func:`has_news`)."""
        scope, quota = self._scope, self._leader_quota
        for target, position, outcome in outcomes:
            if scope.incremental and not has_news(position, outcome):
                continue
            row = _row(target, outcome)
            if outcome.error in NAMING_ERRORS:
                row = self._with_leader(target, row)
            self._topics.setdefault((target.topic, target.topic_id), []).append(row)
            position.told_high_watermark = outcome.high_watermark
            position.told_log_start_offset = outcome.log_start_offset
            position.told_error = outcome.error is not ErrorCode.none
            if outcome.is_throttled and quota is not None:
                quota.record(outcome.size_bytes, self._now_s())
            if scope.session is not None and outcome.size_bytes:
                scope.session.served(target)

    def response(self) -> FetchResponse:
        """Return the response with all rows that were added."""
        topics = [
            FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=rows)
            for (topic, topic_id), rows in self._topics.items()
        ]
        return FetchResponse(
            session_id=self._scope.session_id,
            responses=topics,
            node_endpoints=tuple(self._endpoints.values()),
        )

    def _with_leader(self, target: FetchTarget, row: PartitionData) -> PartitionData:
        if self._leaders is None or self._listener_name is None:
            return row
        leader = self._leaders.find(*target, self._listener_name)
        if leader is None:
            return row
        broker = leader.broker
        leader_id = broker.node_id
        self._endpoints[leader_id] = NodeEndpoint(
            node_id=leader_id, host=broker.host, port=broker.port, rack=broker.rack
        )
        return replace(row, current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader.epoch))


def _row(target: FetchTarget, outcome: ReadOutcome) -> PartitionData:
    is_plain = outcome.diverging_epoch is None and outcome.snapshot_id is None
    if outcome.error is ErrorCode.none and is_plain and outcome.aborted is None:
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
    snapshot = outcome.snapshot_id or LogPosition(-1, -1)
    return PartitionData(
        partition_index=target.partition,
        error_code=outcome.error,
        high_watermark=outcome.high_watermark,
        last_stable_offset=outcome.last_stable_offset,
        log_start_offset=outcome.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end),
        snapshot_id=SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        aborted_transactions=[
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in outcome.aborted
        ]
        if outcome.aborted is not None
        else None,
        preferred_read_replica=outcome.preferred_read_replica,
        records=outcome.views or b"",
    )


def has_news(position: SessionPosition, outcome: ReadOutcome) -> bool:
    """Whether an incremental response must contain the partition (KIP-227)."""
    return bool(
        outcome.size_bytes
        or outcome.error is not ErrorCode.none
        or position.told_error
        or outcome.diverging_epoch is not None
        or outcome.snapshot_id is not None
        or outcome.preferred_read_replica >= 0
        or outcome.high_watermark != position.told_high_watermark
        or outcome.log_start_offset != position.told_log_start_offset
    )


def ends_wait(outcome: ReadOutcome) -> bool:
    """Whether the request must be answered at once. This is the case after an error, a divergence or a
    redirection, and when the fetcher lags. A fetcher that lags does not wait for ``min_bytes``, as in Kafka.
    """
    return (
        outcome.error is not ErrorCode.none
        or outcome.diverging_epoch is not None
        or outcome.snapshot_id is not None
        or outcome.preferred_read_replica >= 0
        or outcome.is_cut
    )
