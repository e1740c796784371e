"""Partitions of ``__diskless_metadata`` on this broker. They are the logs of the diskless coordinators."""

from collections.abc import Callable, Mapping
from typing import Final

from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.leading import ReplicaListener
from moldau.replication.throttling import ReplicationQuota
from moldau.server.context import BrokerContext
from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.storage.log.config import LogConfig

METADATA_LOG_CONFIG: Final = LogConfig(
    segment_bytes=64 * 1024**2,
    retention_ms=-1,
    retention_bytes=-1,
    cleanup_delete=False,
    max_message_bytes=2**31 - 1,
)
"""The settings of a coordinator's log. Only snapshots move the start of the log."""


class MetadataReplicas:
    """A :class:`ReplicaListener` for the coordinators' logs. On a follower of such a log, a standby maintains
    the coordinator's state."""

    def __init__(
        self, replication: ReplicaListener[ClassicPartition], coordinators: DisklessCoordinator
    ) -> None:
        self._replication = replication
        self._runtime = coordinators.runtime

    @property
    def active_brokers(self) -> Mapping[int, int]:
        return self._replication.active_brokers

    @property
    def leader_quota(self) -> ReplicationQuota:
        return self._replication.leader_quota

    def role_changed(self, partition: ClassicPartition) -> None:
        self._replication.role_changed(partition)
        if partition.leader_to_follow is not None:
            self._runtime.stand_by(partition)
        else:
            self._runtime.stand_down(partition.key.partition)

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int]) -> int:
        return self._replication.nearest_replica(client_rack, end_offsets)

    def outsider_fetched(self, partition: ClassicPartition) -> None:
        self._replication.outsider_fetched(partition)


def metadata_kind_of(
    context: BrokerContext, min_in_sync: Callable[[], int], replicas: MetadataReplicas
) -> ClassicKind:
    """Make the kind of the partitions of ``__diskless_metadata`` for a broker; see
    :func:`diskless_metadata_kind`."""
    return diskless_metadata_kind(ReplicaHost.of(context), min_in_sync, replicas)


def diskless_metadata_kind(
    host: ReplicaHost, min_in_sync: Callable[[], int], replicas: MetadataReplicas | None = None
) -> ClassicKind:
    """Make the kind of the coordinators' logs. A record counts as replicated only when it is synced, and the
    log start moves only with snapshots.

    ``min_in_sync`` returns the topic's ``min.insync.replicas``. ``replicas`` are notified of their roles.
    """
    return ClassicKind(
        host,
        lambda _: METADATA_LOG_CONFIG,
        lambda _: min_in_sync(),
        has_snapshots=True,
        listener=replicas,
    )
