"""``moldau pipeline orphans``: finds objects that no coordinator refers to, by listing the store in parallel.

A task lists one shard of the store. For the objects that are old enough, the task asks every coordinator
whether the coordinator refers to them. The brokers' own scan follows the same rules. If tasks of a sink are
killed, their parts (objects for the driver of the sink) may remain. No coordinator refers to parts, so only
the age of parts is checked. Nothing is removed by default. The cluster's brokers must have claimed the
location in the store. Otherwise every object there would look like an orphan, so the scan refuses to check
that location.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.client.cluster import Client, connected, parse_bootstrap
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.object_keys import wal_folders
from moldau.diskless.store_claim import StoreClaim
from moldau.diskless.upkeep.orphans import OrphanReport, OrphanScan, OrphanSettings
from moldau.metrics import Meters
from moldau.objects.factory import StorageSettings, open_storage
from moldau.objects.storage import StorageError
from moldau.pipeline.checks.tier_orphans import ScanTier, TierFolder, TierReport
from moldau.pipeline.reading.tier_segments import TIER_ENABLED, Tier, find_tier
from moldau.pipeline.reading.wal_access import broker_config, find_storage
from moldau.pipeline.sink_keys import SINK_PREFIX, is_part
from moldau.pipeline.unit_runs import RunUnits
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.machine import Machine

GRACE: Final = "diskless.coordinator.orphan.scan.grace.period.ms"
OBJECTS_MAX: Final = 2**62
PARTS_FOLDER: Final = f"{SINK_PREFIX}/"
EXAMPLES_MAX: Final = 100
TIER_AGE_MS: Final = 3_600_000
"""Minimum age of orphans in the tier. It is longer than any lease, because younger objects may still be in
use."""
PARTS_GRACE_MS: Final = 24 * 60 * 60 * 1000
"""Default grace period of parts. It must be longer than any batch or job of a sink, because the driver needs
the parts until the end of the batch or job. A batch or job that takes longer than the grace period fails, but
no record is written twice or lost."""


@dataclass(frozen=True, slots=True)
class OrphansJob:
    """Options of a scan. If ``older_than_ms`` is ``None``, the brokers' grace period applies."""

    bootstrap: str
    delete: bool = False
    older_than_ms: int | None = None
    timeout_s: float = 30.0
    storage: Mapping[str, str] = field(default_factory=dict)


