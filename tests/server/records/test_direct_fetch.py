"""The fast path of fetches has the same results as the general path."""

import asyncio
import math
import random
from collections import Counter
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.network.context import Answer, ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response
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
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.handlers.records.waiting_fetches import ANSWERS_A_TURN
from moldau.server.metadata.cluster_view import BrokerAddress
from moldau.server.metadata.current_leaders import CurrentLeader, CurrentLeaders
from moldau.server.requests.dispatch import DirectHandler, DirectHandlers, Dispatcher
from moldau.server.requests.fetch_sessions import FetchSessions
from moldau.server.requests.throttles import Throttles
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World

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


class Consumer:
    """A client of one version, with or without a fetch session, that reads partitions from their starts."""

    def __init__(self, house: House, rng: random.Random, version: int, number: int) -> None:
        self._house = house
        self._version = version
        self._connection = ConnectionContext(str(number), "PLAINTEXT")
        self._connection.rack = rng.choice([None, None, "a"])
        self._has_session = rng.random() < 0.5
        self._indexes = rng.choice([[0], [0], [0], [1], [0, 1], [1, 0], [0, 1, 2]])
        self._fields = {
            "max_wait_ms": rng.choice([0, 20, 100, 500]),
            "min_bytes": rng.choice([0, 1, 1, 25]),
            "max_bytes": rng.choice([5, 30, 1_000_000]),
            "isolation_level": rng.choice([0, 0, 1, 1, 2]),
        }
        self._limit = rng.choice([5, 30, 1_000_000])
        self._leader_epoch = rng.choice([-1, 5, 5, 5, 6])
        self._session_id, self._epoch = 0, 0 if self._has_session else -1
        self.offsets = dict.fromkeys(self._indexes, 0)
        self.seen: list[tuple[float, bytes]] = []

    async def fetch(self, rng: random.Random) -> None:
        topic: dict[str, Any] = {"topic_id": TOPIC} if self._version >= 13 else {"topic": "orders"}
        if rng.random() < 0.03:
            topic = {"topic_id": OTHER} if self._version >= 13 else {"topic": "others"}
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=self.offsets[index],
                current_leader_epoch=self._leader_epoch,
                last_fetched_epoch=rng.choice([-1, -1, -1, -1, 9]) if self._version >= 12 else -1,
                partition_max_bytes=self._limit,
            )
            for index in self._indexes
        ]
        epoch = self._epoch + (5 if rng.random() < 0.03 else 0)
        request = FetchRequest(
            **self._fields,
            session_id=self._session_id,
            session_epoch=epoch,
            topics=[FetchTopic(**topic, partitions=partitions)],
        )
        body = b"".join(encoder(FetchRequest, self._version)(request))
        answer = await ask(self._house, self._version, body, self._connection)
        self.seen.append((asyncio.get_running_loop().time(), answer))
        response = decode_response(ApiKey.FETCH, self._version, answer)
        if response.error_code:
            self._session_id, self._epoch = 0, 0 if self._has_session else -1
            return
        if self._has_session:
            self._session_id, self._epoch = response.session_id, self._epoch + 1
        for found in response.responses:
            for row in found.partitions:
                self.offsets[row.partition_index] += len(row.records or b"") // BATCH_BYTES
                if row.error_code == ErrorCode.offset_out_of_range:
                    self.offsets[row.partition_index] = row.log_start_offset


async def ask(house: House, version: int, body: bytes, connection: ConnectionContext) -> bytes:
    context = RequestContext(ApiKey.FETCH, version, 1, None, connection, size_bytes=len(body))
    answer = house.dispatch(context, memoryview(body))
    if isinstance(answer, asyncio.Future):
        answer = await answer
    house.dispatch.end_turn()
    assert answer is not None
    return b"".join(answer)


SLOT_S = 0.01
"""Each consumer sends its requests in slots of this length, and the partitions change in the middle of a
slot. Then the few microseconds by which the paths differ in simulated time do not change the order of
events."""


async def next_slot(begin_s: float, least_s: float = 0.001) -> None:
    """Wait for the next slot whose begin is ``begin_s`` after a multiple of the length."""
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    count = math.ceil((now_s + least_s - begin_s) / SLOT_S)
    await asyncio.sleep(count * SLOT_S + begin_s - now_s)


