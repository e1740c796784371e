"""Asks the coordinator whether a partition belongs to a producer's transaction, or adds the partition to the
transaction (KIP-890).

Producers of version 2 do not announce the partitions to which they write. Therefore the broker that gets the
first batch adds the partition to the transaction. For an older producer the broker checks that the producer
has added the partition.
"""

import asyncio
from collections.abc import Callable

from moldau.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from moldau.config.broker import BrokerConfig
from moldau.coordinators.transactions.service import TransactionService
from moldau.coordinators.transactions.settings import JOIN_WAIT_MAX_MS
from moldau.coordinators.transactions.transaction import VERSION_WITH_BUMPS
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.transaction_markers import Participation
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.subsystems.transactions.peers import BrokerPeers


class TransactionVerifier:
    """Verifies the transactions of a broker's producers. It finds the coordinators in the metadata."""

    def __init__(
        self,
        view: ClusterView,
        service: TransactionService,
        peers: BrokerPeers,
        config: Callable[[], BrokerConfig],
    ) -> None:
        """``config`` returns the effective configuration."""
        self._view = view
        self._service = service
        self._peers = peers
        self._config = config

    async def verify(self, wanted: Participation) -> None:
        """Wait until the coordinator has confirmed that the partition belongs to the transaction. Otherwise
        raises ``KafkaError``. With ``transaction.partition.verification.enable=false`` only a write that adds
        its partition to the transaction is verified."""
        config, loop = self._config(), asyncio.get_running_loop()
        if not wanted.joins and not config.flag("transaction.partition.verification.enable"):
            return
        # The error may only mean that the markers of the producer's previous transaction are not written yet.
        # Therefore the request is repeated. A coordinator on this broker lets the request wait, but perhaps
        # for a shorter time.
        retry_s = config.integer("add.partitions.to.txn.retry.backoff.ms") / 1000
        max_wait_ms = min(config.integer("add.partitions.to.txn.retry.backoff.max.ms"), JOIN_WAIT_MAX_MS)
        give_up_at = loop.time() + max_wait_ms / 1000
        while True:
            try:
                await self._ask(wanted)
                return
            except KafkaError as error:
                is_busy = wanted.joins and error.code is ErrorCode.concurrent_transactions
                if not is_busy or loop.time() + retry_s > give_up_at:
                    raise
            await asyncio.sleep(retry_s)

    def is_confirmed(self, wanted: Participation) -> bool:
        """Whether :meth:`verify` would confirm the partition at once. This is known without a request if this
        broker leads the coordinator, and if the record that added the partition is committed. As in
        :meth:`verify`, the metadata decide which broker is the leader, because the coordinator of a broker
        that has lost the leadership ends a little later."""
        name, producer, partition, _ = wanted
        if not name:
            return False
        leader = self._view.leader_of(TRANSACTION_STATE_TOPIC, self._service.partition_of(name))
        return leader == self._view.local_id and self._service.confirms(name, producer, partition)

    async def _ask(self, wanted: Participation) -> None:
        name, producer, partition, joins = wanted
        leader = self._view.leader_of(TRANSACTION_STATE_TOPIC, self._service.partition_of(name))
        if leader is None or leader < 0:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if leader != self._view.local_id:
            await self._ask_peer(leader, wanted)
        elif joins:
            await self._service.add_partitions(name, producer, [partition], VERSION_WITH_BUMPS)
        else:
            verified = await self._service.verify(name, producer, [partition])
            _check(verified[partition])

    async def _ask_peer(self, leader: int, wanted: Participation) -> None:
        name, producer, partition, joins = wanted
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    verify_only=not joins,
                    topics=[AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])],
                )
            ]
        )
        response: AddPartitionsToTxnResponse = await self._peers.send(
            leader, ApiKey.ADD_PARTITIONS_TO_TXN, request
        )
        _check(response.error_code)
        for result in response.results_by_transaction:
            for topic in result.topic_results:
                for each in topic.results_by_partition:
                    _check(each.partition_error_code)


def _check(error: ErrorCode) -> None:
    if error is not ErrorCode.none:
        raise KafkaError(error)
