"""Replicas of one partition on real files, and the fetches between them."""

import pathlib
from uuid import UUID

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.policy import WRITTEN, ReplicaPolicy
from moldau.replication.partition_interface import AppendAnswer, ReadOutcome
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import InlineWorkers, LocalDisk, Machine, Workers
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SeededEntropy
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.partition_log import PartitionLog
from replica_fetches import fetch_once


def batch(value: bytes) -> bytes:
    return build_batch([Record(0, 1_700_000_000_000, b"k", value, ())])


class Replicas:
    """Replicas 1 to ``count`` of a partition."""

    def __init__(
        self,
        folder: pathlib.Path,
        policy: ReplicaPolicy = WRITTEN,
        *,
        count: int = 2,
        min_in_sync: int = 2,
        workers: Workers | None = None,
    ) -> None:
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers or InlineWorkers())
        self.ids = tuple(range(1, count + 1))
        self.partitions = {
            id: ClassicPartition(
                ReplicaContext(
                    machine, id, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
                ),
                PartitionKey(UUID(int=1), 0),
                PartitionLog.open(machine, str(folder / f"{id}" / "t-0"), TopicPartition("t", 0)),
                min_in_sync=min_in_sync,
                high_watermark=0,
                policy=policy,
            )
            for id in self.ids
        }

    def lead(self, leader: int, epoch: int, in_sync: tuple[int, ...] | None = None) -> None:
        """Let a replica lead in a new epoch. By default, all replicas are in sync."""
        for id, partition in self.partitions.items():
            if id == leader:
                partition.become_leader(epoch, self.ids, in_sync or self.ids, epoch)
            else:
                partition.follow(epoch, leader)

    async def fetch(self, follower: int) -> ReadOutcome:
        """Make one fetch and process its response, as a fetcher does."""
        replica = self.partitions[follower]
        leader_id = replica.following.position().leader_id
        return await fetch_once(replica, follower, self.partitions[leader_id])

    def produce(self, leader: int, value: bytes, acks: int = 1) -> AppendAnswer:
        return self.partitions[leader].append(memoryview(batch(value)), required_acks=acks, timeout_ms=60_000)

    def append_own(self, leader: int, value: bytes) -> int:
        record = batch(value)
        info = self.partitions[leader].append_own(record, [parse_header(record)], AppendOrigin.COORDINATOR)
        return info.first_offset

    async def settled(self) -> None:
        for partition in self.partitions.values():
            await partition.settled()

    def end(self, id: int) -> int:
        return self.partitions[id].log.log_end_offset

    def content(self, id: int, end_offset: int | None = None) -> bytes:
        read = self.partitions[id].log.read(0, 1 << 24, upper_bound_offset=end_offset)
        return b"".join(read.views)
