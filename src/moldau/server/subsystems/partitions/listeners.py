"""Listeners that learn which partitions this broker leads, and where their logs are."""

from typing import Protocol
from uuid import UUID

from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import PartitionKey


class LeadershipListener(Protocol):
    """A listener for replicas whose logs belong to coordinators. It is called at each change of the metadata,
    and learns whether this broker leads the replica's partition."""

    def leads(self, partition: ClassicPartition, epoch: int) -> None: ...

    def no_longer_leads(self, topic: str, topic_id: UUID, index: int, epoch: int) -> None: ...


class AssignmentListener(Protocol):
    """A listener that learns the log directories of replicas."""

    def put(self, key: PartitionKey, directory_id: UUID) -> None: ...

    def forget(self, key: PartitionKey) -> None: ...
