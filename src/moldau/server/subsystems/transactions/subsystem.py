"""Transactions: coordinators on ``__transaction_state``, markers, and checks of transactional writes."""

from collections.abc import Mapping

from moldau.cluster.image.image import TRANSACTION_VERSION_FEATURE
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.transactions.service import TransactionPorts, TransactionService
from moldau.server.context import BrokerContext
from moldau.server.coordinators.entry import entry_of
from moldau.server.handlers.records.transactional import TransactionalHandlers
from moldau.server.handlers.records.transactional_appends import TransactionalAppends
from moldau.server.handlers.transactions import TransactionHandlers
from moldau.server.requests.served import Handler
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.transactions.gate import CoordinatorGate
from moldau.server.subsystems.transactions.markers import ClusterMarkers, LocalMarkers
from moldau.server.subsystems.transactions.peers import BrokerPeers
from moldau.server.subsystems.transactions.settings import transaction_settings, transactions_topic
from moldau.server.topics.producer_ids import ProducerIds
from moldau.server.topics.topic_directory import ImageTopicDirectory


class TransactionsSubsystem(Subsystem):
    """The transaction coordinators that this broker leads, and its part in transactions of other
    coordinators.
    """

    def __init__(self, context: BrokerContext, groups: GroupService) -> None:
        machine, config, view = context.machine, context.config, context.view
        self._context = context
        self._groups = groups
        self.producer_ids = ProducerIds(context.channel, context.identity.node_id)
        self._peers = BrokerPeers(view, config.inter_broker_listener_name, machine.entropy)
        self._local = LocalMarkers(context.partitions, groups)
        publisher = context.metadata.publisher
        self.service = TransactionService(
            # This clock is for time-outs and expiry, because a clock that jumps must not abort transactions
            # or expire ids.
            machine.deletion_clock,
            transaction_settings(config),
            TransactionPorts(
                new_producer_id=self.producer_ids.next_id,
                markers=ClusterMarkers(view, self._peers, self._local, machine.unexpected),
                level=lambda: int(view.image.features.get(TRANSACTION_VERSION_FEATURE, 0)),
                partition_count=ImageTopicDirectory(lambda: publisher.image).partition_count,
            ),
            machine.unexpected,
        )
        self._gate = CoordinatorGate(
            view,
            self.service,
            self._peers,
            lambda: context.metadata.configs.broker,
        )
        self.appends = TransactionalAppends(self._gate.admit, machine.unexpected)
        """Accepts transactional batches of clients."""

    def contribution(self) -> Contribution:
        context, service = self._context, self.service
        handlers = TransactionHandlers(
            service, self.producer_ids, self._groups, context.view, context.authorizer
        )
        return Contribution(
            coordinators=[entry_of(service.runtime, transactions_topic(context.config), handlers.table())],
            handlers=self._of_partitions(),
            checks={"transactions": service.runtime.problem},
            notices={"transactions": service.runtime.notice},
            in_hand=self._in_hand,
        )

    def _of_partitions(self) -> Mapping[int, Handler]:
        handlers = TransactionalHandlers(
            self._groups, self._local.write, self._gate.admit, self._context.authorizer
        )
        return handlers.table()

    def _in_hand(self) -> dict[str, int]:
        return {"transactions to complete": self.service.completion.count}

    async def drain(self) -> None:
        """Unload the coordinators; their new leaders continue with the markers."""
        await self.service.close()

    async def stop(self) -> None:
        await self.producer_ids.close()
        await self._peers.close()