@pytest.mark.parametrize("seed", range(150))
def test_both_paths_give_equal_responses_at_equal_times(seed: int) -> None:
    (quick, count), (general, _) = (transcript(seed, direct=direct) for direct in (True, False))
    assert [[answer for _, answer in seen] for seen in quick] == [
        [answer for _, answer in seen] for seen in general
    ]
    for seen, expected in zip(quick, general, strict=True):
        for (time_s, _), (expected_s, _) in zip(seen, expected, strict=True):
            assert abs(time_s - expected_s) < 0.0005
    assert count > 5


def transcript(seed: int, *, direct: bool) -> tuple[list[list[tuple[float, bytes]]], int]:
    """The responses to each consumer with their times, and the number of requests on the fast path."""
    rng = random.Random(seed)

    async def story() -> tuple[list[list[tuple[float, bytes]]], int]:
        house = House(direct=direct)
        consumers = [Consumer(house, rng, rng.choice(VERSIONS), number) for number in range(6)]
        twins = [Consumer(house, random.Random(seed), 13, number) for number in (6, 7, 8)]
        consumers += twins
        seeds = [rng.random() for _ in consumers]
        seeds[-len(twins) :] = [seed] * len(twins)

        async def consume(consumer: Consumer, own_seed: float, number: int) -> None:
            own = random.Random(own_seed)
            for _ in range(15):
                await next_slot(0.0001 * number, own.choice([0.001, 0.001, 0.03]))
                await consumer.fetch(own)

        async def change() -> None:
            for _ in range(60):
                await next_slot(0.0050977, rng.choice([0.001, 0.001, 0.03]))
                rng.choice([*house.partitions, house.partitions[0]]).change(rng)

        await asyncio.gather(change(), *map(consume, consumers, seeds, range(len(seeds))))
        assert len(house.arrivals) == 0
        return [consumer.seen for consumer in consumers], house.answered_directly

    with World(0) as world:
        return world.run(story())


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


@pytest.mark.parametrize("version", [11, 13, 18])
@pytest.mark.parametrize("partition_count", [1, 2])
def test_consumers_that_wait_for_the_same_records_share_reads_and_bytes(
    version: int, partition_count: int
) -> None:
    """The first consumer reads. The others join it without a read. An append causes one more read, and its
    result is sent to all consumers, over several iterations of the event loop."""
    count = 2 * ANSWERS_A_TURN + 1

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(version, partition_count=partition_count)
        connections = [ConnectionContext(str(number), "PLAINTEXT") for number in range(count)]
        asked = [asyncio.ensure_future(ask(house, version, body, each)) for each in connections]
        await asyncio.sleep(0.1)
        assert (partition.reads, house.answered_directly) == (1, count)
        partition.end = 3
        house.arrivals.notify(partition.key)
        await asyncio.sleep(0)
        turns = 0
        while not all(each.done() for each in asked):
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 2
        answers = [each.result() for each in asked]
        assert partition.reads == 2
        assert partition.sent_bytes[None] == 3 * BATCH_BYTES * count
        assert len(set(answers)) == 1
        (topic,) = decode_response(ApiKey.FETCH, version, answers[0]).responses
        assert len(topic.partitions[0].records) == 3 * BATCH_BYTES
        assert len(house.arrivals) == 0

    with World(0) as world:
        world.run(story())


def test_each_member_of_a_group_has_its_own_deadline() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        loop = asyncio.get_running_loop()
        body = plain_request(13, max_wait_ms=400)

        async def timed(number: int) -> float:
            begin_s = loop.time()
            await ask(house, 13, body, ConnectionContext(str(number), "PLAINTEXT"))
            return loop.time() - begin_s

        asked = []
        for number in range(4):
            asked.append(asyncio.ensure_future(timed(number)))
            await asyncio.sleep(0.15)
        waits = await asyncio.gather(*asked)
        assert all(0.4 <= wait < 0.41 for wait in waits)
        # The fourth request came after the deadline of the first, and read again.
        assert partition.reads == 2

    with World(0) as world:
        world.run(story())


