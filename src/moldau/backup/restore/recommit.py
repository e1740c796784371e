"""Repeats the commits of WAL objects that are newer than a cut. It reads the batches from the footers of the
objects.

A batch that was acknowledged after the cut is in such an object, but no saved log has its offset. The objects
are committed in the order of their creation (:mod:`.commit_order`), by the usual rules for commits. An
idempotent batch is therefore committed only once, even if the cut already has the batch or several objects
contain it. Every other batch is restored at least once. The new offset of a batch may differ from its old
offset.

When a coordinator has no live batches of an old object any more, it forgets the outcome of the object's
commit. Such an object may still be in the store, because another coordinator has live batches of it. If an
object is so old that its outcome may have been forgotten before the cut, it was not committed after the cut,
and it is skipped.

Batches of transactions are skipped, because only the lost logs recorded whether a transaction was committed.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from moldau.backup.restore.commit_order import in_commit_order
from moldau.coordinators.diskless.calls import CREATE_TIME, LOG_APPEND_TIME, BatchToCommit, CommitFileCall
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.object_keys import WAL_PREFIX, parse_object_key, wal_folders
from moldau.diskless.wal import (
    TAIL_READ_BYTES,
    CorruptWalObjectError,
    WalBatch,
    WalObject,
    parse_object,
    tail_size_bytes,
)
from moldau.objects.storage import ObjectInfo, ObjectStorage
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import TRANSACTIONAL_BIT
from moldau.runtime import ErrorCode

logger = logging.getLogger(__name__)

__all__ = [
    "FoundObject",
    "ObjectWindow",
    "Recommit",
    "RecommitReport",
    "batches_with_owners",
    "deleted_objects",
    "find_objects",
    "list_objects",
]

_KEPT_NAMES: Final = 20
_FOOTERS_AT_A_TIME: Final = 256
_TASKS_AT_A_TIME: Final = 20_000
_FILES_AT_A_TIME: Final = 10_000


@dataclass(frozen=True, slots=True)
class FoundObject:
    """A WAL object, with the content of its footer."""

    info: ObjectInfo
    footer: WalObject

    @property
    def producer_id_max(self) -> int:
        """The highest producer id of the object's batches; -1 when no batch has a producer id."""
        return max((batch.producer_id for batch in self.footer.batches()), default=-1)


@dataclass(slots=True)
class RecommitReport:
    """The batches that were restored from the objects that are newer than the cut."""

    objects: int = 0
    """Number of objects in the :class:`ObjectWindow` of the restore, without the damaged objects. The cut
    already refers to some of these objects.
    """
    newest_ms: int | None = None
    """The creation time in ms of the newest object, by the clock of the broker that wrote it. ``None`` if
    there is no such object."""
    known_objects: int = 0
    batches: int = 0
    """Number of batches that were committed."""
    records: int = 0
    repeated_batches: int = 0
    """Number of batches of idempotent producers that the cut already contains."""
    refused_batches: int = 0
    transactional_batches: int = 0
    """Number of batches that were skipped because they belong to transactions. Batches that the cut already
    contains are not counted."""
    unknown_topics: dict[UUID, int] = field(default_factory=dict)
    """Topics that are not in the cut, with the number of their batches."""
    kept: dict[str, set[UUID]] = field(default_factory=dict)
    """Objects with batches of topics that are not in the cut. These objects are not deleted
    (:mod:`moldau.diskless.kept_objects`)."""
    damaged: list[str] = field(default_factory=list)
    """Objects whose footer cannot be read. Only a limited number of their names is kept."""


class ObjectWindow(NamedTuple):
    """The time window of the objects that a restore reads. An object is read if the time in its key or the
    store's time is in the window."""

    created_from_ms: int
    """Time by the clock of the broker that created the object."""
    stored_from_ms: int
    """Time by the clock of the store. It is used as well because the clocks of brokers may be wrong."""
    created_until_ms: int | None = None
    """Set only for a restore of an earlier state. Objects that are newer than this time are skipped."""

    def has(self, created_ms: int, stored_ms: int) -> bool:
        is_late = self.created_until_ms is not None and created_ms > self.created_until_ms
        return not is_late and (created_ms >= self.created_from_ms or stored_ms >= self.stored_from_ms)


