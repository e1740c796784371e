"""The broker configs of transactions, with Kafka's defaults."""

from dataclasses import dataclass


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
    max_record_bytes: int = 1_000_000
    """The largest state of one transactional id, which must fit in a batch of the topic."""
