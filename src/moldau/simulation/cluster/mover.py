"""An administrator that moves partitions between brokers, cancels moves, and elects preferred leaders."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import SimulatedClient

ALTER_VERSION: Final = 1
LIST_VERSION: Final = 0
ELECT_VERSION: Final = 2


class Mover:
    """Moves partitions to random sets of brokers. A set has at least as many brokers as acks=all needs."""

    def __init__(
        self,
        client: SimulatedClient,
        partitions: Sequence[TopicPartition],
        brokers: Sequence[int],
        replicas_min: int,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._brokers = tuple(brokers)
        self._replicas_min = replicas_min
        self.move_count = 0
        """Number of accepted moves."""

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """As long as ``goes_on`` returns True, move one partition after another, cancel moves, or elect
        preferred leaders."""
        chance = self._client.chance
        while goes_on():
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            await self._act()

    async def _act(self) -> None:
        chance = self._client.chance
        partition, draw = chance.choice(self._partitions), chance.random()
        if draw < 0.15:
            await self._ask(ApiKey.ELECT_LEADERS, ELECT_VERSION, ElectLeadersRequest(topic_partitions=None))
            return
        target = None
        if draw < 0.85:
            size = chance.randint(self._replicas_min, len(self._brokers))
            target = tuple(chance.sample(self._brokers, size))
        if await self.move(partition, target):
            self.move_count += 1

    async def settle(self) -> None:
        """Give every partition replicas on all brokers, and wait until the moves are done."""
        for partition in self._partitions:
            while not await self.move(partition, self._brokers):
                await self._client.pause()
        await self.moved()

    async def moved(self) -> None:
        """Wait until no move is in progress."""
        request = ListPartitionReassignmentsRequest(topics=None)
        while (
            (response := await self._ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST_VERSION, request)) is None
            or response.error_code is not ErrorCode.none
            or response.topics
        ):
            await self._client.pause()

    async def move(self, partition: TopicPartition, target: Sequence[int] | None) -> bool:
        """Request a move. With None, request that the move is cancelled. Returns whether the request was
        accepted."""
        self._client.history.note(f"move {partition} to {target}")
        wanted = ReassignablePartition(partition_index=partition.partition, replicas=target)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=partition.topic, partitions=[wanted])]
        )
        response = await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ALTER_VERSION, request)
        if response is None or response.error_code is not ErrorCode.none:
            return False
        return all(row.error_code is ErrorCode.none for row in response.responses[0].partitions)

    async def _ask(self, api: ApiKey, version: int, request: Message) -> Any:
        """The response of a broker; None when the broker does not respond."""
        try:
            return await self._client.ask(api, version, request)
        except OSError:
            return None
