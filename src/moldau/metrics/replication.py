"""Kafka's meters of in-sync sets."""

from moldau.metrics.registry import Meters

__all__ = ["InSyncMeters"]


class InSyncMeters:
    """Meters for the changes of in-sync sets that leaders on this broker have requested."""

    __slots__ = ("expands", "failures", "shrinks")

    def __init__(self, meters: Meters) -> None:
        """``meters`` is any scope of the node's registry."""
        scoped = meters.scoped("kafka.server", "ReplicaManager")
        self.shrinks = scoped.counter("IsrShrinksPerSec")
        self.expands = scoped.counter("IsrExpandsPerSec")
        self.failures = scoped.counter("FailedIsrUpdatesPerSec")

    def committed(self, before: int, after: int) -> None:
        """Count a committed change. The arguments are the numbers of in-sync replicas before and after the
        change."""
        if after < before:
            self.shrinks.value += 1
        elif after > before:
            self.expands.value += 1