def test_consumers_with_sessions_share_nothing() -> None:
    """Each response has the id of its own session."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        connections = [ConnectionContext(str(number), "PLAINTEXT") for number in range(3)]
        opened = [
            await ask(house, 13, plain_request(13, session_epoch=0, max_wait_ms=0), each)
            for each in connections
        ]
        ids = [decode_response(ApiKey.FETCH, 13, each).session_id for each in opened]
        bodies = [plain_request(13, session_id=number, session_epoch=1) for number in ids]
        asked = [
            asyncio.ensure_future(ask(house, 13, body, each))
            for body, each in zip(bodies, connections, strict=True)
        ]
        await asyncio.sleep(0.1)
        partition.end = 1
        house.arrivals.notify(partition.key)
        answers = [decode_response(ApiKey.FETCH, 13, each) for each in await asyncio.gather(*asked)]
        assert [each.session_id for each in answers] == ids
        assert house.answered_directly == 3

    with World(0) as world:
        world.run(story())


def test_a_request_of_a_session_that_has_got_the_next_request_has_an_empty_response() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        connection = ConnectionContext("1", "PLAINTEXT")
        opened = await ask(house, 13, plain_request(13, session_epoch=0, max_wait_ms=0), connection)
        session_id = decode_response(ApiKey.FETCH, 13, opened).session_id
        asked = [
            asyncio.ensure_future(
                ask(house, 13, plain_request(13, session_id=session_id, session_epoch=epoch), connection)
            )
            for epoch in (1, 2)
        ]
        await asyncio.sleep(0.1)
        partition.end = 1
        house.arrivals.notify(partition.key)
        first, second = [decode_response(ApiKey.FETCH, 13, each) for each in await asyncio.gather(*asked)]
        assert (first.error_code, list(first.responses)) == (0, [])
        assert len(second.responses[0].partitions[0].records) == BATCH_BYTES

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("kind", ["wait", "woken", "slow read", "answers"])
def test_a_node_that_stops_answers_all_waiting_requests(kind: str) -> None:
    """The requests wait, or were woken and found too little, or wait for a slow read, or are just being
    answered."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.is_remote = kind == "slow read"
        asked = [
            asyncio.ensure_future(
                ask(
                    house,
                    13,
                    plain_request(13, min_bytes=20, max_wait_ms=60_000 + number % 2),
                    ConnectionContext(str(number), "PLAINTEXT"),
                )
            )
            for number in range(2 * ANSWERS_A_TURN + 2)
        ]
        await asyncio.sleep(0.001)
        if kind in ("woken", "answers"):
            partition.end = 1 if kind == "woken" else 2
            house.arrivals.notify(partition.key)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert any(each.done() for each in asked) == (kind == "answers")
            assert not all(each.done() for each in asked)
        house.arrivals.release_all()
        begin_s = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*asked)
        assert asyncio.get_running_loop().time() - begin_s < 0.1
        responses = [decode_response(ApiKey.FETCH, 13, each).responses for each in answers]
        expected = {"woken": BATCH_BYTES, "answers": 2 * BATCH_BYTES}.get(kind, 0)
        assert {len(topics[0].partitions[0].records) for topics in responses} == {expected}
        assert len(house.arrivals) == 0

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("how", ["error", "refusal", "cancelled"])
def test_a_slow_read_that_fails_ends_the_wait(how: str) -> None:
    reads: list[asyncio.Future[ReadOutcome]] = []

    class Failing(Growing):
        def read(self, request: ReadRequest) -> ReadAnswer:
            reads.append(asyncio.get_running_loop().create_future())
            return reads[-1]

    async def story() -> None:
        house = House(direct=True)
        house.registry.remove(house.partitions[0].key)
        house.registry.add(cast(Partition, Failing(house.arrivals, 0)))
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        asked = [
            asyncio.ensure_future(ask(house, 13, plain_request(13), ConnectionContext(name, "PLAINTEXT")))
            for name in "ab"
        ]
        await asyncio.sleep(0.01)
        assert len(reads) == 2
        for read in reads:
            if how == "cancelled":
                read.cancel()
            else:
                refusal = KafkaError(ErrorCode.kafka_storage_error, "the disk is broken")
                read.set_exception(refusal if how == "refusal" else ValueError("a defect"))
        await asyncio.wait(asked)
        assert len(house.arrivals) == 0
        assert not problems
        if how == "cancelled":
            assert all(each.cancelled() for each in asked)
            return
        codes = [decode_response(ApiKey.FETCH, 13, each.result()).error_code for each in asked]
        expected = ErrorCode.kafka_storage_error if how == "refusal" else ErrorCode.unknown_server_error
        assert codes == [expected] * 2
        assert house.unexpected.count == (2 if how == "error" else 0)

    with World(0) as world:
        world.run(story())


