"""Transactions: coordinators on ``__transaction_state``, markers, and checks of transactional writes."""

from collections.abc import Mapping
from dataclasses import replace

from moldau.cluster.image.image import TRANSACTION_VERSION_FEATURE
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.topic_directory import ImageTopicDirectory
from moldau.coordinators.transactions.hosted import TransactionCoordinators
from moldau.coordinators.transactions.producer_ids import ProducerIds
from moldau.coordinators.transactions.service import TransactionPorts
from moldau.network.served import Handler
from moldau.server.context import BrokerContext
from moldau.server.coordinators.subsystem import HostedCoordinators, kind_context
from moldau.server.handlers.records.transaction_markers import TransactionalHandlers
from moldau.server.handlers.records.transactional_appends import TransactionalAppends
from moldau.server.handlers.transactions import TransactionHandlers
from moldau.server.subsystem import Contribution
from moldau.server.subsystems.transactions.markers import ClusterMarkers, LocalMarkers
from moldau.server.subsystems.transactions.peers import BrokerPeers
from moldau.server.subsystems.transactions.verifier import TransactionVerifier


class TransactionsSubsystem(HostedCoordinators[TransactionCoordinators]):
    """The transaction coordinators that this broker leads. For transactions of other coordinators, it writes
    markers and checks appends."""

    def __init__(self, context: BrokerContext, groups: GroupService) -> None:
        machine, config, view = context.machine, context.config, context.view
        self._context = context
        self._groups = groups
        self.producer_ids = ProducerIds(context.channel, context.identity.node_id)
        self._peers = BrokerPeers(view, config.inter_broker_listener_name, machine.entropy)
        self._local = LocalMarkers(context.partitions, groups)
        known = kind_context(context)
        ports = TransactionPorts(
            new_producer_id=self.producer_ids.next_id,
            markers=ClusterMarkers(view, self._peers, self._local, machine.unexpected),
            level=lambda: int(view.image.features.get(TRANSACTION_VERSION_FEATURE, 0)),
            partition_count=ImageTopicDirectory(known.image).partition_count,
        )
        super().__init__(TransactionCoordinators(known, ports))
        self._verifier = TransactionVerifier(
            view,
            self.kind.service,
            self._peers,
            lambda: context.metadata.configs.broker,
        )
        self.appends = TransactionalAppends(
            self._verifier.verify, machine.unexpected, self._verifier.is_confirmed
        )
        """Accepts transactional batches of clients."""

    def contribution(self) -> Contribution:
        context = self._context
        coordinators = TransactionHandlers(
            self.kind.service, self.producer_ids, self._groups, context.view, context.authorizer
        )
        handlers = {**coordinators.table(), **self._of_partitions()}
        return replace(super().contribution(), handlers=handlers)

    def _of_partitions(self) -> Mapping[int, Handler]:
        handlers = TransactionalHandlers(
            self._groups, self._local.write, self._verifier.verify, self._context.authorizer
        )
        return handlers.table()

    async def stop(self) -> None:
        await super().stop()
        await self.producer_ids.close()
        await self._peers.close()
