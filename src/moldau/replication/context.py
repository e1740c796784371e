"""The dependencies of a broker's classic replicas."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey
from moldau.replication.leading import ReplicaListener
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.runtime.workers import Workers


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The context of a broker's replicas. All replicas with the same listener share it."""

    machine: Machine
    local_id: int
    """The broker's id."""
    arrivals: WaitingRoom[PartitionKey]
    meters: BrokerTopicMeters
    listener: ReplicaListener[Any] | None = None
    monotonic_ms: Callable[[], int] | None = None
    """Returns a monotonic time, by which the lag of followers is measured. The default is the wall clock."""
    cold_read_workers: Workers | None = None
    """Threads that load records from the disk for readers. The default is the threads of the machine."""
