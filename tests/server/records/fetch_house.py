"""The handlers of Fetch over two partitions that a test changes."""

import asyncio
import random
from collections import Counter
from typing import Any, cast
from uuid import UUID

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.network.context import Answer, ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.fast_paths.lone_fetch import FIRST_LONE_VERSION
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.partitions import PartitionKey
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.partition_interface import (
    AbortedTransaction,
    Partition,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.metadata.cluster_view import BrokerAddress
from moldau.server.metadata.current_leaders import CurrentLeader, CurrentLeaders
from moldau.server.requests.dispatch import DirectHandler, DirectHandlers, Dispatcher
from moldau.server.requests.fetch_sessions import FetchSessions
from moldau.server.requests.throttles import Throttles
from moldau.server.topics.registry import PartitionRegistry

TOPIC, OTHER = UUID(int=1), UUID(int=2)
VERSIONS = range(FIRST_LONE_VERSION, 19)
BATCH_BYTES = 10


class Growing:
    """A partition with batches of one record. A test changes it, and it counts what its readers get."""

    def __init__(self, arrivals: WaitingRoom[PartitionKey], number: int) -> None:
        self.topic, self.key = "orders", PartitionKey(TOPIC, number)
        self._arrivals = arrivals
        self.end = self.start = 0
        self.lag = 0
        self.error = ErrorCode.none
        self.is_aborted = self.is_remote = self.is_broken = False
        self.counts_are_broken = False
        self.reads = 0
        self.sent_bytes: Counter[str | None] = Counter()
        """Bytes by the racks of the readers."""

    def read(self, request: ReadRequest) -> ReadAnswer:
        self.reads += 1
        if self.is_broken:
            raise ValueError("a defect")
        outcome = self._outcome(request)
        if not self.is_remote:
            self.count_shared_reads(outcome.size_bytes, request.reader_rack, 1)
            return outcome
        answer: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if answer.done():
                return
            self.count_shared_reads(outcome.size_bytes, request.reader_rack, 1)
            answer.set_result(outcome)

        asyncio.get_running_loop().call_later(0.003, finish)
        return answer

    def count_shared_reads(self, size_bytes: int, reader_rack: str | None, times: int) -> None:
        if self.counts_are_broken and times > 1:
            raise ValueError("a defect of a meter")
        assert size_bytes or times == 1
        self.sent_bytes[reader_rack] += size_bytes * times

    def is_up_to_date(self, position: Any, replica_id: int, broker_epoch: int) -> bool:
        return False

    def _outcome(self, request: ReadRequest) -> ReadOutcome:
        assert (request.replica_id, request.client_rack, request.memory) == (-1, "", None)
        if self.error is not ErrorCode.none:
            return ReadOutcome(error=self.error)
        stable = self.end - self.lag
        known = ReadOutcome(ErrorCode.none, (), 0, self.end, stable, self.start)
        if not self.start <= request.offset <= self.end:
            return known._replace(error=ErrorCode.offset_out_of_range)
        if request.current_leader_epoch > 5:
            return known._replace(error=ErrorCode.unknown_leader_epoch)
        if request.last_fetched_epoch > 5:
            return known._replace(diverging_epoch=(4, 1))
        end = stable if request.read_committed else self.end
        count = min(
            max(end - request.offset, 0), max(request.min_one_batch, request.max_bytes // BATCH_BYTES)
        )
        views = [memoryview(bytes([request.offset + index]) * BATCH_BYTES) for index in range(count)]
        aborted: list[AbortedTransaction] | None = [] if request.read_committed else None
        if self.is_aborted and count and request.read_committed:
            aborted = [AbortedTransaction(7, request.offset)]
        return known._replace(
            views=views,
            size_bytes=count * BATCH_BYTES,
            aborted=aborted,
            is_cut=0 < count < end - request.offset,
        )

    def change(self, rng: random.Random) -> None:
        kind = rng.choice(["grow"] * 6 + ["lag", "error", "abort", "remote", "start", "settle", "break"])
        match kind:
            case "grow":
                self.end += rng.choice([1, 1, 2, 5])
            case "lag":
                self.lag = min(self.end - self.start, rng.choice([0, 1, 3]))
            case "error":
                self.error = ErrorCode.not_leader_or_follower
            case "abort":
                self.is_aborted = not self.is_aborted
            case "remote":
                self.is_remote = not self.is_remote
            case "start":
                self.start = self.end - self.lag
            case "settle":
                self.error, self.is_broken, self.lag = ErrorCode.none, False, 0
            case "break":
                self.is_broken = True
        if kind != "start":  # Kinds of partitions do not report that their records were deleted.
            self._arrivals.notify(self.key)


class LeadersElsewhere:
    """Another broker leads all partitions. Its host has the name of the listener."""

    def find(self, topic: str, topic_id: UUID, index: int, listener_name: str) -> CurrentLeader:
        return CurrentLeader(4, BrokerAddress(3, listener_name, 9092, None, fenced=False))


class House:
    """The handlers of Fetch, with or without the fast path, and two partitions."""

    def __init__(self, *, direct: bool, throttles: Throttles | None = None) -> None:
        self.arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        topics = [Topic("orders", TOPIC, ())]
        image = MetadataImage(topics=TopicsImage().updated(topics, []))
        self.registry = PartitionRegistry(lambda: image)
        self.partitions = [Growing(self.arrivals, number) for number in range(2)]
        for partition in self.partitions:
            self.registry.add(cast(Partition, partition))
        ids = iter(range(1, 1_000))
        self.forbidden = ""
        sessions = FetchSessions(100, lambda: next(ids))
        leaders = cast(CurrentLeaders, LeadersElsewhere())
        services = FetchServices(self.registry, self.arrivals, sessions, self, 1_000, leaders=leaders)
        self.answered_directly = 0
        self.unexpected = UnexpectedErrors()
        throttles = throttles or Throttles()
        handlers = FetchHandlers(services)
        of = handlers.direct(throttles, AppendTurn().settle, self.unexpected)

        def direct_of(version: int) -> DirectHandler | None:
            handler = of(version)
            if handler is None:
                return None

            def fetch(context: RequestContext, body: memoryview) -> Answer:
                answer = handler(context, body)
                self.answered_directly += answer is not None
                return answer

            return fetch

        table = {ApiKey.FETCH: direct_of} if direct else {}
        self.dispatch = Dispatcher(
            handlers.table(),
            Scope.BROKER,
            direct=DirectHandlers(table),
            throttles=throttles,
            unexpected=self.unexpected,
        )

    def allows(self, context: RequestContext, operation: Any, resource: Any, name: str) -> bool:
        return name != self.forbidden


async def ask(house: House, version: int, body: bytes, connection: ConnectionContext) -> bytes:
    context = RequestContext(ApiKey.FETCH, version, 1, None, connection, size_bytes=len(body))
    answer = house.dispatch(context, memoryview(body))
    if isinstance(answer, asyncio.Future):
        answer = await answer
    house.dispatch.end_turn()
    assert answer is not None
    return b"".join(answer)


def begin(house: House, body: bytes, connection_id: str, version: int = 13) -> "asyncio.Task[bytes]":
    """Send a request on a connection of its own."""
    connection = ConnectionContext(connection_id, "PLAINTEXT")
    return asyncio.ensure_future(ask(house, version, body, connection))


def plain_request(version: int, *, partition_count: int = 1, **fields: Any) -> bytes:
    topic: dict[str, Any] = {"topic_id": TOPIC} if version >= 13 else {"topic": "orders"}
    partitions = [
        FetchPartition(partition=index, partition_max_bytes=1_000) for index in range(partition_count)
    ]
    request = FetchRequest(
        **{"max_wait_ms": 1_000, "min_bytes": 1, "session_epoch": -1} | fields,
        topics=[FetchTopic(**topic, partitions=partitions)],
    )
    return b"".join(encoder(FetchRequest, version)(request))
