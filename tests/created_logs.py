"""Logs that a test creates in a log manager."""

import uuid

from moldau.protocol.partitions import TopicPartition
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager, NewLog


async def get_or_create(
    manager: LogManager, topic_partition: TopicPartition, config: LogConfig, topic_id: uuid.UUID
) -> PartitionLog:
    """The partition's log with this configuration. It is created if it does not exist.

    Raises ``KafkaError(kafka_storage_error)``.
    """
    for error in (await manager.create([NewLog(topic_partition, config, topic_id)])).values():
        raise error
    return manager.use(topic_partition, config)
