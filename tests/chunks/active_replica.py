"""A replica of an active chunk, with its log on a real disk."""

from pathlib import Path
from uuid import UUID

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import InlineWorkers, LocalDisk, Machine
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SeededEntropy
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.partition_log import PartitionLog

KEY = PartitionKey(UUID(int=1), 0)


def machine() -> Machine:
    """The real clock and disk. Jobs for threads run immediately."""
    return Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())


def append(log: PartitionLog, count: int, timestamp_ms: int) -> None:
    """Append committed batches of one record."""
    for _ in range(count):
        batch = build_batch([Record(0, timestamp_ms, None, b"v", ())])
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
        log.high_watermark = log.log_end_offset


async def active(
    folder: Path, count: int = 5, timestamp_ms: int = 1_700_000_000_000, key: PartitionKey = KEY
) -> ClassicPartition:
    """The replica of an active chunk that begins at offset 20. The log of the replica still has 0 as its
    first offset."""
    log = PartitionLog.open(machine(), str(folder / f"t-{key.partition}"), TopicPartition("t", key.partition))
    await log.begin_behind_remote(AuxiliaryState(20, 0, [], ()))
    log.start.has_chunks = True
    append(log, count, timestamp_ms)
    context = ReplicaContext(machine(), 1, WaitingRoom(), BrokerTopicMeters(Meters()))
    return ClassicPartition(context, key, log, min_in_sync=1, high_watermark=log.log_end_offset)
