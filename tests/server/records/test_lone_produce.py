"""The fast path of a Produce request to one partition has the same results as the general path."""

import asyncio
import random
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.partitions import PartitionKey
from moldau.records.errors import RecordError
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.partition_interface import AppendOutcome, NoTransactions, WithoutLog
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode
from moldau.server.handlers.records.produce import ADMIN_CLIENT_ID, ProduceHandlers
from moldau.server.handlers.records.transactional_appends import TransactionalAppends
from moldau.server.requests.dispatch import DirectHandlers, Dispatcher
from moldau.server.requests.throttles import Throttles
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World

ORDERS, OFFSETS, ELSEWHERE = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {ORDERS: "orders", OFFSETS: CONSUMER_OFFSETS_TOPIC, ELSEWHERE: "elsewhere"}
OUTCOMES = [
    AppendOutcome(base_offset=7, log_append_time_ms=-1, log_start_offset=2),
    AppendOutcome(ErrorCode.corrupt_message, message="stored CRC 1, computed 2"),
    AppendOutcome(ErrorCode.invalid_record, message="bad", record_errors=[RecordError(3, "no key")]),
    AppendOutcome(ErrorCode.not_leader_or_follower),
]


async def _admit(wanted):
    raise AssertionError("no partition asks for a check")


class Participant:
    """Records the transactional batches of a partition with everything that belongs to them."""

    def __init__(self, partition):
        self._partition = partition

    def append(self, batch, turn):
        terms = (batch.producer_id, batch.producer_epoch, batch.required_acks, batch.timeout_ms)
        self._partition.appended.append((bytes(batch.records), *terms, turn.is_free, turn.has_own_epoch))
        return self._partition.answer()


class OnePartition(WithoutLog):
    """Records appends, and returns one outcome, immediately or later."""

    def __init__(self, topic_id, outcome, later):
        self.key = PartitionKey(topic_id, 0)
        self.topic = NAMES[topic_id]
        self.outcome, self.later = outcome, later
        self.appended = []
        self.transactions = Participant(self) if topic_id == ORDERS else NoTransactions(self.topic)

    def append(self, records, *, required_acks, timeout_ms, client):
        self.appended.append((bytes(records), required_acks, timeout_ms))
        return self.answer()

    def answer(self):
        if not self.later:
            return self.outcome
        future = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_result, self.outcome)
        return future


class Allowing:
    """Allows clients to write to all topics except some, and stores the names in the requests."""

    def __init__(self, forbidden):
        self.forbidden = forbidden
        self.asked = set()

    def allows(self, context, operation, resource, name):
        self.asked.add(name)
        return name not in self.forbidden


def image():
    topics = [Topic(name, topic_id, ()) for topic_id, name in NAMES.items()]
    return MetadataImage(topics=TopicsImage().updated(topics, []))


def house(outcome, later, forbidden, *, direct, throttles=None):
    registry = PartitionRegistry(image)
    partitions = [OnePartition(topic_id, outcome, later) for topic_id in (ORDERS, OFFSETS)]
    for partition in partitions:
        registry.add(partition)
    authorizer = Allowing(forbidden)
    transactional = TransactionalAppends(_admit, UnexpectedErrors())
    handlers = ProduceHandlers(registry, authorizer, AppendTurn(), throttles or Throttles(), transactional)
    table = {ApiKey.PRODUCE: handlers.direct} if direct else {}
    dispatch = Dispatcher(handlers.table(), Scope.BROKER, direct=DirectHandlers(table), throttles=throttles)
    return dispatch, partitions, authorizer


def request_of(rng, version):
    topic_id = rng.choice([ORDERS, ORDERS, OFFSETS, ELSEWHERE, UUID(int=4)])
    topic = {"topic_id": topic_id} if version >= 13 else {"name": NAMES.get(topic_id, "unknown")}
    rows = [
        PartitionProduceData(
            index=rng.choice([0, 0, 0, 9]), records=rng.randbytes(rng.choice([0, 200, 20_000]))
        )
        for _ in range(rng.choice([1, 1, 1, 2]))
    ]
    return ProduceRequest(
        transactional_id=rng.choice([None, None, "", "tx", "größe", "x" * 126, "x" * 127]),
        acks=rng.choice([-1, -1, 0, 1, 2]),
        timeout_ms=rng.choice([0, 30_000]),
        topic_data=[TopicProduceData(**topic, partition_data=rows)],
    )


