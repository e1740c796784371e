"""The APIs for the records of partitions: produce, fetch, offsets, producers, log folders."""

from moldau.protocol.api import ApiKey
from moldau.replication.appending.append_turn import AppendTurn
from moldau.server.context import BrokerContext
from moldau.server.extensions import Extensions
from moldau.server.handlers.admin.log_dirs import LogDirHandlers
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.handlers.records.offsets import OffsetHandlers
from moldau.server.handlers.records.produce import ProduceHandlers
from moldau.server.handlers.records.producers import ProducerHandlers
from moldau.server.metadata.current_leaders import CurrentLeaders
from moldau.server.requests.dispatch import DirectHandlers, routes
from moldau.server.requests.fetch_sessions import FetchSessions
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.transactions.subsystem import TransactionsSubsystem


class RecordsSubsystem(Subsystem):
    """Serves the partitions of this broker, of every kind."""

    def __init__(
        self,
        context: BrokerContext,
        extensions: Extensions,
        partitions: PartitionsSubsystem,
        transactions: TransactionsSubsystem,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._throttles = extensions.throttles
        self._transactions = transactions

    def contribution(self) -> Contribution:
        context, config, entropy = self._context, self._context.config, self._context.machine.entropy
        partitions, authorizer = context.partitions, context.authorizer
        turn, leaders = AppendTurn(), CurrentLeaders(context.view)
        produce = ProduceHandlers(
            partitions, authorizer, turn, self._throttles, self._transactions.appends, leaders
        )
        sessions = FetchSessions(
            config.integer("max.incremental.fetch.session.cache.slots"),
            lambda: entropy.randrange(2**31 - 1) + 1,
        )
        fetches = FetchServices(
            partitions,
            context.arrivals,
            sessions,
            authorizer,
            config.integer("fetch.max.bytes"),
            self._partitions.replication.leader_quota,
            leaders,
        )
        fetch = FetchHandlers(fetches)
        direct_fetch = fetch.direct(self._throttles, turn.settle, context.machine.unexpected)
        return Contribution(
            handlers=routes(
                produce.table(),
                fetch.table(),
                OffsetHandlers(partitions, authorizer).table(),
                ProducerHandlers(partitions).table(),
                LogDirHandlers(context.logs, self._partitions.moves.request, authorizer).table(),
            ),
            direct=DirectHandlers({ApiKey.PRODUCE: produce.direct, ApiKey.FETCH: direct_fetch}, turn),
        )

    async def serve(self) -> None:
        """Wait until the partitions have their roles. The image that shows this broker as unfenced may also
        give leaderships to it."""
        await self._partitions.settled()