def test_a_member_that_is_gone_does_not_stop_the_others() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        asked = [
            asyncio.ensure_future(ask(house, 13, plain_request(13), ConnectionContext(name, "PLAINTEXT")))
            for name in "abc"
        ]
        await asyncio.sleep(0.1)
        asked[0].cancel()
        await asyncio.sleep(0)
        partition.end = 1
        house.arrivals.notify(partition.key)
        await asyncio.wait(asked[1:], timeout=0.01)
        assert all(each.done() for each in asked)

    with World(0) as world:
        world.run(story())


def test_consumers_with_different_requests_share_nothing() -> None:
    """The bytes for consumers in different racks are counted separately. The isolation level and the limits
    change the records of a response."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.end = partition.lag = 0
        bodies = [
            plain_request(13),
            plain_request(13, isolation_level=1),
            plain_request(13, max_bytes=BATCH_BYTES),
            plain_request(13),
        ]
        connections = [ConnectionContext(str(number), "PLAINTEXT") for number in range(4)]
        connections[3].rack = "b"
        asked = [
            asyncio.ensure_future(ask(house, 13, body, each))
            for body, each in zip(bodies, connections, strict=True)
        ]
        await asyncio.sleep(0.1)
        partition.end, partition.lag = 5, 2
        house.arrivals.notify(partition.key)
        answers = await asyncio.gather(*asked)
        assert partition.reads == 8
        assert partition.sent_bytes == {None: 9 * BATCH_BYTES, "b": 5 * BATCH_BYTES}
        sizes = [
            len(decode_response(ApiKey.FETCH, 13, answer).responses[0].partitions[0].records)
            for answer in answers
        ]
        assert sizes == [5 * BATCH_BYTES, 3 * BATCH_BYTES, BATCH_BYTES, 5 * BATCH_BYTES]

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("is_deleted_for_all", [False, True])
def test_a_partition_that_leaves_this_broker_ends_the_wait_with_an_error(is_deleted_for_all: bool) -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        if is_deleted_for_all:
            house.registry._image = MetadataImage
        asked = asyncio.ensure_future(ask(house, 13, plain_request(13), ConnectionContext("1", "PLAINTEXT")))
        await asyncio.sleep(0.1)
        house.registry.remove(partition.key)
        house.arrivals.notify(partition.key)
        (topic,) = decode_response(ApiKey.FETCH, 13, await asked).responses
        # The topic in the metadata has no partitions.
        expected = ErrorCode.unknown_topic_id if is_deleted_for_all else ErrorCode.unknown_topic_or_partition
        assert topic.partitions[0].error_code == expected
        assert house.answered_directly == 1

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("partition_count", [1, 2])
def test_each_listener_gets_the_address_of_a_new_leader(partition_count: int) -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(16, partition_count=partition_count)
        listeners = ["INSIDE", "OUTSIDE", "INSIDE"]
        asked = [
            asyncio.ensure_future(ask(house, 16, body, ConnectionContext(str(number), name)))
            for number, name in enumerate(listeners)
        ]
        await asyncio.sleep(0.1)
        assert partition.reads == 2
        partition.error = ErrorCode.not_leader_or_follower
        house.arrivals.notify(partition.key)
        for name, answer in zip(listeners, await asyncio.gather(*asked), strict=True):
            response = decode_response(ApiKey.FETCH, 16, answer)
            assert [endpoint.host for endpoint in response.node_endpoints] == [name]
            assert response.responses[0].partitions[0].current_leader.leader_epoch == 4

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize(("version", "topic_id"), [(12, OTHER), (12, TOPIC), (13, TOPIC)])
def test_a_partition_that_is_opened_again_is_read_by_the_waiting_consumer(
    version: int, topic_id: UUID
) -> None:
    """The partition was moved to another folder, or its topic was created again with the same name."""

    async def story() -> None:
        house = House(direct=True)
        asked = asyncio.ensure_future(
            ask(house, version, plain_request(version), ConnectionContext("1", "PLAINTEXT"))
        )
        await asyncio.sleep(0.1)
        old = house.partitions[0]
        house.registry.remove(old.key)
        new = Growing(house.arrivals, 0)
        new.key = PartitionKey(topic_id, 0)
        house.registry.add(cast(Partition, new))
        house.arrivals.notify(old.key)  # There is nothing to read yet.
        await asyncio.sleep(0.1)
        new.end = 1
        house.arrivals.notify(new.key)
        (topic,) = decode_response(ApiKey.FETCH, version, await asked).responses
        assert len(topic.partitions[0].records) == BATCH_BYTES
        assert (new.reads, new.sent_bytes) == (2, {None: BATCH_BYTES})

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("is_changed", [False, True])
def test_an_append_during_a_slow_read_is_not_missed(is_changed: bool) -> None:
    """A slow read ends after an append, or after the end of the request's time."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.is_remote = True
        body = plain_request(13, max_wait_ms=1_000 if is_changed else 1)
        asked = asyncio.ensure_future(ask(house, 13, body, ConnectionContext("1", "PLAINTEXT")))
        await asyncio.sleep(0.002)
        assert partition.reads == 1
        if is_changed:
            partition.end = 1
            house.arrivals.notify(partition.key)
        begin_s = asyncio.get_running_loop().time()
        (topic,) = decode_response(ApiKey.FETCH, 13, await asked).responses
        assert asyncio.get_running_loop().time() - begin_s < 0.01
        assert len(topic.partitions[0].records) == (BATCH_BYTES if is_changed else 0)
        assert partition.reads == (2 if is_changed else 1)

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("partition_count", [1, 2])
def test_a_forbidden_topic_is_left_to_the_general_path(partition_count: int) -> None:
    """An equal request of another consumer may be waiting, who may read the topic."""

    async def story() -> None:
        house = House(direct=True)
        body = plain_request(13, partition_count=partition_count)
        other = asyncio.ensure_future(ask(house, 13, body, ConnectionContext("2", "PLAINTEXT")))
        await asyncio.sleep(0.1)
        for _ in range(2):
            house.forbidden = "orders"
            answer = await ask(house, 13, body, ConnectionContext("1", "PLAINTEXT"))
            (topic,) = decode_response(ApiKey.FETCH, 13, answer).responses
            assert topic.partitions[0].error_code == ErrorCode.topic_authorization_failed
            assert (house.answered_directly, house.partitions[0].reads) == (1, 1)
            await other

    with World(0) as world:
        world.run(story())


