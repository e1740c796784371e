"""Meters of the remote tier, under the names of KIP-405, KIP-930 and KIP-956."""

from collections.abc import Callable
from dataclasses import dataclass

from moldau.metrics import Meters
from moldau.metrics.meters import Counter
from moldau.tiered.work_pool import WorkPool

__all__ = ["PartitionGauges", "TieredMeters"]


@dataclass(slots=True)
class PartitionGauges:
    """The last values of a partition's tasks. The metrics are the sums over all partitions."""

    copy_lag_bytes: int = 0
    copy_lag_segments: int = 0
    delete_lag_bytes: int = 0
    delete_lag_segments: int = 0
    metadata_count: int = 0
    size_bytes: int = 0
    size_computation_ms: float = 0.0


_GAUGES = {
    "RemoteCopyLagBytes": lambda gauges: gauges.copy_lag_bytes,
    "RemoteCopyLagSegments": lambda gauges: gauges.copy_lag_segments,
    "RemoteDeleteLagBytes": lambda gauges: gauges.delete_lag_bytes,
    "RemoteDeleteLagSegments": lambda gauges: gauges.delete_lag_segments,
    "RemoteLogMetadataCount": lambda gauges: gauges.metadata_count,
    "RemoteLogSizeBytes": lambda gauges: gauges.size_bytes,
    "RemoteLogSizeComputationTime": lambda gauges: gauges.size_computation_ms,
}  # type: dict[str, Callable[[PartitionGauges], float]]


_COUNTERS = (
    "RemoteCopyBytesPerSec",
    "RemoteCopyErrorsPerSec",
    "RemoteCopyRequestsPerSec",
    "RemoteDeleteErrorsPerSec",
    "RemoteDeleteRequestsPerSec",
    "RemoteFetchBytesPerSec",
    "RemoteFetchErrorsPerSec",
    "RemoteFetchRequestsPerSec",
)


class TieredMeters:
    """Counters and gauges, by topic and for all topics. Gauges are summed over partitions."""

    def __init__(self, meters: Meters, has_topic: Callable[[str], bool] = lambda _: True) -> None:
        """``meters`` is any scope of the node's registry.

        ``has_topic`` is false for a deleted topic. Work that is still in progress must not create the metrics
        of such a topic again.
        """
        self._has_topic = has_topic
        self._topics = meters.scoped("kafka.server", "BrokerTopicMetrics")
        self._manager = meters.scoped("kafka.log.remote", "RemoteLogManager")
        self._pool = meters.scoped("org.apache.kafka.storage.internals.log", "RemoteStorageThreadPool")
        self._gauges: dict[str, dict[int, PartitionGauges]] = {}
        self._counters: dict[tuple[str, str], tuple[Counter, ...]] = {}
        self.fetch_time_ms = self._manager.histogram(
            "RemoteLogReaderFetchRateAndTimeMs", "Time from the request of a remote read to its records."
        )
        self.copy_throttle_ms = self._manager.histogram(
            "remote-copy-throttle-time", "Time that copies waited because of their quota."
        )
        self.fetch_throttle_ms = self._manager.histogram(
            "remote-fetch-throttle-time", "Time that remote reads waited because of their quota."
        )
        for name, read in _GAUGES.items():
            self._topics.gauge(name, lambda read=read: self._sum(read))  # type: ignore[misc]
        # The errors are registered from the start with the value 0. Otherwise a monitor could not see that
        # there are no errors.
        for name in _COUNTERS:
            self._topics.counter(name)
        self._expired_fetches = meters.scoped("kafka.server", "DelayedRemoteFetchMetrics").counter(
            "ExpiresPerSec", "Remote reads that took longer than remote.fetch.max.wait.ms."
        )
        self._expired_lists = meters.scoped("kafka.server", "DelayedRemoteListOffsetsMetrics").counter(
            "ExpiresPerSec",
            "Searches by timestamp that did not end before the time-out of their request.",
        )

    # -- counters -----------------------------------------------------------------------------

    def _count(self, name: str, topic: str, amount: float = 1) -> None:
        pair = self._counters.get((name, topic))
        if pair is None:
            pair = (self._topics.counter(name),)
            if self._has_topic(topic):
                pair += (self._topics.counter(name, topic=topic),)
                self._counters[name, topic] = pair
        for counter in pair:
            counter.value += amount

    def copy_request(self, topic: str) -> None:
        self._count("RemoteCopyRequestsPerSec", topic)

    def copied(self, topic: str, size_bytes: int) -> None:
        self._count("RemoteCopyBytesPerSec", topic, size_bytes)

    def failed_copy(self, topic: str) -> None:
        self._count("RemoteCopyErrorsPerSec", topic)

    def delete_request(self, topic: str) -> None:
        self._count("RemoteDeleteRequestsPerSec", topic)

    def failed_delete(self, topic: str) -> None:
        self._count("RemoteDeleteErrorsPerSec", topic)

    def fetch_request(self, topic: str) -> None:
        self._count("RemoteFetchRequestsPerSec", topic)

    def fetched(self, topic: str, size_bytes: int, took_ms: float) -> None:
        self._count("RemoteFetchBytesPerSec", topic, size_bytes)
        self.fetch_time_ms.update(took_ms)

    def failed_fetch(self, topic: str) -> None:
        self._count("RemoteFetchErrorsPerSec", topic)

    def expired_fetch(self) -> None:
        self._expired_fetches.value += 1

    def expired_list_offsets(self) -> None:
        self._expired_lists.value += 1

    # -- gauges -------------------------------------------------------------------------------

    def watch_reader(self, pool: WorkPool) -> None:
        self._pool.gauge("RemoteLogReaderTaskQueueSize", lambda: pool.waiting_count)
        self._pool.gauge("RemoteLogReaderAvgIdlePercent", lambda: pool.idle_share)

    def watch_tasks(self, copier: WorkPool, expiration: WorkPool) -> None:
        self._manager.gauge("RemoteLogManagerTasksAvgIdlePercent", lambda: copier.idle_share)
        self._manager.gauge("RemoteLogManagerCopyTasksAvgIdlePercent", lambda: copier.idle_share)
        self._manager.gauge("RemoteLogManagerExpirationTasksAvgIdlePercent", lambda: expiration.idle_share)

    def gauges(self, topic: str, partition: int) -> PartitionGauges:
        """The gauges of a partition. They are created at the first call. If the topic no longer exists, they
        are not registered."""
        if not self._has_topic(topic):
            return PartitionGauges()
        by_partition = self._gauges.get(topic)
        if by_partition is None:
            by_partition = self._gauges[topic] = {}
            for name in _COUNTERS:
                self._topics.counter(name, topic=topic)
            for name, read in _GAUGES.items():
                self._topics.gauge(
                    name,
                    lambda read=read, parts=by_partition: sum(map(read, parts.values())),  # type: ignore[misc]
                    topic=topic,
                )
        return by_partition.setdefault(partition, PartitionGauges())

    def forget(self, topic: str, partition: int) -> None:
        """Remove the values of a partition whose remote data this broker no longer handles."""
        by_partition = self._gauges.get(topic)
        if by_partition is not None:
            by_partition.pop(partition, None)

    def remove(self, topic: str) -> None:
        """Remove all metrics of a deleted topic."""
        self._gauges.pop(topic, None)
        self._counters = {key: pair for key, pair in self._counters.items() if key[1] != topic}

    def _sum(self, read: Callable[[PartitionGauges], float]) -> float:
        return sum(read(gauges) for parts in self._gauges.values() for gauges in parts.values())
