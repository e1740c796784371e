"""Finds objects that no coordinator knows, and removes them when they can never be committed (KIP-1164).

An object is an orphan when all of these conditions hold:

1. Its upload began and ended long ago. The time since then is longer than the maximum age of a file at its
   commit plus the clocks' skew, and longer than the configured grace period. Therefore a commit by its
   uploader is now refused.
2. Every coordinator of the cluster has responded that it does not know the object.
3. After that, every coordinator has *logged* that the object is closed, and still does not know the object.
   Suppose that a commit was in progress during that time. If the commit has arrived, the object is known.
   Otherwise the commit is refused permanently.

If a coordinator does not respond, the objects that it may know are kept. A restored cluster may not know the
topics of some objects. These objects are kept, too (:mod:`moldau.diskless.kept_objects`).
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import ClosedFile, DescribedFile
from moldau.diskless.kept_objects import KeptObjects
from moldau.diskless.object_keys import WAL_PREFIX, parse_object_key, wal_folders
from moldau.metrics import Meters
from moldau.objects.storage import ObjectInfo, ObjectStorage, StorageError
from moldau.runtime import Clock, ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_ASKED_AT_A_TIME: Final = 500
_REPORTED_MAX: Final = 1_000


class FileWitness(Protocol):
    """Asks every coordinator of the cluster which files it knows."""

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> Sequence[DescribedFile]: ...

    async def close_files(self, coordinator_id: int, object_keys: Sequence[str]) -> Sequence[ClosedFile]: ...


@dataclass(frozen=True, slots=True)
class OrphanSettings:
    """The minimum age of orphans, and the size of a scan."""

    max_commit_age_ms: int
    clock_skew_ms: int
    grace_ms: int
    max_objects: int = 100_000
    """Maximum number of objects that one scan lists. The next scan continues after them."""
    prefix: str = WAL_PREFIX

    @property
    def min_age_ms(self) -> int:
        return max(self.max_commit_age_ms + self.clock_skew_ms, self.grace_ms)


@dataclass(slots=True)
class OrphanReport:
    """The results of a scan."""

    listed: int = 0
    """Number of listed objects."""
    old: int = 0
    """Number of listed objects that are old enough to be orphans."""
    foreign: int = 0
    """Number of objects with names that no broker creates. They are never deleted."""
    known: int = 0
    """Number of old objects that a coordinator knows."""
    orphans: int = 0
    orphan_bytes: int = 0
    kept: int = 0
    """Number of objects that no coordinator knows, but that a restore has put into the list of kept objects.
    They are not orphans."""
    deleted: int = 0
    unanswered: int = 0
    """Number of old objects for which at least one coordinator did not respond."""
    examples: list[str] = field(default_factory=list)
    """Keys of orphans. Only a limited number of keys is kept."""
    is_complete: bool = True
    """False if the scan has reached its maximum number of objects before the end."""


class OrphanScan:
    """Scans the store, with one scan at a time."""

    def __init__(
        self,
        storage: ObjectStorage,
        witness: FileWitness,
        coordinator_ids: Callable[[], Sequence[int]],
        clock: Clock,
        settings: OrphanSettings,
        meters: Meters,
    ) -> None:
        """``coordinator_ids`` returns all coordinators of the cluster, on this broker or on others."""
        self._storage = storage
        self._witness = witness
        self._coordinator_ids = coordinator_ids
        self._clock = clock
        self.settings = settings
        self._kept = KeptObjects(storage)
        self._resume_after: dict[str, str] = {}
        self.last_report: OrphanReport | None = None
        scope = meters.scoped("moldau.diskless", "Orphans")
        self._deleted = scope.counter(
            "DeletedPerSec", "Objects that were deleted because no coordinator referred to them."
        )
        self._deleted_bytes = scope.counter(
            "DeletedBytesPerSec", "Bytes of the objects that no coordinator referred to."
        )
        scope.gauge(
            "Found",
            lambda: self.last_report.orphans if self.last_report else 0,
            "Orphans that the last scan has found.",
        )

    async def run(self, *, dry_run: bool = False) -> OrphanReport:
        """A limited scan. With ``dry_run`` nothing is closed or deleted. Raises ``StorageError``."""
        report = OrphanReport()
        coordinator_ids = list(self._coordinator_ids())
        if not coordinator_ids:
            # Without partitions of the metadata topic there is no coordinator to ask, so nothing may be
            # deleted.
            return report
        for folder in wal_folders(self.settings.prefix):
            if not await self._scan_folder(folder, self._before_ms(), coordinator_ids, report, dry_run):
                report.is_complete = False
                break
        self.last_report = report
        if report.orphans:
            logger.info(
                "orphan scan: %d of %d objects are known to no coordinator, %d deleted",
                *(report.orphans, report.listed, report.deleted),
            )
        return report

    async def run_folder(self, folder: str, *, dry_run: bool) -> OrphanReport:
        """Scan one folder of :func:`wal_folders`. Several folders may be scanned in parallel."""
        report = OrphanReport()
        coordinator_ids = list(self._coordinator_ids())
        if coordinator_ids:
            report.is_complete = await self._scan_folder(
                folder, self._before_ms(), coordinator_ids, report, dry_run
            )
        return report

    def _before_ms(self) -> int:
        return self._clock.now_ms() - self.settings.min_age_ms

    async def _scan_folder(
        self,
        folder: str,
        before_ms: int,
        coordinator_ids: Sequence[int],
        report: OrphanReport,
        dry_run: bool,
    ) -> bool:
        """Scan a folder. Returns False when the scan's limit was reached in it."""
        waiting: list[ObjectInfo] = []
        start_after = self._resume_after.pop(folder, "")
        async for page in self._storage.list(folder, start_after=start_after):
            for info in page:
                report.listed += 1
                parsed = parse_object_key(info.key)
                if parsed is None:
                    report.foreign += 1
                elif parsed.created_ms < before_ms and info.last_modified_ms < before_ms:
                    report.old += 1
                    waiting.append(info)
            if len(waiting) >= _ASKED_AT_A_TIME:
                await self._classify(waiting, coordinator_ids, report, dry_run)
                waiting = []
            last = page[-1].key if page else ""
            parsed = parse_object_key(last)
            if parsed is not None and parsed.created_ms >= before_ms:
                break  # The keys are in order of time, so the following objects are younger.
            if report.listed >= self.settings.max_objects:
                self._resume_after[folder] = last
                break
        await self._classify(waiting, coordinator_ids, report, dry_run)
        return folder not in self._resume_after

    async def _classify(
        self,
        objects: Sequence[ObjectInfo],
        coordinator_ids: Sequence[int],
        report: OrphanReport,
        dry_run: bool,
    ) -> None:
        sizes = {info.key: info.size_bytes for info in objects}
        try:
            unknown = await self._unknown_to_all(list(sizes), coordinator_ids, self._ask)
            report.known += len(sizes) - len(unknown)
            kept = frozenset(await self._kept.among(unknown))
            report.kept += len(kept)
            unknown = [key for key in unknown if key not in kept]
            orphans = unknown
            if unknown and not dry_run:
                orphans = await self._unknown_to_all(unknown, coordinator_ids, self._close)
                report.known += len(unknown) - len(orphans)
        except (KafkaError, StorageError, OSError) as error:
            report.unanswered += len(sizes)
            logger.info("orphan scan: %d objects cannot be checked now: %s", len(sizes), error)
            return
        report.orphans += len(orphans)
        report.orphan_bytes += sum(sizes[key] for key in orphans)
        report.examples += orphans[: max(0, _REPORTED_MAX - len(report.examples))]
        if orphans and not dry_run:
            await self._storage.delete(orphans)
            report.deleted += len(orphans)
            self._deleted.value += len(orphans)
            self._deleted_bytes.value += sum(sizes[key] for key in orphans)

    @staticmethod
    async def _unknown_to_all(
        keys: list[str],
        coordinator_ids: Sequence[int],
        ask: Callable[[int, list[str]], Awaitable[list[str]]],
    ) -> list[str]:
        for coordinator_id in coordinator_ids:
            if not keys:
                break
            keys = await ask(coordinator_id, keys)
        return keys

    async def _ask(self, coordinator_id: int, keys: list[str]) -> list[str]:
        described = await self._witness.describe_files(coordinator_id, keys)
        known = {file.object_key for file in described if file.is_known or file.has_live_batches}
        _check_all_answered(keys, {file.object_key for file in described})
        return [key for key in keys if key not in known]

    async def _close(self, coordinator_id: int, keys: list[str]) -> list[str]:
        closed = await self._witness.close_files(coordinator_id, keys)
        _check_all_answered(keys, {file.object_key for file in closed})
        return [file.object_key for file in closed if file.error is ErrorCode.none]


def _check_all_answered(asked: Sequence[str], answered: set[str]) -> None:
    if not answered.issuperset(asked):
        raise KafkaError(ErrorCode.unknown_server_error, "a coordinator left objects out of its answer")