@pytest.mark.parametrize("partition_count", [1, 2])
def test_a_consumer_that_names_its_rack_is_left_to_the_general_path(partition_count: int) -> None:
    """The memory of its connection decides whether it is sent to another broker."""

    async def story() -> None:
        house = House(direct=True)
        seen: list[Any] = []
        house.partitions[0]._outcome = lambda request: seen.append(request.memory) or ReadOutcome()  # type: ignore[method-assign,func-returns-value]
        body = plain_request(13, partition_count=partition_count, rack_id="a", max_wait_ms=0)
        connection = ConnectionContext("1", "PLAINTEXT")
        await ask(house, 13, body, connection)
        assert seen[0] is connection.attributes
        assert house.answered_directly == 0

    with World(0) as world:
        world.run(story())


def test_a_member_whose_time_ends_after_an_append_gets_the_records_that_were_too_few() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(13, min_bytes=1_000, max_wait_ms=400)
        sizes = []

        async def consume(number: int) -> None:
            answer = await ask(house, 13, body, ConnectionContext(str(number), "PLAINTEXT"))
            (topic,) = decode_response(ApiKey.FETCH, 13, answer).responses
            sizes.append(len(topic.partitions[0].records))

        asked = []
        for number in range(3):
            asked.append(asyncio.ensure_future(consume(number)))
            await asyncio.sleep(0.1)
        await asked[0]
        partition.end = 2
        house.arrivals.notify(partition.key)
        await asyncio.gather(*asked)
        assert sizes == [0, 2 * BATCH_BYTES, 2 * BATCH_BYTES]
        assert partition.sent_bytes[None] == 4 * BATCH_BYTES
        assert len(house.arrivals) == 0

    with World(0) as world:
        world.run(story())


