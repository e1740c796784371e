"""A topic is deleted and created again with the same name, while its replicas move between log directories
and brokers are killed. The new topic never contains anything of the deleted topic."""

import asyncio

import pytest
from two_directories import COUNT, House

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.runtime import ErrorCode
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World
from moldau.storage.folders.future_logs import FutureLogs, LogMove

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BROKERS = (11, 12)
ROUNDS = 5
ACCEPTED = (ErrorCode.none, ErrorCode.replica_not_available)


@pytest.mark.parametrize("seed", range(8))
def test_a_new_topic_contains_nothing_of_its_predecessor(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = stream(seed, "topics created again")
    whole = FutureLogs.exchange
    exchanges: list[LogMove] = []

    async def exchange(self: FutureLogs, move: LogMove) -> None:
        exchanges.append(move)
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        await whole(self, move)

    monkeypatch.setattr(FutureLogs, "exchange", exchange)
    with World(seed) as world:
        house = House(world)

        async def move_some() -> None:
            for _ in range(4):
                index, broker = chance.randrange(COUNT), chance.choice(BROKERS)
                topic = AlterReplicaLogDirTopic(name="t", partitions=[index])
                path = chance.choice(("/data/a", "/data/b"))
                request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
                answer = await house.ask(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request)
                assert answer.results[0].partitions[0].error_code in ACCEPTED

        def is_current(broker: int) -> bool:
            ids = [each.key.topic_id for each in house.hosted(broker).values()]
            return ids == [house.topic_id()] * COUNT

        def contents(broker: int, index: int) -> bytes:
            log = house.hosted(broker)[index].log
            return b"".join(bytes(view) for view in log.read(log.log_start_offset, 1 << 24).views)

        async def check(name: str) -> None:
            await house.cluster.until(lambda: all(is_current(each) for each in BROKERS))
            await house.in_sync()
            await house.produce(5, name)
            for index in range(COUNT):
                await house.cluster.until(lambda index=index: contents(11, index) == contents(12, index))
                log = house.hosted(11)[index].log
                assert (log.log_start_offset, log.log_end_offset) == (0, 5)
            for broker in BROKERS:
                request = DescribeLogDirsRequest(topics=None)
                found = await house.ask(broker, ApiKey.DESCRIBE_LOG_DIRS, 4, request)
                assert [each.error_code for each in found.results] == [ErrorCode.none] * 2

        async def story() -> None:
            await house.begin()
            for number in range(ROUNDS):
                await check(f"round-{number}")
                await move_some()
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                if chance.random() < 0.4:
                    await house.restart(11)
                await house.create_again()
            await check("end")
            assert exchanges

        world.run(story())