async def list_objects(storage: ObjectStorage) -> list[ObjectInfo]:
    """All WAL objects of the store. Raises ``StorageError`` when the store fails."""
    return [
        info for folder in wal_folders(WAL_PREFIX) async for page in storage.list(folder) for info in page
    ]


async def find_objects(
    storage: ObjectStorage, listed: Iterable[ObjectInfo], window: ObjectWindow, report: RecommitReport
) -> list[FoundObject]:
    """The listed WAL objects of a window, in the order in which they must be committed.

    Raises ``StorageError`` when the store fails.
    """
    wanted: list[ObjectInfo] = []
    for info in listed:
        key = parse_object_key(info.key)
        if key is not None and window.has(key.created_ms, info.last_modified_ms):
            wanted.append(info)
    found = [each async for each in _read_footers(storage, wanted, report)]
    report.objects = len(found)
    report.newest_ms = max((each.footer.created_ms for each in found), default=None)
    # The objects are sorted by name. The name without its folders begins with the time of creation.
    return in_commit_order(sorted(found, key=lambda each: each.info.key.rpartition("/")[2]))


async def _read_footers(
    storage: ObjectStorage, wanted: Sequence[ObjectInfo], report: RecommitReport
) -> AsyncIterator[FoundObject]:
    """Read many footers concurrently. Each read begins as soon as another read ends, so that a slow read does
    not delay the others."""
    places = asyncio.Semaphore(_FOOTERS_AT_A_TIME)

    async def read(info: ObjectInfo) -> WalObject | None:
        async with places:
            return await _footer(storage, info, report)

    for start in range(0, len(wanted), _TASKS_AT_A_TIME):
        some = wanted[start : start + _TASKS_AT_A_TIME]
        for info, footer in zip(some, await asyncio.gather(*map(read, some)), strict=True):
            if footer is not None:
                yield FoundObject(info, footer)


async def _footer(storage: ObjectStorage, info: ObjectInfo, report: RecommitReport) -> WalObject | None:
    size_bytes = min(info.size_bytes, TAIL_READ_BYTES)
    try:
        if not size_bytes:
            # Some stores refuse to read a range of 0 bytes.
            raise CorruptWalObjectError("the object is empty")
        tail = await storage.fetch(info.key, info.size_bytes - size_bytes, size_bytes)
        needed = tail_size_bytes(tail, info.size_bytes)
        if needed > size_bytes:
            tail = await storage.fetch(info.key, info.size_bytes - needed, needed)
        return parse_object(tail, info.size_bytes)
    except CorruptWalObjectError as error:
        logger.warning("%s is left out: %s", info.key, error)
        report.damaged += [info.key] if len(report.damaged) < _KEPT_NAMES else []
        return None


async def deleted_objects(
    listed: Iterable[ObjectInfo], coordinators: DisklessCoordinator, coordinator_ids: Iterable[int]
) -> list[str]:
    """The keys of WAL objects that are not listed, although they have live batches in the state of the
    coordinators. The keys are ordered."""
    stored = {info.key for info in listed}
    deleted: set[str] = set()
    for coordinator_id in coordinator_ids:
        after_key = ""
        while files := await coordinators.list_files(coordinator_id, after_key, _FILES_AT_A_TIME):
            after_key = files[-1].object_key
            deleted.update(each.object_key for each in files if each.has_live_batches)
        deleted -= stored
    return sorted(deleted)


def batches_with_owners(
    found: FoundObject, owners: Mapping[PartitionKey, int], report: RecommitReport
) -> list[WalBatch]:
    """The batches of an object that belong to partitions in the cut. The other batches of the object are
    counted in the report. If there are such batches, the object is also listed in the report as an object to
    keep.
    """
    known: list[WalBatch] = []
    for batch in found.footer.batches():
        if PartitionKey(batch.topic_id, batch.partition_index) in owners:
            known.append(batch)
        else:
            report.unknown_topics[batch.topic_id] = report.unknown_topics.get(batch.topic_id, 0) + 1
            report.kept.setdefault(found.info.key, set()).add(batch.topic_id)
    return known


@dataclass(slots=True)
class _Share:
    """The batches of an object for one coordinator."""

    batches: list[BatchToCommit] = field(default_factory=list)
    """The batches that do not belong to transactions."""
    transactional_batches: int = 0


