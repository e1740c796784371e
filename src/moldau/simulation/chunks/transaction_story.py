"""Transactions over partitions with chunks, on three nodes.

Transactional producers write to all partitions. Meanwhile chunks are created and moved, active chunks are
reassigned, and nodes fail. So transactions begin in one chunk and end in a later chunk. Some consumers with
``read_committed`` are sent to the brokers of chunks. At the end, the records of all committed transactions
must be there, once and in order, and no consumer may have read another record.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from moldau.simulation.chunks.readers import CommittedChunkReader
from moldau.simulation.chunks.story import CHUNK_PROPERTIES, ROLLING, ChunkStory, chunks
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.cluster.stories.replication_stories import BROKERS, NODE_IDS, PARTITIONS
from moldau.simulation.nemesis import Nemesis
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.transactions.cluster_clients import ClusterProducer
from moldau.simulation.transactions.lists import check_lists
from moldau.simulation.transactions.record import RecordedTransaction, check_transactions
from moldau.simulation.world.host import Host, Program

PRODUCER_COUNT: Final = 3
TRANSACTION_COUNT: Final = 15
PAUSE_S_MAX: Final = 0.7
"""Maximum pause in seconds after each batch of a transaction."""
END_WAIT_S: Final = 60.0
"""A time that is longer than the sum of two times: the timeout of a transaction, and the interval of the
check that aborts it."""
_RACKED_CHANCE: Final = 0.7
_PROPERTIES: Final = {
    **CHUNK_PROPERTIES,
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
}


def chunks_transactions() -> Scenario:
    """Processes of nodes are killed, paused or cleanly restarted, and links break."""
    return replace(chunks(), story=partial(TransactionalChunkStory, properties=_PROPERTIES))


class SlowProducer(ClusterProducer):
    """A producer whose transactions are long, so that chunks end during them."""

    async def _poll(self, each: RecordedTransaction) -> None:
        await super()._poll(each)
        await asyncio.sleep(self.chance.uniform(0.0, PAUSE_S_MAX))


class TransactionalChunkStory(ChunkStory):
    """Three transactional producers. Two of them use transaction version 2. There are no other producers."""

    # Without retention, because the timestamps of the records are old.
    topic_configs: Mapping[str, str] = MappingProxyType({**ROLLING, "retention.ms": "-1"})

    async def run(self) -> list[str]:
        world, history = self._world, self.history
        programs: dict[Host, Program] = {
            world.host(f"node-{node_id}"): partial(self._node, node_id) for node_id in NODE_IDS
        }
        nemesis = Nemesis(world, history, stream(world.seed, "nemesis"), programs, self._scenario.weather)
        for host, program in programs.items():
            host.start(program)
        supervisor = asyncio.create_task(nemesis.supervise())
        await self._on("admin", self._create_topic(self._begin_at_any(SimulatedClient, "admin")))
        await self._converge()
        storm = asyncio.create_task(self._storm(nemesis))
        producers = [self._appender(number) for number in range(PRODUCER_COUNT)]
        observers = [self._reader("observer", number) for number in range(len(PARTITIONS))]
        for each in observers:
            if each.chance.random() < _RACKED_CHANCE:
                each.rack, each.on_sent = "a", self._note_sent
        watching = [self._on(each.name, each.run()) for each in observers]
        await asyncio.gather(*(self._on(each.name, each.run(TRANSACTION_COUNT)) for each in producers))
        await storm
        history.note("producers are done")
        await self._converge()
        final_readers = [self._reader("judge", number) for number in range(len(PARTITIONS))]
        await asyncio.gather(*(self._on(each.name, self._read_all(each)) for each in final_readers))
        for watch in watching:
            watch.cancel()
        await self._converge()
        for violation in self._differences():
            history.violate(violation)
        supervisor.cancel()
        return [*history.violations, *self._problems(producers, observers, final_readers)]

    def _problems(
        self,
        producers: list[SlowProducer],
        observers: list[CommittedChunkReader],
        final_readers: list[CommittedChunkReader],
    ) -> list[str]:
        transactions = [each for producer in producers for each in producer.transactions]
        polls = {each.name: dict(enumerate(one.reads for one in each.readers)) for each in producers}
        reads = polls | {"observers": dict(enumerate(each.reads for each in observers))}
        return [
            *check_transactions(
                transactions,
                {number: each.values for number, each in enumerate(final_readers)},
                {number: each.values for number, each in enumerate(observers)},
                {},
            ),
            *check_lists(transactions, dict(enumerate(each.reads for each in final_readers)), reads),
        ]

    def _appender(self, number: int) -> SlowProducer:
        name = f"transactions-{number}"
        chance = stream(self._world.seed, name)
        return SlowProducer(
            name, BROKERS, self.history, chance, PARTITIONS, bumps=number > 0, anywhere=frozenset()
        )

    def _reader(self, role: str, number: int) -> CommittedChunkReader:
        reader: CommittedChunkReader = self._begin_at_any(
            CommittedChunkReader, f"{role}-{number}", *PARTITIONS[number]
        )
        return reader

    async def _read_all(self, reader: CommittedChunkReader) -> None:
        give_up_s = self.history.now_s() + END_WAIT_S
        while not reader.is_at_end:
            await reader.poll()
            if self.history.now_s() > give_up_s:
                self.history.violate(f"a transaction hangs in {reader.name}'s partition at {reader.offset}")
                return

    async def _delete(self, client: SimulatedClient) -> None:
        """No records are deleted, because the checker expects the records of all transactions."""
