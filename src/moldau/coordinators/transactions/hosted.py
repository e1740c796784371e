"""Transaction coordinators on a broker, over ``__transaction_state``."""

from collections.abc import Mapping

from moldau.coordinators.hosted import HostedKind, KindContext
from moldau.coordinators.transactions.service import TransactionPorts, TransactionService
from moldau.coordinators.transactions.settings import transaction_settings, transactions_topic


class TransactionCoordinators(HostedKind):
    """The transaction coordinators that this broker leads.

    The subsystem of transactions contributes their handlers, because the same handlers also serve producers
    without transactions.
    """

    def __init__(self, context: KindContext, ports: TransactionPorts) -> None:
        machine = context.machine
        self.service = TransactionService(
            # The deletion clock is used for timeouts and expiry. With the wall clock, a forward jump of the
            # clock could abort transactions or let ids expire.
            machine.deletion_clock,
            transaction_settings(context.config),
            ports,
            machine.unexpected,
        )
        super().__init__("transactions", self.service.runtime, transactions_topic(context.config))

    def in_hand(self) -> Mapping[str, int]:
        return {"transactions to complete": self.service.completion.count}

    async def drain(self) -> None:
        """Unload the coordinators. Their new leaders continue to write the markers."""
        await self.service.close()
