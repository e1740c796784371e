"""Transactions over diskless partitions, classic partitions and offsets, on three combined nodes.

Each partition is a list. Transactions append to lists and read lists while coordinators, leaders and gateways
are killed. At the end, three rules are checked. No reader has read an aborted record, a record before its
commit, or only a part of a transaction. No write is lost, repeated or out of order. The groups' offsets agree
with the outcomes of the transactions.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError
from moldau.simulation.cluster.stories.diskless_cluster_stories import (
    BROKER_PORT,
    PARTITIONS,
    TOPIC,
    ClusterLayout,
    DisklessClusterStory,
    scenario_of,
)
from moldau.simulation.nemesis import Fault, Nemesis
from moldau.simulation.offsets.group_client import GroupClient
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.transactions.cluster_clients import ClusterProducer, LeaderReader
from moldau.simulation.transactions.lists import check_lists
from moldau.simulation.transactions.reader import CommittedReader
from moldau.simulation.transactions.record import check_transactions

CLASSIC_TOPIC: Final = "plain"
PLACES: Final = (*PARTITIONS, TopicPartition(CLASSIC_TOPIC, 0), TopicPartition(CLASSIC_TOPIC, 1))
"""The lists: three diskless partitions and two classic partitions."""
PRODUCER_COUNT: Final = 3
TRANSACTION_COUNT: Final = 12
END_WAIT_S: Final = 60.0
"""A time that is longer than the sum of two times: the timeout of a transaction, and the interval of the
check that aborts it."""
_TARGETED_CHANCE: Final = 0.5
_TARGETS: Final = (
    TopicPartition(TRANSACTION_STATE_TOPIC, 0),
    TopicPartition(DISKLESS_METADATA_TOPIC, 0),
    TopicPartition(CONSUMER_OFFSETS_TOPIC, 0),
    *PLACES[-2:],
)
"""Partitions whose leaders are killed. Every broker is a gateway of the diskless partitions."""
_PROPERTIES: Final = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "200",
}


def transactions_cluster() -> Scenario:
    """Coordinators, leaders and gateways are killed, stopped, paused and disconnected during transactions."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY), Fault.CACHE_LOST)
    story = partial(TransactionClusterStory, layout=ClusterLayout(properties=_PROPERTIES))
    return replace(scenario_of(faults), story=story, fault_count=5)


class TransactionClusterStory(DisklessClusterStory):
    """Three producers append to all lists through all brokers. Two of them use version 2."""

    _brokers = tuple(Bootstrap(f"node-{node_id}", BROKER_PORT) for node_id in (1, 2, 3))
    _found: Sequence[str] = ()

    def _topics(self) -> Sequence[CreatableTopic]:
        # without retention, because the timestamps of the records are old
        kept = CreatableTopicConfig(name="retention.ms", value="-1")
        (diskless,) = super()._topics()
        minimum = CreatableTopicConfig(name="min.insync.replicas", value="2")
        return [
            replace(diskless, configs=[*diskless.configs, kept]),
            CreatableTopic(
                name=CLASSIC_TOPIC, num_partitions=2, replication_factor=3, configs=[kept, minimum]
            ),
        ]

    async def _play(self, nemesis: Nemesis) -> None:
        storm = asyncio.create_task(self._storm(nemesis))
        producers = [self._appender(number) for number in range(PRODUCER_COUNT)]
        observers = [self._list_reader("observer", number) for number in range(len(PLACES))]
        watching = [self._on(each.name, each.run()) for each in observers]
        await asyncio.gather(*(self._on(each.name, each.run(TRANSACTION_COUNT)) for each in producers))
        await storm
        self.history.note("producers are done")
        await self._converge()
        final_readers = [self._list_reader("judge", number) for number in range(len(PLACES))]
        await asyncio.gather(*(self._on(each.name, self._read_all(each)) for each in final_readers))
        offsets = [self._on(f"{each.name} offsets", self._offset_of(each.name)) for each in producers]
        committed = await asyncio.gather(*offsets)
        for watch in watching:
            watch.cancel()
        await self._converge()
        await self._check()
        transactions = [each for producer in producers for each in producer.transactions]
        final = dict(enumerate(each.reads for each in final_readers))
        polls = {each.name: dict(enumerate(one.reads for one in each.readers)) for each in producers}
        reads = polls | {"observers": dict(enumerate(each.reads for each in observers))}
        self._found = [
            *check_transactions(
                transactions,
                {number: each.values for number, each in enumerate(final_readers)},
                {number: each.values for number, each in enumerate(observers)},
                {each.name: offset for each, offset in zip(producers, committed, strict=True)},
            ),
            *check_lists(transactions, final, reads),
        ]

    def _violations(self) -> list[str]:
        return [*self.history.violations, *self._found]

    async def _storm(self, nemesis: Nemesis) -> None:
        chance = stream(self._world.seed, "targets")
        for _ in range(self._scenario.fault_count):
            if chance.random() >= _TARGETED_CHANCE:
                await nemesis.storm(1)
                continue
            await asyncio.sleep(chance.uniform(0.05, 1.5))
            target = chance.choice(_TARGETS)
            leader = next((id for id, each in self._replicas(target) if each.is_leader), None)
            host = None if leader is None else self._world.host(f"node-{leader}")
            if host is not None and host.running:
                self.history.note(f"the leader of {target} is killed at {host.name}")
                await nemesis.restart(host, chance.uniform(0.1, 4.0))

    def _appender(self, number: int) -> ClusterProducer:
        name = f"transactions-{number}"
        return ClusterProducer(
            name,
            self._brokers,
            self.history,
            stream(self._world.seed, name),
            PLACES,
            bumps=number > 0,
            anywhere=frozenset({TOPIC}),
        )

    def _list_reader(self, role: str, number: int) -> LeaderReader:
        reader: LeaderReader = self._begin_at_any(LeaderReader, f"{role}-{number}", *PLACES[number])
        return reader

    async def _read_all(self, reader: CommittedReader) -> None:
        give_up_s = self.history.now_s() + END_WAIT_S
        while not reader.is_at_end:
            await reader.poll()
            if self.history.now_s() > give_up_s:
                self.history.violate(f"a transaction hangs in {reader.name}'s partition at {reader.offset}")
                return

    async def _offset_of(self, group: str) -> int:
        client: GroupClient = self._begin_at_any(GroupClient, f"{group} offsets", group)
        topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
        give_up_s = self.history.now_s() + END_WAIT_S
        while self.history.now_s() < give_up_s:
            try:
                answer = await (await client.coordinator()).request(ApiKey.OFFSET_FETCH, 7, request)
                row = answer.topics[0].partitions[0] if answer.topics else None
                if row is not None and answer.error_code is row.error_code is ErrorCode.none:
                    return int(row.committed_offset)
            except (OSError, RetryError):
                pass
            client.disconnect()
            await client.pause()
        self.history.violate(f"the offsets of {group} stay unstable")
        return -1