class FixedClock:
    """A clock that always shows the driver's time. With its own clock, a task that starts late would see the
    objects as older."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


@dataclass(frozen=True, slots=True)
class ScanFolders:
    """Scans one folder of the store. It is sent to the tasks."""

    bootstrap: str
    storage: StorageSettings
    coordinator_ids: Sequence[int]
    settings: OrphanSettings
    now_ms: int
    delete: bool
    timeout_s: float
    parts_age_ms: int = PARTS_GRACE_MS

    def __call__(self, folder: str) -> OrphanReport:
        return asyncio.run(self._scan_parts() if folder == PARTS_FOLDER else self._scan(folder))

    async def _scan_parts(self) -> OrphanReport:
        storage = open_storage(self.storage, Machine.real(), Meters())
        report = OrphanReport()
        before_ms = self.now_ms - self.parts_age_ms
        try:
            async for page in storage.list(PARTS_FOLDER):
                parts = [info for info in page if is_part(info.key)]
                old = [info for info in parts if info.last_modified_ms < before_ms]
                report.listed += len(parts)
                report.old += len(old)
                report.orphans += len(old)
                report.orphan_bytes += sum(info.size_bytes for info in old)
                report.examples += [info.key for info in old][: EXAMPLES_MAX - len(report.examples)]
                if self.delete and old:
                    await storage.delete([info.key for info in old])
                    report.deleted += len(old)
        finally:
            await storage.close()
        return report

    async def _scan(self, folder: str) -> OrphanReport:
        client = Client(parse_bootstrap(self.bootstrap), self.timeout_s)
        storage = open_storage(self.storage, Machine.real(), Meters())
        try:
            scan = OrphanScan(
                storage,
                DisklessCoordinators(client),
                lambda: self.coordinator_ids,
                FixedClock(self.now_ms),
                self.settings,
                Meters(),
            )
            report = await scan.run_folder(folder, dry_run=not self.delete)
            report.examples = report.examples[:EXAMPLES_MAX]
            return report
        finally:
            await storage.close()
            await client.close()


def reconcile_deletions(job: OrphansJob, run: RunUnits, clock: Clock | None = None) -> dict[str, Any]:
    """Scan the whole store; returns the findings as JSON. Raises ``ToolError`` and ``KafkaError``."""
    scan = asyncio.run(_prepare(job, clock or SystemClock()))
    reports: list[OrphanReport] = run(scan, [*wal_folders(), PARTS_FOLDER])
    total = OrphanReport()
    for report in reports:
        for one in dataclasses.fields(OrphanReport):
            found = getattr(report, one.name)
            if not isinstance(found, bool):
                setattr(total, one.name, getattr(total, one.name) + found)
        total.is_complete = total.is_complete and report.is_complete
    in_tier = _scan_tier(job, scan, run)
    return {
        "objects": total.listed,
        "old": total.old,
        "known": total.known,
        "foreign": total.foreign,
        "unanswered": total.unanswered,
        "orphans": total.orphans,
        "orphan_bytes": total.orphan_bytes,
        "deleted": total.deleted,
        "older_than_ms": scan.settings.min_age_ms,
        "examples": sorted(total.examples)[:EXAMPLES_MAX],
        "tier_objects": sum(one.listed for one in in_tier),
        "tier_old": sum(one.old for one in in_tier),
        "tier_orphans": sum(len(one.orphans) for one in in_tier),
        "tier_orphan_bytes": sum(one.orphan_bytes for one in in_tier),
        "tier_examples": sorted(key for one in in_tier for key in one.orphans)[:EXAMPLES_MAX],
    }


def _scan_tier(job: OrphansJob, scan: ScanFolders, run: RunUnits) -> Sequence[TierReport]:
    """Scan the tier's objects. The result is empty if the segments are not stored by the built-in storage
    manager."""
    tier, folders = asyncio.run(_tier_of(job, scan))
    if tier is None or not folders:
        return ()
    before_ms = scan.now_ms - max(scan.settings.min_age_ms, TIER_AGE_MS)
    found: list[TierReport] = run(ScanTier(job.bootstrap, tier, before_ms, job.timeout_s), folders)
    return found


async def _tier_of(job: OrphansJob, scan: ScanFolders) -> tuple[Tier | None, list[TierFolder]]:
    async with connected(job.bootstrap, job.timeout_s) as client:
        if await broker_config(client, TIER_ENABLED) != "true":
            return None, []
        tier = await find_tier(client, job.storage, scan.storage)
        partitions: dict[tuple[str, UUID], list[int]] = {}
        for coordinator_id in scan.coordinator_ids:
            described = await DisklessCoordinators(client).describe_topics(coordinator_id)
            for one in described.partitions:
                partitions.setdefault((one.topic_name, one.topic_id), []).append(one.partition_index)
    return tier, [TierFolder(name, id, tuple(sorted(some))) for (name, id), some in partitions.items()]


async def _prepare(job: OrphansJob, clock: Clock) -> ScanFolders:
    async with connected(job.bootstrap, job.timeout_s) as client:
        coordinator_ids = list(await DisklessCoordinators(client).ids())
        grace_ms = job.older_than_ms
        if grace_ms is None:
            grace_ms = int(await broker_config(client, GRACE) or 0)
        rules = CoordinatorTimes()
        settings = OrphanSettings(
            rules.max_commit_age_ms, rules.clock_skew_ms, grace_ms, max_objects=OBJECTS_MAX
        )
        storage = await find_storage(client, job.storage)
        await _check_claim(storage, str((await client.metadata([])).cluster_id))
        return ScanFolders(
            job.bootstrap,
            storage,
            coordinator_ids,
            settings,
            clock.now_ms(),
            job.delete,
            job.timeout_s,
            PARTS_GRACE_MS if job.older_than_ms is None else settings.min_age_ms,
        )


async def _check_claim(settings: StorageSettings, cluster_id: str) -> None:
    storage = open_storage(settings, Machine.real(), Meters())
    try:
        await StoreClaim(storage, cluster_id, settings.url).check()
    except StorageError as error:
        raise ToolError(str(error)) from error
    finally:
        await storage.close()
