"""Reads the partitions of a Fetch request in request order, within the byte budget. Each time when all
partitions were read is a *pass*. A request that waits for more bytes needs several passes.

The record bytes of a response are views of segments. They are never copied into one buffer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType
from moldau.network.context import RequestContext
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.partitions import PartitionKey
from moldau.replication.idle_followers import IdleFollower
from moldau.replication.partition_interface import CONSUMER_REPLICA_ID, ReadOutcome, ReadRequest
from moldau.replication.waiters import Waiter
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.fetch_rows import READ_COMMITTED, FetchedPosition, FetchRows, ends_wait
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.metadata.current_leaders import FETCH_VERSION
from moldau.server.requests.fetch_sessions import FetchScope, FetchTarget, SessionPosition

NOTHING: Final[frozenset[FetchTarget]] = frozenset()

POSITIONS_A_TURN: Final = 1_000
"""Number of partitions of a request that are read without a break. This takes about 10 ms."""


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


def _fetcher_of(context: RequestContext, request: FetchRequest) -> Fetcher:
    rack = request.rack_id if context.api_version >= 11 else None
    near = rack or context.connection.rack
    memory = context.connection.attributes if rack else None
    if context.api_version >= 15:
        state = request.replica_state
        listener = context.listener_name if context.api_version >= FETCH_VERSION else None
        return Fetcher(state.replica_id, state.replica_epoch, rack, near, memory, listener)
    return Fetcher(request.replica_id, -1, rack, near, memory, None)


def requested_positions(request: FetchRequest) -> Iterator[tuple[FetchTarget, SessionPosition]]:
    """The partitions in a request, with their positions."""
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


class FetchPasses:
    """The passes over the partitions of one request."""

    __slots__ = ("_fetcher", "_forbidden", "_request", "_scope", "_services")

    def __init__(
        self, services: FetchServices, context: RequestContext, scope: FetchScope, request: FetchRequest
    ) -> None:
        self._services = services
        self._scope = scope
        self._request = request
        self._fetcher = _fetcher_of(context, request)
        self._forbidden = self._forbidden_to(context)

    @property
    def position_count(self) -> int:
        """Number of partitions of the request or of its session."""
        return len(self._scope.positions)

    @property
    def topics(self) -> set[str]:
        """The names of the topics."""
        name_of = self._services.partitions.name_of
        names = {target.topic or name_of(target.topic_id) for target in self._scope.positions}
        return {name for name in names if name is not None}

    @property
    def may_be_shared(self) -> bool:
        """Whether other consumers may get the result of a pass. A follower or a consumer that names its rack
        has a result of its own, and a sender that may not read some partitions gets errors."""
        fetcher = self._fetcher
        is_any_consumer = fetcher.replica_id == CONSUMER_REPLICA_ID and fetcher.memory is None
        return is_any_consumer and not self._forbidden and bool(self._scope.positions)

    def count_again(self, gathering: Gathering, times: int) -> None:
        """Count the records of a pass ``times`` times more, because other consumers get them, too."""
        for target, _, outcome in gathering.outcomes:
            if not outcome.size_bytes:
                continue
            # The partition may have left this broker during a slow read of another partition.
            with contextlib.suppress(KafkaError):
                partition = self._services.partitions.find(*target)
                partition.count_shared_reads(outcome.size_bytes, self._fetcher.near, times)

    def begin(self) -> None:
        """Begin a pass."""
        fetcher = self._fetcher
        session = self._scope.follower_session(fetcher.replica_id)
        if session is not None:
            session.begin((fetcher.replica_id, fetcher.broker_epoch), is_forbidden=bool(self._forbidden))

    def note_waiter(self, waiter: Waiter[PartitionKey]) -> None:
        """Let a waiting request also wait for the idle partitions of its session."""
        session = self._scope.follower_session(self._fetcher.replica_id)
        if session is not None:
            session.fetches.wait(waiter)

    def due(self) -> list[tuple[FetchTarget, SessionPosition]]:
        """The partitions that must be visited. The positions of a session may change while other work runs,
        therefore the list is a copy."""
        session = self._scope.follower_session(self._fetcher.replica_id)
        return list(self._scope.positions.items()) if session is None else session.due()

    def is_enough(self, gathering: Gathering) -> bool:
        """Whether the request is answered with the result of a pass, and does not wait."""
        return (
            gathering.must_answer
            or gathering.size_bytes >= self._request.min_bytes
            or self._request.max_wait_ms <= 0
            or not (gathering.outcomes or gathering.keys or gathering.has_idle)
        )

    def _forbidden_to(self, context: RequestContext) -> frozenset[FetchTarget]:
        """Partitions that the principal may not read. A consumer's rights are checked for each topic. A
        follower may read either all partitions or no partition."""
        allows = self._services.authorizer.allows
        if self._fetcher.replica_id >= 0:
            may_follow = allows(context, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
            return NOTHING if may_follow else frozenset(self._scope.positions)
        forbidden: list[FetchTarget] = []
        asked: FetchTarget | None = None
        allowed = True
        for target in self._scope.positions:
            # Partitions of a topic are usually next to each other, and they share the id object that the
            # decoder made.
            if asked is None or target.topic_id is not asked.topic_id or target.topic != asked.topic:
                asked = target
                name = target.topic or self._services.partitions.name_of(target.topic_id)
                allowed = name is None or allows(context, AclOperation.READ, AclResourceType.TOPIC, name)
            if not allowed:
                forbidden.append(target)
        return frozenset(forbidden) if forbidden else NOTHING

    def gather(self) -> "Gathering | PendingReads":
        """Read all partitions without a break."""
        steps = self.gathering()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def gathering(self) -> "Generator[None, None, Gathering | PendingReads]":
        """Read the partitions in order, within the byte budget. The first batch may be larger than the
        budget. Yields regularly, so that other work can run.
        """
        scope, request, fetcher, forbidden = self._scope, self._request, self._fetcher, self._forbidden
        find = self._services.partitions.find
        gathering = Gathering()
        remote: PendingReads | None = None
        budget = min(request.max_bytes, self._services.fetch_max_bytes)
        read_committed = request.isolation_level == READ_COMMITTED
        session = scope.follower_session(fetcher.replica_id)
        due = self.due()
        gathering.has_idle = len(due) < len(scope.positions)
        for count, (target, position) in enumerate(due, 1):
            if not count % POSITIONS_A_TURN:
                yield
            if forbidden and target in forbidden:
                note(gathering, target, position, ReadOutcome(error=ErrorCode.topic_authorization_failed))
                continue
            try:
                partition = find(*target)
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

    def response(self, gathering: Gathering) -> FetchResponse:
        """The response with the result of a pass."""
        rows = self.rows()
        rows.add(gathering.outcomes)
        return rows.response()

    def rows(self) -> FetchRows:
        """Begin a response without rows."""
        return self._services.rows(self._scope, self._fetcher.listener_name)


class PendingReads:
    """The result of a pass over all partitions of a request, when some reads are still in progress, because
    they need a disk or a remote store."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self.reads: list[tuple[FetchTarget, SessionPosition, asyncio.Future[ReadOutcome]]] = []

    @property
    def keys(self) -> list[PartitionKey]:
        """The partitions whose appends can continue the waiting request."""
        return self._gathering.keys

    def gathered(self) -> "asyncio.Future[Gathering]":
        """The result, when all reads are done."""
        gathered: asyncio.Future[Gathering] = asyncio.get_running_loop().create_future()
        self.then(gathered.set_result, gathered)
        return gathered

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
