"""The scenario of transactions: producers send transactions while a nemesis injects faults. Then all records
are read and checked."""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError, SimulatedClient
from moldau.simulation.history import History
from moldau.simulation.nemesis import Nemesis
from moldau.simulation.offsets.group_client import GroupClient
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.transactions.producer import TransactionalProducer
from moldau.simulation.transactions.reader import CommittedReader
from moldau.simulation.transactions.record import check_transactions
from moldau.simulation.world.world import World

PRODUCER_COUNT: Final = 3
TRANSACTION_COUNT: Final = 15
END_WAIT_S: Final = 60.0
"""A time that is longer than the sum of two times: the timeout of a transaction, and the interval of the
check that aborts it. No transaction is open after this time."""


class TransactionStory:
    """Three producers over all partitions of a node. Two of them use version 2."""

    sends_late: ClassVar = False

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self.history = History(world.loop.elapsed_s)
        self._node = world.host("node-1")
        self._bootstrap = Bootstrap("node-1", scenario.port)
        self._topic = scenario.partitions[0].topic

    async def run(self) -> list[str]:
        scenario, world, history = self._scenario, self._world, self.history
        nemesis = Nemesis(
            world, history, stream(world.seed, "nemesis"), {self._node: scenario.program}, scenario.weather
        )
        self._node.start(scenario.program)
        supervisor = asyncio.create_task(nemesis.supervise())
        admin = SimulatedClient("admin", self._bootstrap, history, stream(world.seed, "admin"))
        assert scenario.prepare is not None
        await self._on("admin", scenario.prepare(admin))
        storm = asyncio.create_task(nemesis.storm(scenario.fault_count))
        producers = [self._producer(number) for number in range(PRODUCER_COUNT)]
        observers = [self._reader("observer", number) for number in range(len(scenario.partitions))]
        watching = [self._on(each.name, each.run()) for each in observers]
        await asyncio.gather(*(self._on(each.name, each.run(TRANSACTION_COUNT)) for each in producers))
        await storm
        history.note("producers are done")
        readers = [self._reader("judge", number) for number in range(len(scenario.partitions))]
        await asyncio.gather(*(self._on(each.name, self._read_all(each)) for each in readers))
        offsets = [self._on(f"{each.name} offsets", self._offset_of(each.name)) for each in producers]
        found = await asyncio.gather(*offsets)
        for watch in watching:
            watch.cancel()
        supervisor.cancel()
        return history.violations + check_transactions(
            [each for producer in producers for each in producer.transactions],
            {number: each.values for number, each in enumerate(readers)},
            {number: each.values for number, each in enumerate(observers)},
            {producer.name: offset for producer, offset in zip(producers, found, strict=True)},
        )

    def _producer(self, number: int) -> TransactionalProducer:
        name = f"transactions-{number}"
        return TransactionalProducer(
            name,
            self._bootstrap,
            self.history,
            stream(self._world.seed, name),
            self._scenario.partitions,
            bumps=number > 0,
            sends_late=self.sends_late,
        )

    def _reader(self, role: str, number: int) -> CommittedReader:
        name = f"{role}-{number}"
        chance = stream(self._world.seed, name)
        return CommittedReader(
            name, self._bootstrap, self.history, chance, *self._scenario.partitions[number]
        )

    async def _read_all(self, reader: CommittedReader) -> None:
        give_up_s = self.history.now_s() + END_WAIT_S
        while not reader.is_at_end:
            await reader.poll()
            if self.history.now_s() > give_up_s:
                self.history.violate(f"a transaction hangs in partition {reader.partition}")
                return

    async def _offset_of(self, group: str) -> int:
        chance = stream(self._world.seed, f"{group} offsets")
        client = GroupClient(f"{group} offsets", self._bootstrap, self.history, chance, group)
        topic = OffsetFetchRequestTopic(name=self._topic, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
        give_up_s = self.history.now_s() + END_WAIT_S
        while self.history.now_s() < give_up_s:
            try:
                answer = await (await client.coordinator()).request(ApiKey.OFFSET_FETCH, 7, request)
            except (OSError, RetryError):
                client.disconnect()
                await client.pause()
                continue
            row = answer.topics[0].partitions[0]
            if answer.error_code is ErrorCode.none and row.error_code is ErrorCode.none:
                return int(row.committed_offset)
            await client.pause()
        self.history.violate(f"the offsets of {group} stay unstable")
        return -1

    def _on(self, host: str, story: Coroutine[Any, Any, Any] | Any) -> "asyncio.Task[Any]":
        async def program() -> Any:
            return await story

        process = self._world.host(host).start(lambda _machine: program())
        assert process.main is not None
        return process.main


class LateTransactionStory(TransactionStory):
    """Producers also abort a transaction while one of its batches waits at the broker."""

    sends_late = True
