"""Fetches of a single partition by a consumer. The responses are made without message objects.

The responses are the same as those of the general handler. The module ``protocol.fast_paths.lone_fetch``
defines the exact form of these requests.
"""

from typing import Final

from moldau.network.authorization import AclOperation, AclResourceType
from moldau.network.context import Buffers, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import response_encoder
from moldau.protocol.fast_paths.lone_fetch import TOPIC_ID_VERSION, LoneFetchRequest, lone_packer
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import ZERO_UUID
from moldau.replication.partition_interface import (
    CONSUMER_REPLICA_ID,
    Partition,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.fetch_rows import READ_COMMITTED, FetchRows, ends_wait
from moldau.server.handlers.records.fetch_services import FailureOf, FetchServices
from moldau.server.metadata.current_leaders import FETCH_VERSION as NAMING_VERSION
from moldau.server.requests.fetch_sessions import (
    FINAL_EPOCH,
    INVALID_SESSION_ID,
    FetchScope,
    FetchTarget,
    SessionPosition,
)

NO_SESSION: Final = FetchScope(None, {}, incremental=False)


class LoneFetches:
    """The fast path of one version of Fetch."""

    def __init__(self, version: int, services: FetchServices, failure: FailureOf) -> None:
        self._by_id = version >= TOPIC_ID_VERSION
        self._names_leaders = version >= NAMING_VERSION
        self.pack = lone_packer(version)
        self.encode = response_encoder(ApiKey.FETCH, version)
        self.find = services.partitions.raw(by_id=self._by_id)
        self.services = services
        self.failure = failure

    def question(self, context: RequestContext, request: LoneFetchRequest) -> "LoneQuestion | None":
        """Make the question of a request, and continue its session. The result is None if the general handler
        must process the request, for example to refuse it."""
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch = request[:6]
        topic, index, leader_epoch, offset, last_epoch, partition_max_bytes = request[6:]
        place = topic, index
        partition = self.find(place)
        if partition is None:
            return None
        services, target = self.services, None
        if session_id != INVALID_SESSION_ID or epoch != FINAL_EPOCH:
            target = self.target(partition)
            if services.sessions.only_target(session_id, epoch) != target:
                return None
        if not services.authorizer.allows(context, AclOperation.READ, AclResourceType.TOPIC, partition.topic):
            return None
        scope = NO_SESSION
        if target is not None:
            position = SessionPosition(offset, partition_max_bytes, leader_epoch, last_epoch)
            scope = services.sessions.open(session_id, epoch, {target: position}, (), context.received_at)
        # The arguments are positional, because named arguments take twice as long. A consumer without a rack
        # has the rack "", which shows that it can fetch from followers.
        read = ReadRequest(
            offset,
            min(partition_max_bytes, max_bytes, services.fetch_max_bytes),
            True,
            isolation == READ_COMMITTED,
            leader_epoch,
            last_epoch,
            CONSUMER_REPLICA_ID,
            "",
            -1,
            -1,
            -1,
            context.connection.rack,
        )
        return LoneQuestion(self, context, scope, partition, place, read, (min_bytes, max_wait_ms))

    def target(self, partition: Partition) -> FetchTarget:
        """The partition as requests of this version name it."""
        key = partition.key
        if self._by_id:
            return FetchTarget("", key.topic_id, key.partition)
        return FetchTarget(partition.topic, ZERO_UUID, key.partition)

    def rows(self, context: RequestContext, scope: FetchScope) -> FetchRows:
        """Begin a response as the general handler does."""
        return self.services.rows(scope, context.listener_name if self._names_leaders else None)


class LoneQuestion:
    """One request: a :class:`moldau.server.handlers.records.waiting_fetches.FetchQuestion`."""

    __slots__ = (
        *("_context", "_epoch", "_fetches", "_min_bytes", "_partition", "_place", "_read", "_scope"),
        "max_wait_ms",
    )

    def __init__(
        self,
        fetches: LoneFetches,
        context: RequestContext,
        scope: FetchScope,
        partition: Partition,
        place: tuple[bytes, int],
        read: ReadRequest,
        wait: tuple[int, int],
    ) -> None:
        """``place`` is the partition as the request names it. ``wait`` has the minimum of bytes and the
        maximum wait in ms."""
        self._fetches = fetches
        self._context = context
        self._scope = scope
        self._epoch = -1 if scope.session is None else scope.session.epoch
        self._partition = partition
        self._place = place
        self._read = read
        self._min_bytes, self.max_wait_ms = wait

    @property
    def keys(self) -> tuple[PartitionKey]:
        return (self._partition.key,)

    @property
    def topics(self) -> tuple[str]:
        return (self._partition.topic,)

    def read(self) -> ReadAnswer:
        fetches = self._fetches
        partition = fetches.find(self._place)
        if partition is None:
            try:
                partition = fetches.services.partitions.find(*fetches.target(self._partition))
            except KafkaError as error:
                return ReadOutcome(error=error.code)
        self._partition = partition
        return partition.read(self._read)

    def is_enough(self, outcome: ReadOutcome) -> bool:
        return outcome.size_bytes >= self._min_bytes or self.max_wait_ms <= 0 or ends_wait(outcome)

    def size_bytes(self, outcome: ReadOutcome) -> int:
        return outcome.size_bytes

    def body(self, outcome: ReadOutcome) -> Buffers:
        fetches, scope = self._fetches, self._scope
        if self._is_overtaken:
            return fetches.encode(fetches.rows(self._context, scope).response())
        # An incremental response without news has no row.
        if _is_plain(outcome) and (outcome.size_bytes or scope is NO_SESSION):
            if scope is not NO_SESSION:
                _note_told(scope.positions[fetches.target(self._partition)], outcome)
            topic, index = self._place
            return fetches.pack(
                scope.session_id,
                topic,
                index,
                outcome.high_watermark,
                outcome.last_stable_offset,
                outcome.log_start_offset,
                outcome.aborted is not None,
                outcome.views,
                outcome.size_bytes,
            )
        target = fetches.target(self._partition)
        position = SessionPosition(0, 0) if scope is NO_SESSION else scope.positions[target]
        rows = fetches.rows(self._context, scope)
        rows.add([(target, position, outcome)])
        return fetches.encode(rows.response())

    def count_again(self, outcome: ReadOutcome, times: int) -> None:
        self._partition.count_shared_reads(outcome.size_bytes, self._read.reader_rack, times)

    def failure(self, error: BaseException) -> Buffers:
        return self._fetches.failure(self._context, error)

    @property
    def _is_overtaken(self) -> bool:
        """Whether the session has got a later request, although the client did not have this response yet.
        The response then has no rows, because the later request may have changed the position."""
        session = self._scope.session
        return session is not None and session.epoch != self._epoch


def _is_plain(outcome: ReadOutcome) -> bool:
    return (
        outcome.error is ErrorCode.none
        and not outcome.aborted
        and outcome.diverging_epoch is None
        and outcome.preferred_read_replica < 0
        and outcome.snapshot_id is None
    )


def _note_told(position: SessionPosition, outcome: ReadOutcome) -> None:
    position.told_high_watermark = outcome.high_watermark
    position.told_log_start_offset = outcome.log_start_offset
    position.told_error = False
