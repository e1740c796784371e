"""Periodic work of a coordinator: snapshots, and expiry of old state."""

import asyncio
import logging
from dataclasses import dataclass

from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.runtime import KafkaError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """Thresholds of upkeep. A record of 500 batches takes about 5 KB of the log."""

    check_interval_ms: int = 10_000
    snapshot_records: int = 20_000
    """Take a snapshot after so many records (100 MB of full files) ..."""
    snapshot_interval_ms: int = 3_600_000
    """... or after this time, if there was any."""


class Upkeep:
    """Runs until closed; a failure is logged and tried again at the next check."""

    def __init__(self, service: DisklessCoordinator, settings: UpkeepSettings | None = None) -> None:
        self._service = service
        self._settings = settings or UpkeepSettings()
        self._snapshot_at: dict[int, float] = {}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="diskless coordinator upkeep")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            for coordinator_id in self._service.coordinator_ids:
                try:
                    await self.check(coordinator_id)
                except KafkaError as error:
                    logger.info("Upkeep of coordinator %d has to wait: %s", coordinator_id, error)
                except Exception:
                    logger.exception("Upkeep of coordinator %d failed.", coordinator_id)

    async def check(self, coordinator_id: int) -> None:
        """One round for one coordinator."""
        service, settings = self._service, self._settings
        if not service.is_active(coordinator_id):
            return
        await service.forget_old(coordinator_id)
        now = asyncio.get_running_loop().time()
        last = self._snapshot_at.setdefault(coordinator_id, now)
        records = service.records_since_snapshot(coordinator_id)
        overdue = records > 0 and now - last >= settings.snapshot_interval_ms / 1000
        if records >= settings.snapshot_records or overdue:
            self._snapshot_at[coordinator_id] = now
            await service.snapshot(coordinator_id)
