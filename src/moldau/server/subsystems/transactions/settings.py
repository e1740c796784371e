"""Converts ``transaction.*`` to the settings of transaction coordinators."""

from moldau.cluster.internal_topics import TRANSACTION_STATE
from moldau.config.broker import BrokerConfig
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.server.topics.topic_creation import InternalTopic


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """Settings of transactions."""
    return TransactionSettings(
        topic_partitions=config.integer("transaction.state.log.num.partitions"),
        max_timeout_ms=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        timeout_check_interval_ms=config.integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        expiry_check_interval_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


def transactions_topic(config: BrokerConfig) -> InternalTopic:
    """The properties of ``__transaction_state`` at its creation."""
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
