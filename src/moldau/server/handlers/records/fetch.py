"""Fetch: read partitions in request order within the byte budget, or wait for more data.

If a request finds fewer bytes than ``min_bytes``, it waits in the broker's ``WaitingRoom``. It continues
after an append to one of its partitions, or when its ``max_wait_ms`` have passed. The record bytes of a
response are views of segments. They are never copied into one buffer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType
from moldau.network.context import RequestContext
from moldau.network.served import Handler, HandlerResult, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.costs import PARSED_BYTES_MAX
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.partitions import PartitionKey
from moldau.replication.idle_followers import IdleFollower
from moldau.replication.partition_interface import ReadOutcome, ReadRequest
from moldau.replication.waiters import FutureWaiter, Waiter
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.fetch_rows import READ_COMMITTED, FetchedPosition, ends_wait
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.handlers.records.lone_fetch import lone_fetch
from moldau.server.metadata.current_leaders import FETCH_VERSION
from moldau.server.requests.dispatch import DirectHandler
from moldau.server.requests.fetch_sessions import FetchScope, FetchTarget, SessionPosition
from moldau.server.requests.throttles import Throttles

NOTHING: Final[frozenset[FetchTarget]] = frozenset()

POSITIONS_A_TURN: Final = 1_000
"""Number of partitions of a request that are read without a break. This takes about 10 ms."""

POSITIONS_AT_ONCE: Final = 4 * POSITIONS_A_TURN
"""If a request has more partitions than this number, it is processed in several iterations of the event
loop."""


class Fetcher(NamedTuple):
    """The sender of a request: a consumer, or one incarnation of a follower."""

    replica_id: int
    """The broker id of a follower. For a consumer it is -1."""
    broker_epoch: int
    """The broker epoch of a follower; -1 means that the epoch is unknown."""
    rack: str | None
    """The rack in the request. None means that the sender does not support fetching from followers."""
    near: str | None
    """The rack of the sender, if it is known."""
    memory: dict[str, Any] | None
    """A dictionary of the request's connection; None if the sender is not a consumer that names its rack."""
    listener_name: str | None
    """The listener of the connection. None means that responses of this version name no leaders (KIP-951)."""


def _requested(request: FetchRequest) -> Iterator[tuple[FetchTarget, SessionPosition]]:
    for topic in request.topics:
        for part in topic.partitions:
            yield (
                FetchTarget(topic.topic, topic.topic_id, part.partition),
                SessionPosition(
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    part.log_start_offset,
                ),
            )


def _fetcher(context: RequestContext, request: FetchRequest) -> Fetcher:
    rack = request.rack_id if context.api_version >= 11 else None
    near = rack or context.connection.rack
    memory = context.connection.attributes if rack else None
    if context.api_version >= 15:
        state = request.replica_state
        listener = context.listener_name if context.api_version >= FETCH_VERSION else None
        return Fetcher(state.replica_id, state.replica_epoch, rack, near, memory, listener)
    return Fetcher(request.replica_id, -1, rack, near, memory, None)


def _begin(scope: FetchScope, fetcher: Fetcher, forbidden: frozenset[FetchTarget]) -> None:
    """Begin a pass over the partitions of a request."""
    session = scope.follower_session(fetcher.replica_id)
    if session is not None:
        session.begin((fetcher.replica_id, fetcher.broker_epoch), is_forbidden=bool(forbidden))


def _note_waiter(scope: FetchScope, fetcher: Fetcher, waiter: Waiter[PartitionKey]) -> None:
    """Let a waiting request also wait for the idle partitions of its session."""
    session = scope.follower_session(fetcher.replica_id)
    if session is not None:
        session.fetches.wait(waiter)


def _due(scope: FetchScope, fetcher: Fetcher) -> list[tuple[FetchTarget, SessionPosition]]:
    """The partitions that must be visited. The positions of a session may change while other work runs,
    therefore the list is a copy."""
    session = scope.follower_session(fetcher.replica_id)
    return list(scope.positions.items()) if session is None else session.due()


@dataclass(slots=True)
class Gathering:
    """The result of one pass over all partitions of a request."""

    outcomes: list[FetchedPosition] = field(default_factory=list)
    size_bytes: int = 0
    must_answer: bool = False
    """Whether the request must be answered at once (see :func:`ends_wait`)."""
    keys: list[PartitionKey] = field(default_factory=list)
    """Partitions that could add bytes to the response when they grow, except idle partitions."""
    has_idle: bool = False
    """Whether some partitions are idle (:mod:`moldau.replication.idle_followers`)."""


