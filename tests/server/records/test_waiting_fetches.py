"""Fetches that wait: what they share, and how each wait ends."""

import asyncio
from typing import Any, cast

import pytest
from fetch_house import BATCH_BYTES, Growing, House, ask, begin, plain_request

from moldau.network.context import ConnectionContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode_response
from moldau.replication.partition_interface import (
    Partition,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.waiting_fetches import ANSWERS_A_TURN
from moldau.simulation.world.world import World


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
            await begin(house, body, str(number))
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
        asked = [begin(house, plain_request(13), name) for name in "ab"]
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
        asked = [begin(house, plain_request(13), name) for name in "abc"]
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


@pytest.mark.parametrize("is_changed", [False, True])
def test_an_append_during_a_slow_read_is_not_missed(is_changed: bool) -> None:
    """A slow read ends after an append, or after the end of the request's time."""

    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        partition.is_remote = True
        body = plain_request(13, max_wait_ms=1_000 if is_changed else 1)
        asked = begin(house, body, "1")
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


def test_a_member_whose_time_ends_after_an_append_gets_the_records_that_were_too_few() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(13, min_bytes=1_000, max_wait_ms=400)
        sizes = []

        async def consume(number: int) -> None:
            answer = await begin(house, body, str(number))
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
        other = begin(house, body, "1")
        await asyncio.sleep(0.1)
        partition.start = 2
        answer = await asyncio.wait_for(begin(house, body, "2"), 0.01)
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
        asked = [begin(house, body, "1")]
        await asyncio.sleep(0.0003)
        partition.end = 1
        house.arrivals.notify(partition.key)
        asked.append(begin(house, body, "2"))
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
        asked = begin(house, plain_request(13, max_wait_ms=400), "1")
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
        asked = [begin(house, body, str(number)) for number in range(3 * ANSWERS_A_TURN)]
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
            asked = [begin(house, body, name) for name in "abc"]
            await asyncio.sleep(0.01)
            partition.end += not partition.end
            house.arrivals.notify(partition.key)
            for answer in await asyncio.wait_for(asyncio.gather(*asked), 0.1):
                (topic,) = decode_response(ApiKey.FETCH, 13, answer).responses
                assert len(topic.partitions[0].records) == BATCH_BYTES
        assert house.unexpected.count == 1

    with World(0) as world:
        world.run(story())
