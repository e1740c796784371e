"""The backup of the cluster's own logs. This broker saves the logs that it leads, and it may make the
cuts."""

import asyncio
from typing import Final

from moldau.backup.calls import CALLS, LogSaving
from moldau.backup.cut_maker import CutMaker, CutSettings
from moldau.backup.log_saver import LogSaver
from moldau.backup.saved_rounds import SavedRounds
from moldau.cluster.internal_topics import STATE_TOPICS
from moldau.config.broker import BrokerConfig
from moldau.network.own_serving import BrokerCallHandlers
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.repeating import Repeating
from moldau.server.context import BrokerContext
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.backup.peers import BackupPeers
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem

LATE_INTERVALS: Final = 6
"""If no state of the cluster was saved for this number of backup intervals, the health check fails."""
LATE_MIN_MS: Final = 60_000


class BackupSubsystem(Subsystem):
    """Saves the metadata, and the logs of the topics in ``STATE_TOPICS``, in the store of diskless topics."""

    def __init__(
        self, context: BrokerContext, diskless: DisklessSubsystem, tiered: TieredSubsystem | None
    ) -> None:
        assert diskless.saved_ends is not None
        self._partitions = context.partitions
        self._authorizer = context.authorizer
        storage = diskless.manager.storage
        self._rounds = SavedRounds(asyncio.get_running_loop().time)
        if tiered is not None:
            tiered.manager.context.pending_deletions.wait = self._rounds.wait
        self.saver = LogSaver(
            storage, self._partition, diskless.saved_ends, self._rounds, context.logs.cleaner_offset
        )
        self.meters = context.meters.registry.scoped("moldau.backup", "Cuts")
        self.meters.gauge(
            "LagBytes",
            lambda: self.saver.lag_bytes,
            "Bytes of the logs of this broker that are not in the newest saved state, as of the last save.",
        )
        self._peers = BackupPeers.of(context, self.saver)
        settings = cut_settings(context.config)
        self.maker = CutMaker(context.machine, storage, self._peers, settings, context.meters.registry)
        unexpected, interval_ms = context.machine.unexpected, settings.interval_ms
        self._late_ms = max(LATE_INTERVALS * settings.interval_ms, LATE_MIN_MS)
        # The first round runs without a delay, because it detects whether this node's folders are an older
        # copy.
        self._repeating = Repeating(
            "backup", self.maker.run_once, interval_ms, initial_delay_ms=0, unexpected=unexpected
        )

    def _partition(self, log_id: PartitionKey) -> ClassicPartition | None:
        found = self._partitions.get_by_id(*log_id)
        is_saved = isinstance(found, ClassicPartition) and found.topic in STATE_TOPICS
        return found if is_saved else None  # type: ignore[return-value]

    def contribution(self) -> Contribution:
        calls = BrokerCallHandlers[LogSaving](CALLS, self.saver, self._authorizer)
        return Contribution(calls=[calls], checks={"backup": self._problem})

    def _problem(self) -> str | None:
        waiting_s = self._rounds.waiting_s
        lag_ms = self.maker.lag_ms
        if lag_ms is None and 1000 * waiting_s > self._late_ms:
            return f"remote segments wait {waiting_s:.0f} s for their deletion, because no state was saved"
        if lag_ms is None or lag_ms <= self._late_ms:
            return None
        return (
            f"the last saved state of the cluster is {lag_ms / 1000:.0f} s old, and objects are deleted only"
            f" after a save: {self.maker.last_error}"
        )

    async def serve(self) -> None:
        self._repeating.start()

    async def stop(self) -> None:
        await self._repeating.stop()
        await self._peers.close()


def cut_settings(config: BrokerConfig) -> CutSettings:
    """The settings of the backup, from the keys ``backup.*``."""
    return CutSettings(
        interval_ms=config.integer("backup.interval.ms"), retention_ms=config.integer("backup.retention.ms")
    )