async def ask(dispatch, version, body, client_id, control=None):
    connection = ConnectionContext("1", "PLAINTEXT", control=control)
    context = RequestContext(ApiKey.PRODUCE, version, 1, client_id, connection, size_bytes=len(body))
    try:
        answer = dispatch(context, memoryview(body))
        if isinstance(answer, asyncio.Future):
            answer = await answer
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if answer is None else b"".join(answer)


@pytest.mark.parametrize("version", range(3, 14))
@given(seed=st.integers(0, 2**32))
@example(seed=425_992)  # a transactional id that is not in UTF-8
@settings(max_examples=40, deadline=None, database=None)
def test_both_paths_give_equal_responses_to_equal_requests(version, seed):
    rng = random.Random(seed)
    body = bytearray(b"".join(encoder(ProduceRequest, version)(request_of(rng, version))))
    if rng.random() < 0.2:
        body[rng.randrange(min(60, len(body)))] = rng.choice([0, 1, 2, 0x80, 0xFF])
    outcome, later = rng.choice(OUTCOMES), rng.random() < 0.3
    forbidden = rng.choice([(), (), ("orders",), ("tx",)])
    client_id = rng.choice([None, "c", ADMIN_CLIENT_ID])

    async def both():
        found = []
        for direct in (True, False):
            dispatch, partitions, authorizer = house(outcome, later, forbidden, direct=direct)
            answer = await ask(dispatch, version, bytes(body), client_id)
            found.append((answer, [partition.appended for partition in partitions], authorizer.asked))
        return found

    quick, general = asyncio.run(both())
    assert quick == general


@pytest.mark.parametrize("version", [9, 12, 13])
def test_the_authorizer_is_asked_for_the_name(version):
    """If a request identifies a topic by id, its name is checked, too, because access control lists contain
    only names."""
    topic = {"topic_id": ORDERS} if version >= 13 else {"name": "orders"}
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=[TopicProduceData(**topic, partition_data=[PartitionProduceData(records=bytes(200))])],
    )
    body = b"".join(encoder(ProduceRequest, version)(request))
    for direct in (True, False):
        dispatch, partitions, authorizer = house(OUTCOMES[0], False, ("orders",), direct=direct)
        answer = asyncio.run(ask(dispatch, version, body, "c"))
        assert authorizer.asked == {"orders"}
        assert not partitions[0].appended
        assert ErrorCode.topic_authorization_failed.to_bytes(2, "big") in answer


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("later", [False, True])
def test_both_paths_throttle_equally(version, later):
    topic = {"topic_id": ORDERS} if version >= 13 else {"name": "orders"}
    rows = [PartitionProduceData(records=bytes(200))]
    request = ProduceRequest(
        acks=-1, timeout_ms=1, topic_data=[TopicProduceData(**topic, partition_data=rows)]
    )
    body = b"".join(encoder(ProduceRequest, version)(request))
    found = []

    async def story():
        for direct in (True, False):
            asked, muted = [], []

            def throttle(context, waits, asked=asked):
                asked.append(waits)
                return 0.25

            throttles = Throttles()
            throttles.add({ApiKey.PRODUCE: throttle})
            dispatch, partitions, _ = house(OUTCOMES[0], later, (), direct=direct, throttles=throttles)
            control = SimpleNamespace(mute=muted.append)
            answer = await ask(dispatch, version, body, "c", control)
            found.append((answer, asked, muted, [partition.appended for partition in partitions]))

    with World(1) as world:
        world.run(story())
    assert found[0] == found[1]
    answer, asked, muted, _ = found[0]
    assert (asked, muted) == ([later], [0.25])
    assert decode_response(ApiKey.PRODUCE, version, answer).throttle_time_ms == 250
