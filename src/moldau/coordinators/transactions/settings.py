"""The broker configs of transactions, with Kafka's defaults, and the properties of their topic."""

from dataclasses import dataclass
from typing import Final

from moldau.cluster.internal_topics import TRANSACTION_STATE, InternalTopic
from moldau.config.broker import BrokerConfig

JOIN_WAIT_MAX_MS: Final = 30_000
"""After this time, clients give up a request by default (``request.timeout.ms``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Settings of transactions. Each field names its Kafka config."""

    topic_partitions: int = 50
    """``transaction.state.log.num.partitions``"""
    max_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``"""
    id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``"""
    timeout_check_interval_ms: int = 10_000
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``"""
    expiry_check_interval_ms: int = 3_600_000
    """``transaction.remove.expired.transaction.cleanup.interval.ms``"""
    join_wait_ms: int = 100
    """``add.partitions.to.txn.retry.backoff.max.ms``: the maximum time that a request to add partitions waits
    for the end of the producer's last transaction. With 0, such a request is refused immediately."""
    max_record_bytes: int = 1_000_000
    """Maximum size of the state of one transactional id. The state must fit in a batch of the topic."""


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
        join_wait_ms=min(config.integer("add.partitions.to.txn.retry.backoff.max.ms"), JOIN_WAIT_MAX_MS),
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