def test_a_request_for_deleted_records_does_not_join_a_waiting_request() -> None:
    """The other request has found too few bytes. Its position is deleted, which wakes nothing."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.end = 2
        body = plain_request(13, min_bytes=1_000)
        other = asyncio.ensure_future(ask(house, 13, body, ConnectionContext("1", "PLAINTEXT")))
        await asyncio.sleep(0.1)
        partition.start = 2
        answer = await asyncio.wait_for(ask(house, 13, body, ConnectionContext("2", "PLAINTEXT")), 0.01)
        (topic,) = decode_response(ApiKey.FETCH, 13, answer).responses
        assert topic.partitions[0].error_code == ErrorCode.offset_out_of_range
        await other

    with World(0) as world:
        world.run(story())


def test_a_request_that_comes_during_a_slow_read_reads_itself() -> None:
    """The first request has read before the append, and its time ends during the read."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.is_remote = True
        body = plain_request(13, max_wait_ms=1)
        asked = [asyncio.ensure_future(ask(house, 13, body, ConnectionContext("1", "PLAINTEXT")))]
        await asyncio.sleep(0.0003)
        partition.end = 1
        house.arrivals.notify(partition.key)
        asked.append(asyncio.ensure_future(ask(house, 13, body, ConnectionContext("2", "PLAINTEXT"))))
        responses = [decode_response(ApiKey.FETCH, 13, each) for each in await asyncio.gather(*asked)]
        sizes = [len(response.responses[0].partitions[0].records) for response in responses]
        assert sizes == [0, BATCH_BYTES]
        assert len(house.arrivals) == 0

    with World(0) as world:
        world.run(story())


def test_a_member_that_was_woken_just_before_its_deadline_gets_the_records() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        loop = asyncio.get_running_loop()
        asked = asyncio.ensure_future(
            ask(house, 13, plain_request(13, max_wait_ms=400), ConnectionContext("1", "PLAINTEXT"))
        )
        await asyncio.sleep(0)
        (due,) = house.arrivals.deadlines._ticks

        def append() -> None:
            partition.end = 1
            house.arrivals.notify(partition.key)
            house.arrivals.deadlines._time_is_up(due)

        loop.call_later(0.39, append)
        (topic,) = decode_response(ApiKey.FETCH, 13, await asked).responses
        assert len(topic.partitions[0].records) == BATCH_BYTES

    with World(0) as world:
        world.run(story())


def test_the_answers_after_a_slow_read_take_several_iterations() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(13)
        asked = [
            asyncio.ensure_future(ask(house, 13, body, ConnectionContext(str(number), "PLAINTEXT")))
            for number in range(3 * ANSWERS_A_TURN)
        ]
        await asyncio.sleep(0.1)
        partition.end, partition.is_remote = 1, True
        house.arrivals.notify(partition.key)
        counts = set()
        while not all(each.done() for each in asked):
            counts.add(sum(each.done() for each in asked))
            await asyncio.sleep(0)
        assert len(counts) >= 3

    with World(0) as world:
        world.run(story())


def test_a_defect_of_the_counts_does_not_stop_the_answers() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.counts_are_broken = True
        for round_number in range(2):
            body = plain_request(13, max_wait_ms=1_000 + round_number)
            asked = [
                asyncio.ensure_future(ask(house, 13, body, ConnectionContext(name, "PLAINTEXT")))
                for name in "abc"
            ]
            await asyncio.sleep(0.01)
            partition.end += not partition.end
            house.arrivals.notify(partition.key)
            for answer in await asyncio.wait_for(asyncio.gather(*asked), 0.1):
                (topic,) = decode_response(ApiKey.FETCH, 13, answer).responses
                assert len(topic.partitions[0].records) == BATCH_BYTES
        assert house.unexpected.count == 1

    with World(0) as world:
        world.run(story())


def test_a_throttled_api_has_no_fast_path() -> None:
    throttles = Throttles()
    throttles.add({ApiKey.FETCH: lambda context, waits: 0.0})

    async def story() -> None:
        house = House(direct=True, throttles=throttles)
        house.partitions[0].end = 1
        await ask(house, 13, plain_request(13), ConnectionContext("1", "PLAINTEXT"))
        assert house.answered_directly == 0

    with World(0) as world:
        world.run(story())


def test_a_defect_of_a_read_is_reported_and_ends_only_this_request() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(13)
        asked = [
            asyncio.ensure_future(ask(house, 13, body, ConnectionContext(name, "PLAINTEXT"))) for name in "ab"
        ]
        await asyncio.sleep(0.1)
        partition.is_broken = True
        house.arrivals.notify(partition.key)
        for answer in await asyncio.gather(*asked):
            response = decode_response(ApiKey.FETCH, 13, answer)
            assert response.error_code == ErrorCode.unknown_server_error
        assert house.unexpected.count == 1
        assert len(house.arrivals) == 0

    with World(0) as world:
        world.run(story())
