"""A follower no longer fetches, but its broker is active and reaches the controller. Only the leader can
remove this follower from the in-sync set (``replica.lag.time.max.ms``)."""

import asyncio

import pytest
from two_directories import PROPERTIES, House

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import PRODUCE_VERSION
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

LAG_MS_MAX = int(PROPERTIES["replica.lag.time.max.ms"])


class SilentHouse(House):
    """A test environment in which broker 12 no longer follows broker 11."""

    index = 0

    async def begin(self) -> None:
        await super().begin()
        self.index = next(index for index, row in enumerate(self.rows()) if row.leader == 11)

    def silence(self) -> None:
        self.world.network.cut("node-11", "node-12")
        self.world.network.cut("node-12", "node-11")

    async def append(self, value: bytes, timeout_ms: int = 30_000) -> ErrorCode:
        """Append a record with acks=all to the partition that broker 11 leads."""
        batch = build_batch([Record(0, 1_700_000_000_000, None, value, ())])
        data = PartitionProduceData(index=self.index, records=memoryview(batch))
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic])
        response = await self.ask(11, ApiKey.PRODUCE, PRODUCE_VERSION, request)
        code: ErrorCode = response.responses[0].partition_responses[0].error_code
        return code

    def values(self, broker: int) -> list[bytes]:
        log = self.hosted(broker)[self.index].log
        content = b"".join(bytes(view) for view in log.read(0, 1 << 20).views)
        return [value for value in (b"first", b"second", b"third", b"fourth") if value in content]


def test_appends_go_on_soon_after_a_follower_has_stopped_fetching() -> None:
    with World(11) as world:
        house = SilentHouse(world)

        async def story() -> None:
            await house.begin()
            assert await house.append(b"first") is ErrorCode.none
            house.silence()
            begins = asyncio.get_running_loop().time()
            assert await house.append(b"second") is ErrorCode.none
            waited_ms = (asyncio.get_running_loop().time() - begins) * 1000
            # The leader checks its followers twice within this time, as in Kafka.
            assert waited_ms < 1.5 * LAG_MS_MAX + 500
            assert list(house.rows()[house.index].isr) == [11]
            begins = asyncio.get_running_loop().time()
            assert await house.append(b"third") is ErrorCode.none
            assert (asyncio.get_running_loop().time() - begins) * 1000 < 500
            world.network.heal_all()
            await house.in_sync()
            await house.cluster.until(lambda: house.values(12) == [b"first", b"second", b"third"])

        world.run(story())


def test_no_record_is_accepted_below_the_minimum_of_in_sync_replicas() -> None:
    with World(12) as world:
        house = SilentHouse(world)
        for node_id, properties in house.cluster.properties.items():
            house.cluster.properties[node_id] = {**properties, "min.insync.replicas": "2"}

        async def story() -> None:
            await house.begin()
            assert await house.append(b"first") is ErrorCode.none
            house.silence()
            # This record is in the log of the leader, but it was not acknowledged.
            assert await house.append(b"second", timeout_ms=5_000) is ErrorCode.request_timed_out
            assert list(house.rows()[house.index].isr) == [11]
            assert await house.append(b"third") is ErrorCode.not_enough_replicas
            assert house.hosted(11)[house.index].high_watermark == 1
            world.network.heal_all()
            await house.in_sync()
            assert await house.append(b"fourth") is ErrorCode.none
            await house.cluster.until(
                lambda: house.values(11) == house.values(12) == [b"first", b"second", b"fourth"]
            )

        world.run(story())