class Recommit:
    """Commits objects at the coordinators of their partitions. All coordinators are loaded in this
    process."""

    def __init__(
        self,
        coordinators: DisklessCoordinator,
        owners: Mapping[PartitionKey, int],
        stamped: Container[UUID],
        report: RecommitReport,
    ) -> None:
        """``owners`` are the coordinators of the diskless partitions. ``stamped`` are the topics with
        LogAppendTime: their records get the time of the append as timestamp."""
        self._stamped = stamped
        self._coordinators = coordinators
        self._owners = owners
        self._report = report
        self._outcomes_from_ms: dict[int, int] = {}
        """For each coordinator, the creation time of the oldest object whose outcome is certainly known."""

    async def commit(self, found: Iterable[FoundObject]) -> None:
        """Commit objects in order. Raises ``KafkaError`` when a log cannot be written."""
        times = CoordinatorTimes()
        for coordinator_id in set(self._owners.values()):
            # The time is read before the first commit, because each commit changes it.
            self._outcomes_from_ms[coordinator_id] = await self._coordinators.runtime.read(
                coordinator_id, lambda shard, _: shard.files.outcomes_from_ms(times)
            )
        for each in found:
            shares = self._shares(each)
            unknown = [
                coordinator_id for coordinator_id in shares if not await self._knows(coordinator_id, each)
            ]
            self._report.known_objects += len(unknown) < len(shares)
            # A coordinator that knows the object may still have live batches of it, even if all of them
            # belong to transactions.
            owner_ids = [
                coordinator_id
                for coordinator_id, share in shares.items()
                if share.batches or coordinator_id not in unknown
            ]
            for coordinator_id in unknown:
                share = shares[coordinator_id]
                self._report.transactional_batches += share.transactional_batches
                if share.batches:
                    await self._commit_share(coordinator_id, each, share.batches, owner_ids)

    def _shares(self, found: FoundObject) -> dict[int, "_Share"]:
        """The batches for each coordinator, in the order of the object."""
        shares: dict[int, _Share] = defaultdict(_Share)
        for batch in batches_with_owners(found, self._owners, self._report):
            share = shares[self._owners[PartitionKey(batch.topic_id, batch.partition_index)]]
            if batch.attributes & TRANSACTIONAL_BIT:
                share.transactional_batches += 1
            else:
                share.batches.append(_to_commit(batch, batch.topic_id in self._stamped))
        return shares

    async def _knows(self, coordinator_id: int, found: FoundObject) -> bool:
        """Whether the object needs no commit. This is the case if it was committed before the cut, or if it
        is so old that it cannot have been committed after the cut.
        """
        if found.footer.created_ms < self._outcomes_from_ms[coordinator_id]:
            return True
        described = await self._coordinators.describe_files(coordinator_id, [found.info.key])
        return any(file.is_known or file.is_closed or file.has_live_batches for file in described)

    async def _commit_share(
        self,
        coordinator_id: int,
        found: FoundObject,
        batches: Sequence[BatchToCommit],
        owner_ids: Sequence[int],
    ) -> None:
        call = CommitFileCall(
            object_key=found.info.key,
            size_bytes=found.info.size_bytes,
            created_ms=found.footer.created_ms,
            uploader_broker_id=found.footer.broker_id,
            batches=batches,
            owner_ids=owner_ids,
        )
        result = await self._coordinators.commit_file(coordinator_id, call)
        report = self._report
        for batch, outcome in zip(batches, result.batches, strict=True):
            if outcome.is_duplicate or outcome.error is ErrorCode.duplicate_sequence_number:
                report.repeated_batches += 1
            elif outcome.error is ErrorCode.none:
                report.batches += 1
                report.records += batch.records_count
            else:
                report.refused_batches += 1


def _to_commit(batch: WalBatch, is_stamped: bool) -> BatchToCommit:
    sequence = batch.base_sequence
    return BatchToCommit(
        batch.topic_id,
        batch.partition_index,
        0,
        batch.byte_offset,
        batch.size_bytes,
        batch.last_offset_delta,
        batch.records_count,
        batch.max_timestamp_ms,
        LOG_APPEND_TIME if is_stamped else CREATE_TIME,
        batch.producer_id,
        batch.producer_epoch,
        sequence,
        -1 if sequence < 0 else (sequence + batch.last_offset_delta) & 0x7FFFFFFF,
    )
