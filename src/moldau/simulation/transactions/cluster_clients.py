"""Clients of transactions over several brokers. They send each request to the broker that is responsible for
it."""

import random
from collections.abc import Sequence
from typing import Any, Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import RETRIABLE, Bootstrap, RetryError
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.transactions.producer import RETRIED, TransactionalProducer, errors_of
from moldau.simulation.transactions.reader import CommittedReader
from moldau.simulation.transactions.record import RecordedTransaction
from moldau.simulation.transactions.routes import GROUP, TRANSACTION, BrokerRoutes

_ATTEMPTS: Final = 60
_POLL_CHANCE: Final = 0.3
_LOST_CHANCE: Final = 0.1
_REPEATED: Final = (RETRIED | RETRIABLE) - {ErrorCode.out_of_order_sequence_number}
"""Errors after which a client sends its batch again. After OUT_OF_ORDER_SEQUENCE_NUMBER this does not help,
because the batch would be out of order again."""


class LeaderReader(CommittedReader):
    """A consumer with ``read_committed`` that reads from the partition's leader on any broker."""

    async def _opened(self) -> RpcConnection:
        return await self.leader(TopicPartition(self._topic, self.partition))


class ClusterProducer(TransactionalProducer):
    """Appends to lists, one list for each partition, and reads lists during its transactions.

    If a request gets no response, it is repeated through another broker. A batch is repeated with the same
    sequence number.
    """

    def __init__(
        self,
        name: str,
        brokers: Sequence[Bootstrap],
        history: History,
        chance: random.Random,
        places: Sequence[TopicPartition],
        *,
        bumps: bool,
        anywhere: frozenset[str],
    ) -> None:
        """``anywhere`` are topics whose records any broker accepts."""
        super().__init__(name, brokers[0], history, chance, places, bumps=bumps, sends_late=True)
        self._anywhere = anywhere
        self._routes = BrokerRoutes(name, brokers, chance)
        self.readers = [
            LeaderReader(f"{name} in {place}", brokers[0], history, chance, *place) for place in places
        ]
        """The producer's own consumers of all partitions. It polls them only during transactions."""
        for each in self.readers:
            each.others = tuple(brokers[1:])

    def disconnect(self) -> None:
        self._routes.forget()

    async def _poll(self, each: RecordedTransaction) -> None:
        if self.chance.random() < _POLL_CHANCE:
            await self.chance.choice(self.readers).poll()

    async def _address_of(self, place: TopicPartition) -> Bootstrap:
        if place.topic in self._anywhere:
            return self._routes.any_broker()
        return await self._routes.leader(place)

    async def _ask(self, api_key: ApiKey, version: int, request: Message) -> Any:
        """Some responses to Produce are lost together with their connection, so the stored batch is sent
        again."""
        is_lost = isinstance(request, ProduceRequest) and self.chance.random() < _LOST_CHANCE
        for _ in range(_ATTEMPTS):
            try:
                broker = await self._broker_for(api_key, request)
                answer = await (await self._routes.connection(broker)).request(api_key, version, request)
            except (OSError, RetryError):
                self._routes.forget()
                await self.pause()
                continue
            problems = errors_of(answer)
            if is_lost and problems == {ErrorCode.none}:
                is_lost = False
                self._routes.forget()
                continue
            if not problems & _REPEATED:
                return answer
            if problems - {ErrorCode.none, ErrorCode.concurrent_transactions}:
                self._routes.forget()
            await self.pause()
        raise RetryError(f"{api_key.name} is put off again and again")

    async def _broker_for(self, api_key: ApiKey, request: Message) -> Bootstrap:
        if isinstance(request, ProduceRequest):
            rows = request.topic_data[0]
            return await self._address_of(TopicPartition(rows.name, rows.partition_data[0].index))
        return await self._routes.coordinator(GROUP if api_key is ApiKey.TXN_OFFSET_COMMIT else TRANSACTION)
