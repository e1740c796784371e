"""Fetch of a single partition by a consumer. This handler makes the response's bytes directly from the
request's bytes.

It does the same as the general handler, but makes no message objects. The module
``protocol.fast_paths.lone_fetch`` defines the exact form of these requests. If a request has another form, or
would be refused before the read, this handler does nothing. The general handler then processes the request.

Very many consumers may wait for the same partition. An append wakes all of them, and they are answered
together in the next iteration of the event loop. Consumers with equal requests then share one read, and also
the bytes of the response if they have no sessions.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from moldau.network.authorization import AclOperation, AclResourceType
from moldau.network.context import Answer, Buffers, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import response_encoder
from moldau.protocol.fast_paths.lone_fetch import (
    FIRST_LONE_VERSION,
    TOPIC_ID_VERSION,
    lone_packer,
    lone_reader,
)
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import ZERO_UUID
from moldau.replication.partition_interface import (
    CONSUMER_REPLICA_ID,
    Partition,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.replication.waiters import Waiter
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.fetch_rows import READ_COMMITTED, ends_wait
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.metadata.current_leaders import FETCH_VERSION as NAMING_VERSION
from moldau.server.requests.dispatch import DirectHandler, failure
from moldau.server.requests.fetch_sessions import (
    FINAL_EPOCH,
    INVALID_SESSION_ID,
    FetchScope,
    FetchTarget,
    SessionPosition,
)
from moldau.server.requests.throttles import Hold

SharedReads: TypeAlias = "dict[tuple[Partition, ReadRequest], tuple[ReadOutcome, Buffers | None]]"
"""The reads of requests that are answered together. Each has the bytes of its response, if consumers without
sessions can share them."""

FETCHES_A_TURN: Final = 128
"""Number of woken requests that are answered in one iteration of the event loop."""
_NO_SESSION: Final = FetchScope(None, {}, incremental=False)


def lone_fetch(
    version: int,
    services: FetchServices,
    hold: Hold | None,
    settle: Callable[[], None],
    unexpected: UnexpectedErrors,
) -> DirectHandler | None:
    """The direct handler of a version of Fetch. It is None if the version has no direct handler, and if
    ``hold`` throttles consumers. ``settle`` writes the records that were staged before a request."""
    if version < FIRST_LONE_VERSION or hold is not None:
        return None
    return LoneFetches(version, services, settle, unexpected).fetch


class LoneFetch(Waiter[PartitionKey]):
    """One request. It may wait for more bytes."""

    __slots__ = (
        *("answer", "before", "context", "due", "is_reading", "is_woken", "min_bytes"),
        *("owner", "partition", "place", "request", "scope"),
    )

    def __init__(
        self,
        owner: "LoneFetches",
        context: RequestContext,
        scope: FetchScope,
        partition: Partition,
        place: tuple[bytes, int],
        request: ReadRequest,
        min_bytes: int,
    ) -> None:
        """``place`` is the partition as the request names it. ``min_bytes`` is 0 if the request does not
        wait."""
        super().__init__()
        self.owner = owner
        self.context = context
        self.scope = scope
        self.partition = partition
        self.place = place
        self.request = request
        self.min_bytes = min_bytes
        # The following attributes are set when the request begins to wait.
        self.answer: asyncio.Future[Buffers]
        self.due: float
        self.before: ReadOutcome
        """The outcome of the last read."""
        self.is_reading: bool
        """Whether a read from a slower store is in progress."""
        self.is_woken: bool
        """Whether the wait has ended during that read, because the partition has changed."""

    def ended(self, woken: bool) -> None:
        if self.is_reading:
            self.is_woken = woken
        elif woken:
            self.owner.read_again_soon(self)
        else:
            self.owner.finish(self, self.before)

    def is_enough(self, outcome: ReadOutcome) -> bool:
        """Whether the request is answered with this outcome, and does not wait."""
        return outcome.size_bytes >= self.min_bytes or ends_wait(outcome)


class LoneFetches:
    """The fast path of one version of Fetch."""

    def __init__(
        self,
        version: int,
        services: FetchServices,
        settle: Callable[[], None],
        unexpected: UnexpectedErrors,
    ) -> None:
        self._version = version
        self._by_id = version >= TOPIC_ID_VERSION
        self._decode, self._pack = lone_reader(version), lone_packer(version)
        self._encode = response_encoder(ApiKey.FETCH, version)
        self._services = services
        self._find = services.partitions.raw(by_id=self._by_id)
        self._arrivals = services.arrivals
        self._sessions = services.sessions
        self._allows = services.authorizer.allows
        self._fetch_max_bytes = services.fetch_max_bytes
        self._settle = settle
        self._unexpected = unexpected
        self._woken: list[LoneFetch] = []

    def fetch(self, context: RequestContext, body: memoryview) -> Answer:
        """Answer a request. Returns None if the general handler must process it."""
        decoded = self._decode(body)
        if decoded is None:
            return None
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch = decoded[:6]
        topic, index, leader_epoch, offset, last_epoch, partition_max_bytes = decoded[6:]
        partition = self._find((topic, index))
        if partition is None or not self._allows(
            context, AclOperation.READ, AclResourceType.TOPIC, partition.topic
        ):
            return None
        scope = _NO_SESSION
        if session_id != INVALID_SESSION_ID or epoch != FINAL_EPOCH:
            target = self._target(partition)
            if self._sessions.only_target(session_id, epoch) != target:
                return None
            position = SessionPosition(offset, partition_max_bytes, leader_epoch, last_epoch)
            scope = self._sessions.open(session_id, epoch, {target: position}, (), context.received_at)
        self._settle()
        # The arguments are positional, because named arguments take twice as long. A consumer without a rack
        # has the rack "", which shows that it can fetch from followers.
        request = ReadRequest(
            offset,
            min(partition_max_bytes, max_bytes, self._fetch_max_bytes),
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
        wanted_bytes = min_bytes if max_wait_ms > 0 else 0
        fetch = LoneFetch(self, context, scope, partition, (topic, index), request, wanted_bytes)
        try:
            outcome = partition.read(request)
            if isinstance(outcome, ReadOutcome) and fetch.is_enough(outcome):
                return self._body(fetch, outcome)
        except Exception as error:
            return self._failure(fetch, error)
        fetch.answer = self._arrivals.loop.create_future()
        fetch.due = self._arrivals.due(max_wait_ms / 1000)
        self._wait(fetch, outcome)
        return fetch.answer

    def _target(self, partition: Partition) -> FetchTarget:
        """The partition as requests of this version name it."""
        key = partition.key
        if self._by_id:
            return FetchTarget("", key.topic_id, key.partition)
        return FetchTarget(partition.topic, ZERO_UUID, key.partition)

    # -- waiting --------------------------------------------------------------------------------

    def _wait(self, fetch: LoneFetch, outcome: ReadAnswer) -> None:
        """Let a request wait for more bytes. It becomes a waiter before a slower read ends, so that it misses
        no append."""
        fetch.is_woken = False
        if isinstance(outcome, ReadOutcome):
            fetch.before, fetch.is_reading = outcome, False
        else:
            fetch.is_reading = True
            outcome.add_done_callback(partial(self._read_is_done, fetch))
        self._arrivals.admit(fetch, (fetch.partition.key,), fetch.due)

    def _read_is_done(self, fetch: LoneFetch, read: "asyncio.Future[ReadOutcome]") -> None:
        fetch.is_reading = False
        if read.cancelled():
            fetch.answer.cancel()
            fetch.finish(False)
            return
        error = read.exception()
        if error is not None:
            fetch.answer.set_result(self._failure(fetch, error))
            fetch.finish(False)
            return
        outcome = fetch.before = read.result()
        if fetch.is_enough(outcome):
            fetch.finish(False)
            self.finish(fetch, outcome)
        elif not fetch.is_waiting:
            fetch.ended(fetch.is_woken)

    def read_again_soon(self, fetch: LoneFetch) -> None:
        """Read again for a woken request, in the next iteration of the event loop."""
        self._woken.append(fetch)
        if len(self._woken) == 1:
            self._arrivals.loop.call_soon(self._serve_woken)

    def _serve_woken(self) -> None:
        now, self._woken = self._woken[:FETCHES_A_TURN], self._woken[FETCHES_A_TURN:]
        if self._woken:
            self._arrivals.loop.call_soon(self._serve_woken)
        shared: SharedReads = {}
        for fetch in now:
            try:
                self._serve(fetch, shared)
            except Exception as error:
                fetch.answer.set_result(self._failure(fetch, error))

    def _serve(self, fetch: LoneFetch, shared: SharedReads) -> None:
        outcome = self._read_again(fetch, shared)
        if isinstance(outcome, ReadOutcome) and fetch.is_enough(outcome):
            fetch.answer.set_result(self._shared_body(fetch, outcome, shared))
        else:
            self._wait(fetch, outcome)

    def _read_again(self, fetch: LoneFetch, shared: SharedReads) -> ReadAnswer:
        """Read for a woken request, or use the read of an earlier request with the same values."""
        partition = self._find(fetch.place)
        if partition is None:
            try:
                partition = self._services.partitions.find(*self._target(fetch.partition))
            except KafkaError as error:
                return ReadOutcome(error=error.code)
        fetch.partition = partition
        known = shared.get((partition, fetch.request))
        if known is not None:
            partition.count_shared_read(fetch.request, known[0])
            return known[0]
        outcome = partition.read(fetch.request)
        # The response to an error may name the leader's address for the listener of one connection.
        if isinstance(outcome, ReadOutcome) and outcome.error is ErrorCode.none:
            shared[partition, fetch.request] = outcome, None
        return outcome

    # -- answers --------------------------------------------------------------------------------

    def finish(self, fetch: LoneFetch, outcome: ReadOutcome) -> None:
        """Answer a request after its wait."""
        if fetch.answer.done():
            return
        try:
            fetch.answer.set_result(self._body(fetch, outcome))
        except Exception as error:
            fetch.answer.set_result(self._failure(fetch, error))

    def _shared_body(self, fetch: LoneFetch, outcome: ReadOutcome, shared: SharedReads) -> Buffers:
        if fetch.scope is not _NO_SESSION:
            return self._body(fetch, outcome)
        question = fetch.partition, fetch.request
        known = shared.get(question)
        if known is not None and known[1] is not None:
            return known[1]
        body = self._body(fetch, outcome)
        if known is not None:
            shared[question] = outcome, body
        return body

    def _body(self, fetch: LoneFetch, outcome: ReadOutcome) -> Buffers:
        """The response to a request. An incremental response without news has no partition, therefore the
        general handler's rows are used for it, as for errors and aborted transactions."""
        scope = fetch.scope
        if _is_plain(outcome) and (outcome.size_bytes or scope is _NO_SESSION):
            if scope is not _NO_SESSION:
                _note_told(scope, self._target(fetch.partition), outcome)
            topic, index = fetch.place
            return self._pack(
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
        target = self._target(fetch.partition)
        position = scope.positions.get(target) or SessionPosition(
            fetch.request.offset, fetch.request.max_bytes
        )
        listener_name = fetch.context.listener_name if self._version >= NAMING_VERSION else None
        rows = self._services.rows(scope, listener_name)
        rows.add([(target, position, outcome)])
        return self._encode(rows.response())

    def _failure(self, fetch: LoneFetch, error: BaseException) -> Buffers:
        """The response to a request whose read has raised an unexpected error."""
        if not isinstance(error, KafkaError):
            self._unexpected.report("a fetch of one partition", error)
        return self._encode(failure(fetch.context, error))


def _is_plain(outcome: ReadOutcome) -> bool:
    return (
        outcome.error is ErrorCode.none
        and not outcome.aborted
        and outcome.diverging_epoch is None
        and outcome.preferred_read_replica < 0
        and outcome.snapshot_id is None
    )


def _note_told(scope: FetchScope, target: FetchTarget, outcome: ReadOutcome) -> None:
    # A later request of the session may have forgotten the partition.
    position = scope.positions.get(target)
    if position is not None:
        position.told_high_watermark = outcome.high_watermark
        position.told_log_start_offset = outcome.log_start_offset
        position.told_error = False
