"""Stops this broker if its cluster was restored from the object store.

This does not depend on ``backup.enable``, because another broker may have saved the state that was restored.
"""

from moldau.backup.store_generations import LEASE_INTERVALS, GenerationFence
from moldau.runtime.repeating import Repeating
from moldau.server.context import BrokerContext
from moldau.server.subsystem import Subsystem
from moldau.server.subsystems.backup.peers import generation_of
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem

__all__ = ["GenerationSubsystem"]


class GenerationSubsystem(Subsystem):
    """Checks for a later generation of the cluster before this broker changes the store."""

    def __init__(
        self, context: BrokerContext, diskless: DisklessSubsystem, tiered: TieredSubsystem | None
    ) -> None:
        storage = diskless.manager.storage
        requests = context.meters.registry.scoped("moldau.objects", "ObjectStorage")
        uploads, deletions = (
            requests.counter("RequestsPerSec", operation=operation) for operation in ("upload", "delete")
        )
        interval_ms = context.config.integer("backup.interval.ms")
        self._fence = GenerationFence(
            storage,
            lambda: generation_of(context.view.image),
            lambda: uploads.value + deletions.value,
            context.fail,
            # A node that uploads or deletes objects checks in each interval whether the cluster has a later
            # generation. The result of a check is valid for the duration of the lease. The lease is longer
            # than an interval, so uploads do not have to wait for the next check.
            LEASE_INTERVALS * interval_ms / 1000,
        )
        storage.fence = self._fence
        if tiered is not None:
            tiered.storage.fence = self._fence
        # The check of the generation has its own loop. In the loop that makes the cuts, it would be late if a
        # cut waits for brokers that are down.
        self._watching = Repeating(
            "backup generation",
            self._fence.run_once,
            interval_ms,
            initial_delay_ms=0,
            unexpected=context.machine.unexpected,
        )

    async def serve(self) -> None:
        self._fence.has_metadata = True
        self._watching.start()

    async def stop(self) -> None:
        await self._watching.stop()
