"""``moldau pipeline orphans``: objects that no coordinator knows, found by listing the store in parallel.

A task lists one shard of the store and asks every coordinator about what is old enough, as the brokers' own
scan does; the rules by which an object is judged are that scan's. Nothing is removed unless told.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.cluster import Client, connected, parse_bootstrap
from moldau.coordinators.diskless.files import DisklessSettings
from moldau.diskless.object_keys import wal_folders
from moldau.diskless.orphans import OrphanReport, OrphanScan, OrphanSettings
from moldau.metrics import Meters
from moldau.objects.factory import StorageSettings, open_storage
from moldau.pipeline.reading.coordinator_calls import CoordinatorCalls
from moldau.pipeline.reading.wal_access import broker_config, find_storage
from moldau.pipeline.running import RunUnits
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.machine import Machine

GRACE: Final = "diskless.coordinator.orphan.scan.grace.period.ms"
OBJECTS_MAX: Final = 2**62
EXAMPLES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OrphansJob:
    """What is scanned. Times in seconds and milliseconds; ``older_than_ms`` ``None``: the brokers' grace."""

    bootstrap: str
    delete: bool = False
    older_than_ms: int | None = None
    timeout_s: float = 30.0
    storage: Mapping[str, str] = field(default_factory=dict)


class FixedClock:
    """The driver's time: a task that starts late must not think objects older than the driver did."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


@dataclass(frozen=True, slots=True)
class ScanFolders:
    """Scans one folder of the store; it travels to the tasks."""

    bootstrap: str
    storage: StorageSettings
    coordinator_ids: Sequence[int]
    settings: OrphanSettings
    now_ms: int
    delete: bool
    timeout_s: float

    def __call__(self, folder: str) -> OrphanReport:
        return asyncio.run(self._scan(folder))

    async def _scan(self, folder: str) -> OrphanReport:
        client = Client(parse_bootstrap(self.bootstrap), self.timeout_s)
        storage = open_storage(self.storage, Machine.real(), Meters())
        try:
            scan = OrphanScan(
                storage,
                CoordinatorCalls(client),
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


def find_orphans(job: OrphansJob, run: RunUnits, clock: Clock | None = None) -> dict[str, Any]:
    """Scan the whole store; what was found, as JSON. Raises ``ToolError`` and ``KafkaError``."""
    scan = asyncio.run(_prepare(job, clock or SystemClock()))
    reports: list[OrphanReport] = run(scan, wal_folders())
    total = OrphanReport()
    for report in reports:
        for one in dataclasses.fields(OrphanReport):
            found = getattr(report, one.name)
            if not isinstance(found, bool):
                setattr(total, one.name, getattr(total, one.name) + found)
        total.is_complete = total.is_complete and report.is_complete
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
    }


async def _prepare(job: OrphansJob, clock: Clock) -> ScanFolders:
    async with connected(job.bootstrap, job.timeout_s) as client:
        coordinator_ids = list(await CoordinatorCalls(client).ids())
        grace_ms = job.older_than_ms
        if grace_ms is None:
            grace_ms = int(await broker_config(client, GRACE) or 0)
        rules = DisklessSettings()
        settings = OrphanSettings(
            rules.max_commit_age_ms, rules.clock_skew_ms, grace_ms, max_objects=OBJECTS_MAX
        )
        return ScanFolders(
            job.bootstrap,
            await find_storage(client, job.storage),
            coordinator_ids,
            settings,
            clock.now_ms(),
            job.delete,
            job.timeout_s,
        )
