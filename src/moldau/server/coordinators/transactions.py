"""Transaction coordinators, over ``__transaction_state``."""

from moldau.cluster.internal_topics import TRANSACTION_STATE
from moldau.config.broker import BrokerConfig
from moldau.coordinators.transactions.service import TransactionService
from moldau.server.coordinators.entry import CoordinatorEntry, entry_of
from moldau.server.requests.dispatch import HandlerTable
from moldau.server.topics.topic_creation import InternalTopic


def transaction_coordinators(
    config: BrokerConfig, service: TransactionService, handlers: HandlerTable
) -> CoordinatorEntry:
    """The kind that decides the outcomes of transactions."""
    return entry_of(service.runtime, transactions_topic(config), handlers)


def transactions_topic(config: BrokerConfig) -> InternalTopic:
    """How ``__transaction_state`` is made."""
    factor = config.integer(TRANSACTION_STATE.factor_key)
    return InternalTopic.of(
        TRANSACTION_STATE,
        config.integer("transaction.state.log.num.partitions"),
        factor,
        {
            "compression.type": "uncompressed",
            "segment.bytes": str(config.integer("transaction.state.log.segment.bytes")),
            "min.insync.replicas": str(min(config.integer("transaction.state.log.min.isr"), factor)),
        },
    )
