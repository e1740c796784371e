"""Meters of a broker's partition chunks."""

from moldau.metrics import Meters

__all__ = ["ChunkMeters"]


class ChunkMeters:
    """Counters of the work on chunks. The gauges are registered by the subsystem."""

    def __init__(self, meters: Meters) -> None:
        """``meters`` is any scope of the node's registry."""
        reads, copies = meters.scoped("moldau.chunks", "Reads"), meters.scoped("moldau.chunks", "Copies")
        self.proxied_bytes = reads.counter(
            "ProxiedBytesPerSec", "Bytes of chunks that other brokers have read for consumers of this broker."
        )
        self.local_bytes = reads.counter(
            "LocalBytesPerSec", "Bytes of chunks that this broker has read for its consumers."
        )
        self.redirects = reads.counter(
            "RedirectsPerSec", "Consumers that were sent to another broker that has the chunk."
        )
        self.copied_bytes = copies.counter("BytesPerSec", "Bytes of chunks copied from other brokers.")
        self.copy_failures = copies.counter("FailuresPerSec", "Copies that failed. They begin again.")
        self.pause_ms = meters.scoped("moldau.chunks", "Creations").histogram(
            "PauseTimeMs", "Time for which the producers of a partition waited because a chunk ended."
        )