@dataclass(slots=True)
class WaitingFetch:
    """A request that needs more bytes than it has found so far."""

    scope: FetchScope
    request: FetchRequest
    fetcher: Fetcher
    forbidden: frozenset[FetchTarget]
    due: float
    """The latest time at which the request is answered, by the event loop's clock."""
    answer: "asyncio.Future[FetchResponse]"


class FetchHandlers:
    """The Fetch API."""

    def __init__(self, services: FetchServices) -> None:
        self._services = services
        self._partitions = services.partitions
        self._authorizer = services.authorizer
        self._arrivals = services.arrivals
        self._sessions = services.sessions
        self._fetch_max_bytes = services.fetch_max_bytes

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.FETCH: Served(
                self.fetch,
                # A session may contain every partition of a node.
                parsed_bytes_max=PARSED_BYTES_MAX,
                long_answers=(("responses", "partitions"),),
                is_usually_large=True,
            )
        }

    def direct(
        self, throttles: Throttles, settle: Callable[[], None], unexpected: UnexpectedErrors
    ) -> Callable[[int], DirectHandler | None]:
        """The fast paths for requests of consumers for one partition, by version. ``settle`` writes the
        records that were staged before a request."""

        def of(version: int) -> DirectHandler | None:
            return lone_fetch(version, self._services, throttles.of(ApiKey.FETCH), settle, unexpected)

        return of

    def fetch(self, context: RequestContext, request: FetchRequest) -> HandlerResult:
        if sum(len(topic.partitions) for topic in request.topics) > POSITIONS_AT_ONCE:
            return self._fetch_many(context, request)
        fetcher = _fetcher(context, request)
        try:
            scope = self._open_session(request, dict(_requested(request)), context.received_at)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        forbidden = self._forbidden(context, scope, fetcher)
        if len(scope.positions) > POSITIONS_AT_ONCE:
            return self._fetch_in_turns(scope, request, fetcher, forbidden)
        _begin(scope, fetcher, forbidden)
        pending = self._gather(scope, request, fetcher, forbidden)
        if isinstance(pending, Gathering) and self._is_enough(pending, request):
            return self._answer(scope, fetcher, pending)
        room = self._arrivals
        due = room.due(request.max_wait_ms / 1000)
        waiting = WaitingFetch(scope, request, fetcher, forbidden, due, room.loop.create_future())
        self._wait(waiting, pending)
        return waiting.answer

    async def _fetch_many(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Handle a request like :meth:`fetch`, if it has very many partitions. No other request of the
        connection is read until the response is ready."""
        requested: dict[FetchTarget, SessionPosition] = {}
        for count, (target, position) in enumerate(_requested(request), 1):
            requested[target] = position
            if not count % POSITIONS_A_TURN:
                await asyncio.sleep(0)
        fetcher = _fetcher(context, request)
        try:
            scope = self._open_session(request, requested, context.received_at)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        forbidden = self._forbidden(context, scope, fetcher)
        return await self._fetch_in_turns(scope, request, fetcher, forbidden)

    async def _fetch_in_turns(
        self, scope: FetchScope, request: FetchRequest, fetcher: Fetcher, forbidden: frozenset[FetchTarget]
    ) -> FetchResponse:
        """Read the partitions and wait, like :meth:`fetch`. Other work can run between two partitions."""
        room = self._arrivals
        due = room.due(request.max_wait_ms / 1000)
        while True:
            _begin(scope, fetcher, forbidden)
            keys = await self._keys_in_turns(scope, fetcher)
            # The request becomes a waiter before the first read, so that it misses no append.
            waiter = room.wait_until(keys, due)
            _note_waiter(scope, fetcher, waiter)
            try:
                gathering = await self._gather_in_turns(scope, request, fetcher, forbidden)
                if not self._is_enough(gathering, request) and await waiter.future:
                    continue
            finally:
                waiter.finish(False)
            rows = self._services.rows(scope, fetcher.listener_name)
            for start in range(0, len(gathering.outcomes), POSITIONS_A_TURN):
                rows.add(gathering.outcomes[start : start + POSITIONS_A_TURN])
                await asyncio.sleep(0)
            return rows.response()

    async def _keys_in_turns(self, scope: FetchScope, fetcher: Fetcher) -> list[PartitionKey]:
        keys: list[PartitionKey] = []
        for count, (target, _) in enumerate(_due(scope, fetcher), 1):
            with contextlib.suppress(KafkaError):
                keys.append(self._partitions.find(*target).key)
            if not count % POSITIONS_A_TURN:
                await asyncio.sleep(0)
        return keys

    async def _gather_in_turns(
        self, scope: FetchScope, request: FetchRequest, fetcher: Fetcher, forbidden: frozenset[FetchTarget]
    ) -> Gathering:
        steps = self._gathering(scope, request, fetcher, forbidden)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                pending: Gathering | PendingReads = end.value
                break
            await asyncio.sleep(0)
        if isinstance(pending, Gathering):
            return pending
        gathered: asyncio.Future[Gathering] = asyncio.get_running_loop().create_future()
        pending.then(gathered.set_result, gathered)
        return await gathered

    def _open_session(
        self, request: FetchRequest, requested: Mapping[FetchTarget, SessionPosition], now_s: float
    ) -> FetchScope:
        forgotten = (
            FetchTarget(topic.topic, topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        )
        return self._sessions.open(request.session_id, request.session_epoch, requested, forgotten, now_s)

    @staticmethod
    def _is_enough(gathering: Gathering, request: FetchRequest) -> bool:
        return (
            gathering.must_answer
            or gathering.size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or not (gathering.outcomes or gathering.keys or gathering.has_idle)
        )

    def _wait(self, waiting: "WaitingFetch", pending: "Gathering | PendingReads") -> None:
        """Let the request wait for more bytes. Callbacks continue it, and it has no task of its own, because
        very many idle consumers may wait at the same time."""
        # The request becomes a waiter before the remote reads end. These reads take a long time, and the
        # request must not miss an append during this time.
        waiter = self._arrivals.wait_until(pending.keys, waiting.due)
        _note_waiter(waiting.scope, waiting.fetcher, waiter)
        if isinstance(pending, PendingReads):
            pending.then(partial(self._consider, waiting, waiter), waiting.answer)
        else:
            self._consider(waiting, waiter, pending)

    def _consider(
        self, waiting: "WaitingFetch", waiter: FutureWaiter[PartitionKey], gathering: Gathering
    ) -> None:
        if self._is_enough(gathering, waiting.request):
            waiter.finish(False)
            self._finish(waiting, gathering)
        else:
            waiter.future.add_done_callback(partial(self._look_again, waiting, gathering))

    def _look_again(self, waiting: "WaitingFetch", before: Gathering, woken: "asyncio.Future[bool]") -> None:
        if not woken.result():
            self._finish(waiting, before)
            return
        scope, fetcher, forbidden = waiting.scope, waiting.fetcher, waiting.forbidden
        try:
            _begin(scope, fetcher, forbidden)
            pending = self._gather(scope, waiting.request, fetcher, forbidden)
            if isinstance(pending, Gathering) and self._is_enough(pending, waiting.request):
                self._finish(waiting, pending)
            else:
                self._wait(waiting, pending)
        except Exception as error:
            waiting.answer.set_exception(error)

    def _finish(self, waiting: "WaitingFetch", gathering: Gathering) -> None:
        answer = waiting.answer
        if answer.done():
            return
        try:
            answer.set_result(self._answer(waiting.scope, waiting.fetcher, gathering))
        except Exception as error:
            answer.set_exception(error)

    def _forbidden(
        self, context: RequestContext, scope: FetchScope, fetcher: Fetcher
    ) -> frozenset[FetchTarget]:
        """Partitions that the principal may not read. A consumer's rights are checked for each topic. A
        follower may read either all partitions or no partition."""
        allows = self._authorizer.allows
        if fetcher.replica_id >= 0:
            may_follow = allows(context, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
            return NOTHING if may_follow else frozenset(scope.positions)
        forbidden: list[FetchTarget] = []
        asked: FetchTarget | None = None
        allowed = True
        for target in scope.positions:
            # Partitions of a topic are usually next to each other, and they share the id object that the
            # decoder made.
            if asked is None or target.topic_id is not asked.topic_id or target.topic != asked.topic:
                asked = target
                name = target.topic or self._partitions.name_of(target.topic_id)
                allowed = name is None or allows(context, AclOperation.READ, AclResourceType.TOPIC, name)
            if not allowed:
                forbidden.append(target)
        return frozenset(forbidden) if forbidden else NOTHING

    def _gather(
        self,
        scope: FetchScope,
        request: FetchRequest,
        fetcher: Fetcher,
        forbidden: frozenset[FetchTarget],
    ) -> "Gathering | PendingReads":
        steps = self._gathering(scope, request, fetcher, forbidden)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _gathering(
        self,
        scope: FetchScope,
        request: FetchRequest,
        fetcher: Fetcher,
        forbidden: frozenset[FetchTarget],
    ) -> "Generator[None, None, Gathering | PendingReads]":
        """Read the partitions in order, within the byte budget. The first batch may be larger than the
        budget. Yields regularly, so that other work can run.
        """
        gathering = Gathering()
        remote: PendingReads | None = None
        budget = min(request.max_bytes, self._fetch_max_bytes)
        read_committed = request.isolation_level == READ_COMMITTED
        session = scope.follower_session(fetcher.replica_id)
        due = _due(scope, fetcher)
        gathering.has_idle = len(due) < len(scope.positions)
        for count, (target, position) in enumerate(due, 1):
            if not count % POSITIONS_A_TURN:
                yield
            if forbidden and target in forbidden:
                note(gathering, target, position, ReadOutcome(error=ErrorCode.topic_authorization_failed))
                continue
            try:
                partition = self._partitions.find(*target)
            except KafkaError as error:
                note(gathering, target, position, ReadOutcome(error=error.code))
                continue
            if session is not None:
                idle = position.idle = position.idle or IdleFollower(session.fetches, partition.key)
                if partition.is_up_to_date(position, fetcher.replica_id, fetcher.broker_epoch):
                    if idle.lasts:
                        gathering.has_idle = True
                    else:
                        gathering.keys.append(partition.key)
                    continue
            gathering.keys.append(partition.key)
            # The arguments are positional, because named arguments take twice as long.
            read = ReadRequest(
                position.fetch_offset,
                min(position.max_bytes, budget),
                gathering.size_bytes == 0 and remote is None,
                read_committed,
                position.current_leader_epoch,
                position.last_fetched_epoch,
                fetcher.replica_id,
                fetcher.rack,
                fetcher.broker_epoch,
                -1,
                position.log_start_offset,
                fetcher.near,
                fetcher.memory,
            )
            outcome = partition.read(read)
            if isinstance(outcome, ReadOutcome):
                note(gathering, target, position, outcome)
                budget = max(0, budget - outcome.size_bytes)
            else:
                remote = remote or PendingReads(gathering)
                remote.reads.append((target, position, outcome))
                budget = max(0, budget - read.max_bytes)
        return remote or gathering

    def _answer(self, scope: FetchScope, fetcher: Fetcher, gathering: Gathering) -> FetchResponse:
        rows = self._services.rows(scope, fetcher.listener_name)
        rows.add(gathering.outcomes)
        return rows.response()


class PendingReads:
    """The result of a pass over all partitions of a request, when some reads are still in progress, because
    they need a slower store."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self.reads: list[tuple[FetchTarget, SessionPosition, asyncio.Future[ReadOutcome]]] = []

    @property
    def keys(self) -> list[PartitionKey]:
        """The partitions whose appends can continue the waiting request."""
        return self._gathering.keys

    def then(self, answer_with: Callable[[Gathering], None], answer: "asyncio.Future[Any]") -> None:
        """Call ``answer_with`` when all reads are done. If a read fails, the future ``answer`` gets the
        exception."""
        left = len(self.reads)

        def done(_: "asyncio.Future[ReadOutcome]") -> None:
            nonlocal left
            left -= 1
            if left or answer.done():
                return
            try:
                for target, position, future in self.reads:
                    note(self._gathering, target, position, future.result())
                answer_with(self._gathering)
            except asyncio.CancelledError:
                answer.cancel()
            except Exception as error:
                answer.set_exception(error)

        for _, _, future in self.reads:
            future.add_done_callback(done)


def note(gathering: Gathering, target: FetchTarget, position: SessionPosition, outcome: ReadOutcome) -> None:
    """Add the outcome of one partition to the result of a pass."""
    gathering.outcomes.append((target, position, outcome))
    gathering.size_bytes += outcome.size_bytes
    if ends_wait(outcome):
        gathering.must_answer = True
