"""Clients that continue after restores: transactional producers and a group."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import Bootstrap, RetryError
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.offsets.committer import OFFSET_COMMIT_VERSION, OFFSET_FETCH_VERSION
from moldau.simulation.offsets.group_client import FIND_COORDINATOR_VERSION, GroupClient
from moldau.simulation.transactions.producer import TransactionalProducer
from moldau.simulation.transactions.record import ZOMBIE, Fate, RecordedTransaction

_GROUP: Final = 0
_TRANSACTION: Final = 1
_ANY_BROKER: Final = -1
_COORDINATOR_OF: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: _ANY_BROKER,  # every broker accepts records of diskless topics
    ApiKey.TXN_OFFSET_COMMIT: _GROUP,
}


class RovingTransactionalProducer(TransactionalProducer):
    """A transactional producer of a cluster. It finds its coordinators, and produces through any broker."""

    def __init__(
        self,
        name: str,
        brokers: Sequence[Bootstrap],
        history: History,
        chance: random.Random,
        places: Sequence[TopicPartition],
        *,
        bumps: bool,
    ) -> None:
        super().__init__(name, brokers[0], history, chance, places, bumps=bumps)
        self.others = tuple(brokers[1:])
        self.ended_s: dict[str, float] = {}
        """The time at which the end of each transaction was acknowledged, by the transaction's name."""
        self._open: dict[int, RpcConnection] = {}

    async def run_slowly(self, count: int, *, pause_s: float) -> None:
        """Send ``count`` transactions, with pauses between them."""
        for _ in range(count):
            await self.run(1)
            await asyncio.sleep(self.chance.expovariate(1.0) * pause_s)

    async def _transact(self, each: RecordedTransaction) -> None:
        await super()._transact(each)
        self.ended_s[each.name] = self.history.now_s()

    async def _ask(self, api_key: ApiKey, version: int, request: Message) -> Any:
        kind = _COORDINATOR_OF.get(api_key, _TRANSACTION)
        self._connection = await self._found(kind)
        return await super()._ask(api_key, version, request)

    async def _found(self, kind: int) -> RpcConnection:
        connection = self._open.get(kind)
        if connection is not None and not connection.closed:
            return connection
        begun_at = self.begins_at()
        first = await RpcConnection.open(self.name, begun_at.host, begun_at.port)
        self._open[kind] = first
        if kind == _ANY_BROKER:
            return first
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[self.name])
        response = await first.request(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, request)
        found = response.coordinators[0]
        first.close()
        if found.error_code is not ErrorCode.none:
            raise RetryError(found.error_code.name)
        self._open[kind] = await RpcConnection.open(self.name, found.host, found.port)
        return self._open[kind]

    def disconnect(self) -> None:
        for each in self._open.values():
            each.close()
        self._open.clear()
        super().disconnect()


class GroupProgress(GroupClient):
    """A consumer group that commits increasing offsets."""

    def __init__(
        self, name: str, brokers: Sequence[Bootstrap], history: History, chance: random.Random, topic: str
    ) -> None:
        super().__init__(name, brokers[0], history, chance, group_id=name)
        self.others = tuple(brokers[1:])
        self._topic = topic
        self._next = 0
        self.acknowledged: list[tuple[float, int]] = []
        """The time of each acknowledged commit, and the committed offset, in order."""

    async def run(self, count: int, *, pause_s: float) -> None:
        """Commit ``count`` times. Each commit is repeated until it is acknowledged."""
        for _ in range(count):
            self._next += 1
            while not await self._commit(self._next):
                self.disconnect()
                await self.pause()
            self.acknowledged.append((self.history.now_s(), self._next))
            await asyncio.sleep(self.chance.expovariate(1.0) * pause_s)
        self.disconnect()

    async def check(self, losses: "Losses") -> None:
        """Check that the group's offset is not lower than the offset of an acknowledged commit that no
        restore has lost."""
        while (found := await self._committed()) is None:
            self.disconnect()
            await self.pause()
        settled = max((offset for at, offset in self.acknowledged if losses.spared(at)), default=-1)
        if not settled <= found <= self._next:
            self.history.violate(
                f"{self.name}: offset {found} is committed; {settled} was acknowledged and not lost, and"
                f" {self._next} is the last"
            )

    async def _commit(self, offset: int) -> bool:
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=self._topic, partitions=[row])
        request = OffsetCommitRequest(group_id=self.name, topics=[topic])
        try:
            connection = await self.coordinator()
            answer = await connection.request(ApiKey.OFFSET_COMMIT, OFFSET_COMMIT_VERSION, request)
        except (OSError, RetryError):
            return False
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code is ErrorCode.none

    async def _committed(self) -> int | None:
        topic = OffsetFetchRequestTopic(name=self._topic, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=self.name, topics=[topic], require_stable=True)
        try:
            connection = await self.coordinator()
            answer = await connection.request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, request)
        except (OSError, RetryError):
            return None
        if answer.error_code is not ErrorCode.none:
            return None  # If the whole request failed, the response has no topics.
        row = answer.topics[0].partitions[0]
        return int(row.committed_offset) if row.error_code is ErrorCode.none else None


class Losses:
    """The restores of a run, each with the time of its cut and the time of its end."""

    def __init__(self) -> None:
        self._all: list[tuple[float, float]] = []

    def add(self, cut_s: float, restored_s: float) -> None:
        self._all.append((cut_s, restored_s))

    def spared(self, acknowledged_s: float) -> bool:
        """Whether an acknowledgement at ``acknowledged_s`` is still valid. It is valid if, for each restore,
        this time was before the cut or after the end of the restore."""
        return all(not cut_s <= acknowledged_s <= restored_s for cut_s, restored_s in self._all)


def check_committed(
    producers: Sequence[RovingTransactionalProducer],
    visible: Mapping[int, Sequence[str]],
    losses: Losses,
) -> list[str]:
    """Return the violations in the committed records of all partitions.

    If no restore has lost a transaction, all of its records must exist. Otherwise, either all records of the
    transaction exist, or no record of it exists. The records may exist only if the commit was requested.
    """
    found = [
        f"{value} of a fenced producer is committed"
        for values in visible.values()
        for value in values
        if value.startswith(ZOMBIE)
    ]
    sets = {partition: set(values) for partition, values in visible.items()}
    for partition, values in visible.items():
        if len(values) != len(sets[partition]):
            found.append(f"partition {partition} has committed values twice")
    for producer in producers:
        for each in producer.transactions:
            there = [value in sets[index] for index, sent in each.values.items() for value in sent]
            if each.fate is Fate.ABORTED and any(there):
                found.append(f"{each.name} was aborted, and {there.count(True)} values are read")
            elif any(there) and not all(there):
                found.append(f"{each.name} is committed in part: {there.count(True)} of {len(there)}")
            elif each.fate is Fate.COMMITTED and not all(there):
                ended_s = producer.ended_s[each.name]
                if losses.spared(ended_s):
                    found.append(f"{each.name}, committed at {ended_s:.3f}, is lost")
    return found
