"""Coordinators come and go with the leadership of the internal topics' partitions."""

from collections.abc import Mapping
from typing import Protocol

from moldau.coordinators.log import CoordinatorLog
from moldau.replication.classic import ClassicPartition
from moldau.replication.partition import Partition
from moldau.server.coordinator_logs import PartitionCoordinatorLog


class CoordinatorService(Protocol):
    """A kind of coordinator: one shard for each partition of its topic that is led here."""

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None: ...

    def unload(self, partition: int, epoch: int | None = None) -> None: ...


class CoordinatorLeadership:
    """Loads and unloads shards as this broker begins and ends to lead their partitions."""

    def __init__(self, services: Mapping[str, CoordinatorService]) -> None:
        self._services = services

    def leads(self, partition: Partition) -> None:
        service = self._services.get(partition.topic)
        if service is not None and isinstance(partition, ClassicPartition):
            log = PartitionCoordinatorLog(partition)
            service.load(partition.key.partition, partition.leader_epoch, log)

    def leads_no_more(self, topic: str, index: int) -> None:
        service = self._services.get(topic)
        if service is not None:
            service.unload(index)
