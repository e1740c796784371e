"""The direct path of fetches has the same results as the general path."""

import asyncio
import math
import random
from typing import Any, cast
from uuid import UUID

import pytest
from fetch_house import BATCH_BYTES, OTHER, TOPIC, VERSIONS, Growing, House, ask, begin, plain_request

from moldau.cluster.image.image import MetadataImage
from moldau.network.context import ConnectionContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode_response
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    Partition,
    ReadOutcome,
)
from moldau.runtime.errors import ErrorCode
from moldau.server.requests.throttles import Throttles
from moldau.simulation.world.world import World


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


@pytest.mark.parametrize("is_deleted_for_all", [False, True])
def test_a_partition_that_leaves_this_broker_ends_the_wait_with_an_error(is_deleted_for_all: bool) -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        if is_deleted_for_all:
            house.registry._image = MetadataImage
        asked = begin(house, plain_request(13), "1")
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
        asked = begin(house, plain_request(version), "1", version=version)
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


@pytest.mark.parametrize("partition_count", [1, 2])
def test_a_forbidden_topic_is_left_to_the_general_path(partition_count: int) -> None:
    """An equal request of another consumer may be waiting, who may read the topic."""

    async def story() -> None:
        house = House(direct=True)
        body = plain_request(13, partition_count=partition_count)
        other = begin(house, body, "2")
        await asyncio.sleep(0.1)
        for _ in range(2):
            house.forbidden = "orders"
            answer = await begin(house, body, "1")
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


def test_a_throttled_api_has_no_fast_path() -> None:
    throttles = Throttles()
    throttles.add({ApiKey.FETCH: lambda context, waits: 0.0})

    async def story() -> None:
        house = House(direct=True, throttles=throttles)
        house.partitions[0].end = 1
        await begin(house, plain_request(13), "1")
        assert house.answered_directly == 0

    with World(0) as world:
        world.run(story())


def test_a_defect_of_a_read_is_reported_and_ends_only_this_request() -> None:
    async def story() -> None:
        house = House(direct=True)
        partition = house.partitions[0]
        body = plain_request(13)
        asked = [begin(house, body, name) for name in "ab"]
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
