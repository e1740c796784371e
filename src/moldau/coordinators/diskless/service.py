"""All calls of diskless coordinators, for the coordinator partitions that this node leads.

The first argument of a call names its coordinator (the partition of ``__diskless_metadata``). The caller
finds the coordinator of a user partition in the metadata. The operation of a call runs before the first
``await`` of the call. Therefore calls take effect in the order in which they are made, even if many calls are
in progress at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast
from uuid import UUID

from moldau.cluster.internal_topics import DISKLESS_METADATA
from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.committing import commit_file
from moldau.coordinators.diskless.led_coordinator import (
    DisklessMetadataLog,
    LedCoordinator,
    MeasuredBacklogs,
    open_log,
)
from moldau.coordinators.diskless.reads.finding import Finder
from moldau.coordinators.diskless.reads.list_offsets import StoredOffsetLister
from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.coordinators.diskless.reads.wal_retention import retained_from
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.coordinators.diskless.state.records import DisklessRecord
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.diskless.store.schema import SqliteOpener, open_sqlite
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.coordinators.diskless.store.view import StoredPartition
from moldau.coordinators.kind import CoordinatorKind, LogPolicy, Term
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.snapshots.replicated_log import LogPosition

logger = logging.getLogger(__name__)

DATABASE_FILE: Final = "state.sqlite"
DESCRIBED_A_TURN: Final = 500
"""Number of partitions described in one iteration of the event loop. This takes some milliseconds."""
_GUARD_NUMBERS: Final = 1 << 48
"""A new guard is a random number from 1 to this number. The range is so large that in practice one producer
never gets the same guard in two epochs of the coordinator."""


class DisklessCoordinator:
    """Leads some partitions of ``__diskless_metadata``. All calls are made on the event loop."""

    def __init__(
        self,
        machine: Machine,
        settings: CoordinatorTimes | None = None,
        *,
        opener: SqliteOpener = open_sqlite,
        commit_timeout_ms: int = 5000,
        cluster_now_ms: Callable[[], int] | None = None,
    ) -> None:
        """``cluster_now_ms`` is the clock for the ages of files; by default it is the machine's clock."""
        self.settings = settings or CoordinatorTimes()
        self._cluster_now_ms = cluster_now_ms or machine.clock.now_ms
        self._machine = machine
        self._opener = opener
        self._waiting: WaitingRoom[PartitionKey] = WaitingRoom()
        """FindBatches calls that wait for their partitions to change."""
        self._finder = Finder(self._waiting)
        self._lister = StoredOffsetLister()
        self.backlogs = MeasuredBacklogs()
        kind: CoordinatorKind[DisklessShard, DisklessRecord] = CoordinatorKind(
            topic=DISKLESS_METADATA,
            new_shard=lambda _: DisklessShard(self.settings),
            codec=DisklessCodec(),
            open_log=open_log,
            new_store=self._new_store,
            policy=LogPolicy(commit_timeout_ms=commit_timeout_ms),
            key_type=CoordinatorKeyType.DISKLESS,
            partition_of=lambda key, partition_count: coordinator_of_key(key),
        )
        self.runtime: CoordinatorRuntime[DisklessShard, DisklessRecord] = CoordinatorRuntime(
            kind, machine.clock, machine.unexpected, lambda _: self._waiting.notify_all()
        )

    # -- leadership -----------------------------------------------------------------------------

    @property
    def kind(self) -> CoordinatorKind[DisklessShard, DisklessRecord]:
        """The description of this kind of coordinators."""
        return self.runtime.kind

    def load(self, coordinator_id: int, epoch: int, log: DisklessMetadataLog) -> None:
        """Lead the partition from ``epoch`` on, and return immediately.

        The SQLite file is in the folder of the partition's log. The file is a cache and may be deleted.
        """
        self.runtime.load(coordinator_id, epoch, log)

    def _new_store(self, term: Term) -> LedCoordinator:
        coordinator_id, epoch, log = term
        metadata_log = cast(DisklessMetadataLog, log)

        def rebuild_soon() -> None:
            # The reload begins in the next turn, because the code that has found the damage still uses the
            # store.
            asyncio.get_running_loop().call_soon(self.runtime.reload, coordinator_id, epoch)

        store = DisklessStore(
            self._machine,
            metadata_log,
            f"{metadata_log.directory}/{DATABASE_FILE}",
            coordinator_id,
            opener=self._opener,
            listener=self._changed,
            on_damage=rebuild_soon,
        )
        return LedCoordinator(epoch, store)

    def unload(self, coordinator_id: int) -> None:
        """Unload the coordinator, because this node no longer leads its partition."""
        self.runtime.unload(coordinator_id)

    @property
    def coordinator_ids(self) -> list[int]:
        """The coordinators that this node leads. They may be loaded or not."""
        return self.runtime.partitions

    @property
    def standby_ids(self) -> list[int]:
        """The coordinators that other nodes lead. This node also keeps their state in tables."""
        return self.runtime.standbys

    def problem(self) -> str | None:
        """Return a sentence about the coordinators that cannot be loaded, with the reason; ``None`` when all
        can be loaded."""
        return self.runtime.problem()

    def is_active(self, coordinator_id: int) -> bool:
        return self.runtime.is_active(coordinator_id)

    async def until_loaded(self, coordinator_id: int) -> None:
        await self.runtime.until_loaded(coordinator_id)

    async def close(self) -> None:
        """Unload all coordinators; the SQLite files are closed cleanly."""
        self._waiting.notify_all()
        await self.runtime.close()

    def _changed(self, partitions: Sequence[StoredPartition]) -> None:
        for partition in partitions if len(self._waiting) else ():
            self._waiting.notify(partition.id)

    def led(self, coordinator_id: int) -> LedCoordinator | None:
        """A coordinator that this node leads. It may be loaded or not."""
        host = self.runtime.led(coordinator_id)
        return None if host is None else cast(LedCoordinator, host.store)

    def _active(self, coordinator_id: int) -> LedCoordinator:
        """The coordinator, if it is loaded. Raises NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS."""
        led = self.led(coordinator_id)
        if led is None:
            raise KafkaError(
                ErrorCode.not_coordinator, f"{DISKLESS_METADATA.name}-{coordinator_id} is not here."
            )
        if not self.runtime.is_active(coordinator_id):
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "The coordinator is being loaded.")
        return led

    def _reader(self, coordinator_id: int) -> StoreReader:
        """A reader of the coordinator. Raises the errors of :meth:`_active`."""
        return self._active(coordinator_id).reader

    def _written(self, coordinator_id: int) -> LedCoordinator:
        """Return the coordinator, after all its committed records were written to its tables. Raises the
        errors of :meth:`_active`."""
        led = self._active(coordinator_id)
        led.store.write_all()
        return led

    # -- commit ---------------------------------------------------------------------------------

    def commit_file(
        self, coordinator_id: int, call: calls.CommitFileCall
    ) -> "asyncio.Future[calls.CommitFileResult]":
        """Commit a file's batches. A call with the same object key may be repeated. Offsets are assigned in
        the order of the calls. The files of one broker are committed in the order of ``call.place``.

        After an error of ``calls.DEFINITE_REFUSALS`` nothing is committed. After other errors the outcome is
        unknown. After ``calls.FORGOTTEN`` and ``calls.NUMBER_PASSED`` the outcome stays unknown.
        """
        # The deletion clock is read here, so that it detects that the wall clock is behind. Otherwise batches
        # with too early timestamps would expire as soon as the wall clock is corrected.
        self._machine.deletion_clock.now_ms()
        return commit_file(self.runtime, coordinator_id, call, self._cluster_now_ms)

    async def guard_transactions(
        self, coordinator_id: int, wanted: Sequence[calls.GuardToIssue]
    ) -> list[calls.IssuedGuard]:
        """Issue guards for transactional batches. A broker requests guards before it asks the transaction
        coordinator to verify the transactions."""
        entropy = self._machine.entropy
        return await self.runtime.read(
            coordinator_id,
            lambda shard, now_ms: [
                shard.guard(each, 1 + entropy.randrange(_GUARD_NUMBERS)) for each in wanted
            ],
        )

    def issue_guard(self, coordinator_id: int, wanted: calls.GuardToIssue) -> int:
        """Issue a guard without waiting for commits, if this node leads the coordinator; 0 if no guard can be
        issued now."""
        entropy = self._machine.entropy
        issued = self.runtime.peek(
            coordinator_id, lambda shard, _: shard.guard(wanted, 1 + entropy.randrange(_GUARD_NUMBERS))
        )
        return 0 if issued is None else issued.guard

    def known_guard(self, coordinator_id: int, wanted: calls.GuardToIssue) -> int:
        """The valid guard of a producer at a coordinator that this node leads; 0 if there is none. The guard
        may become invalid before a batch is committed with it, like every guard."""
        return self.runtime.peek(coordinator_id, lambda shard, _: shard.known_guard(wanted)) or 0

    async def end_transactions(
        self, coordinator_id: int, markers: Sequence[calls.MarkerToWrite]
    ) -> list[calls.EndedTransactionPart]:
        """Append the markers of transactions. Returns when the markers are committed."""
        ended: list[calls.EndedTransactionPart] = await self.runtime.write(
            coordinator_id, lambda shard, now_ms, token: shard.end_transactions(markers, now_ms, token)
        )
        return ended

    async def delete_records(
        self, coordinator_id: int, offsets: Sequence[calls.OffsetToDelete]
    ) -> list[calls.DeletedRecords]:
        """Move log starts of partitions forward, so that records before them are deleted."""
        deleted: list[calls.DeletedRecords] = await self.runtime.write(
            coordinator_id, lambda shard, _, token: shard.delete_records(offsets, token)
        )
        return deleted

    async def create_partitions(
        self, coordinator_id: int, topics: Sequence[calls.PartitionsToCreate]
    ) -> list[calls.TopicResult]:
        """Create the missing partitions of this coordinator. They begin at offset 0."""
        created: list[calls.TopicResult] = await self.runtime.write(
            coordinator_id, lambda shard, _, token: shard.create_partitions(topics, token)
        )
        return created

    async def delete_topics(self, coordinator_id: int, topic_ids: Sequence[UUID]) -> list[calls.TopicResult]:
        """Delete these topics, because they were deleted in the metadata image."""
        deleted: list[calls.TopicResult] = await self.runtime.write(
            coordinator_id, lambda shard, _, token: shard.delete_topics(topic_ids, token)
        )
        return deleted

    async def prune(self, coordinator_id: int, call: calls.PruneCall) -> calls.PrunedPartition:
        """Move ``wal_start`` forward, or only fence older epochs; see :class:`PruneCall`."""
        pruned: calls.PrunedPartition = await self.runtime.write(
            coordinator_id, lambda shard, _, token: shard.prune(call, token)
        )
        size_bytes, batches = self._reader(coordinator_id).wal_size(call.topic_id, call.partition_index)
        return pruned._replace(wal_size_bytes=size_bytes, wal_batches=batches)

    def backlog(self) -> calls.Backlog:
        """Return the WAL backlog of all coordinators that this node leads and has loaded."""
        active = [found for found in self.coordinator_ids if self.is_active(found)]
        return self.backlogs.measured({found: self._reader(found).backlog() for found in active})

    # -- reads ----------------------------------------------------------------------------------

    async def describe_producers(
        self, coordinator_id: int, wanted: Sequence[PartitionKey]
    ) -> list[calls.ProducersOfPartition]:
        """The producers of partitions. The result includes the effects of all earlier decisions."""
        await self._barrier(coordinator_id)
        return await self.runtime.read(
            coordinator_id, lambda shard, now_ms: [shard.describe_producers(each) for each in wanted]
        )

    async def find_batches(
        self, coordinator_id: int, call: calls.FindBatchesCall
    ) -> list[calls.FoundPartition]:
        """The positions of batches in the committed state. The call may wait for ``call.max_wait_ms``."""
        return await self._finder.find(lambda: self._reader(coordinator_id), call)

    async def list_offsets(
        self, coordinator_id: int, timestamps: Sequence[calls.TimestampToList]
    ) -> list[calls.ListedOffset]:
        """Offsets by timestamp. The result includes the effects of all earlier decisions."""
        await self._barrier(coordinator_id)
        return self._lister.list(self._reader(coordinator_id), timestamps)

    async def describe_topics(
        self, coordinator_id: int, topic_ids: Sequence[UUID] | None = None
    ) -> list[calls.DescribedPartition]:
        """Return the partitions of some topics, or of all topics, for command-line tools."""
        await self._barrier(coordinator_id)
        led = self._active(coordinator_id)
        wanted = None if topic_ids is None else set(topic_ids)
        partitions = [found for found in led.store.view if wanted is None or found.id.topic_id in wanted]
        partitions.sort(key=lambda found: (found.name, found.id[1]))
        described: list[calls.DescribedPartition] = []
        for start in range(0, len(partitions), DESCRIBED_A_TURN):
            some = partitions[start : start + DESCRIBED_A_TURN]
            described += self._written(coordinator_id).reader.describe_partitions(some)
            await asyncio.sleep(0)
        return described

    async def topic_ids(self, coordinator_id: int) -> frozenset[UUID]:
        """The topics that have partitions in this coordinator."""
        await self._barrier(coordinator_id)
        return frozenset(self._active(coordinator_id).store.view.topic_ids)

    async def describe_topics_and_objects(
        self, coordinator_id: int, call: calls.DescribeTopicsCall
    ) -> calls.DescribedTopics:
        """Return partitions of topics, and the objects with their batches, for command-line tools."""
        described = await self.describe_topics(coordinator_id, call.topic_ids)
        led = self._active(coordinator_id)
        by_topic: dict[UUID, list[StoredPartition]] = {found.topic_id: [] for found in described}
        for partition in led.store.view:
            if partition.id.topic_id in by_topic:
                by_topic[partition.id.topic_id].append(partition)
        objects = {
            topic_id: led.reader.describe_objects(partitions, call.with_object_keys)
            for topic_id, partitions in by_topic.items()
        }
        return calls.DescribedTopics(described, objects)

    async def describe_coordinator(self, coordinator_id: int) -> calls.DescribedCoordinator:
        """Return the content of the coordinator's state and the progress of its store, for command-line
        tools."""
        await self._barrier(coordinator_id)
        led = self._written(coordinator_id)
        store = led.store
        applied, snapshot = store.database.applied(), store.log.latest_snapshot_id()
        partitions, batches, files = led.reader.counts()
        return calls.DescribedCoordinator(
            coordinator_id,
            led.epoch,
            partitions,
            batches,
            files,
            applied.offset,
            store.log.start_offset,
            store.log.end_offset,
            *((-1, -1) if snapshot is None else snapshot),
        )

    async def _barrier(self, coordinator_id: int) -> None:
        """Wait until all earlier decisions are committed and applied to the store."""
        await self.runtime.read(coordinator_id, lambda shard, now_ms: None)

    # -- files ----------------------------------------------------------------------------------

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> list[calls.DescribedFile]:
        """Return the state of these objects after all earlier decisions."""

        def closed(shard: DisklessShard, now_ms: int) -> list[tuple[bool, bool]]:
            files = shard.files
            return [(files.result(key) is not None, files.is_closed(key)) for key in object_keys]

        states = await self.runtime.read(coordinator_id, closed)
        reader = self._written(coordinator_id).reader
        described = []
        for key, (remembered, is_closed) in zip(object_keys, states, strict=True):
            found = reader.describe_file(key)
            described.append(
                calls.DescribedFile(
                    key,
                    found.is_known or remembered,
                    is_closed,
                    found.has_live_batches,
                    found.size_bytes,
                    found.used_bytes,
                    found.live_batches,
                    found.created_ms,
                    found.is_owned,
                    found.next_owner_ids,
                    found.unused_since_ms,
                )
            )
        return described

    async def list_files(
        self, coordinator_id: int, after_key: str = "", limit: int = 1000
    ) -> list[calls.DescribedFile]:
        """Return the files in the order of their keys, for command-line tools."""
        await self._barrier(coordinator_id)
        reader = self._written(coordinator_id).reader
        return reader.list_files(after_key, limit)

    async def oldest_file(self, coordinator_id: int) -> int | None:
        """Return the creation time of this coordinator's oldest file, in ms; ``None`` if it has no file."""
        await self._barrier(coordinator_id)
        reader = self._written(coordinator_id).reader
        return reader.oldest_created_ms()

    async def close_files(self, coordinator_id: int, object_keys: Sequence[str]) -> list[calls.ClosedFile]:
        """Record in the log that these objects will never be committed. The orphan scan calls this method
        before it deletes the objects. A committed file is refused while this coordinator still has the file
        or the result of its commit.
        """
        reader = self._written(coordinator_id).reader
        live = {key for key in object_keys if reader.describe_file(key).is_known}
        closed: list[calls.ClosedFile] = await self.runtime.write(
            coordinator_id,
            lambda shard, now_ms, token: shard.close_files(object_keys, live, now_ms, token),
        )
        return closed

    async def take_over(self, coordinator_id: int, file: calls.FileToHandOver) -> None:
        """Make this coordinator the owner of a file that another coordinator hands over. This coordinator is
        the first of ``remaining_owner_ids``."""
        remaining = [owner for owner in file.remaining_owner_ids if owner != coordinator_id]
        await self.runtime.write(
            coordinator_id,
            lambda shard, now_ms, token: shard.take_over(
                file.object_key, remaining, file.size_bytes, file.created_ms, now_ms, token
            ),
        )

    async def release_files(self, coordinator_id: int, object_keys: Sequence[str]) -> None:
        """Release files that were handed over, or whose objects were deleted."""
        await self.runtime.write(
            coordinator_id, lambda shard, _, token: shard.release_files(object_keys, token)
        )

    def committed_end(self, coordinator_id: int) -> int:
        """Return the offset before which the records of the coordinator's log are committed.

        Raises the errors of :meth:`_active`.
        """
        self._active(coordinator_id)
        host = self.runtime.led(coordinator_id)
        assert host is not None
        return host.committed_end

    def files_to_hand_over(self, coordinator_id: int, limit: int = 100) -> list[calls.FileToHandOver]:
        """Files that must be handed over. The caller must call ``take_over`` at the next owner, and then
        ``release_files`` at this coordinator."""
        return self._reader(coordinator_id).deletable.to_hand_over(limit)

    def free_files(
        self, coordinator_id: int, unused_before_ms: int, limit: int = 1000
    ) -> list[calls.FreeFile]:
        """Return files that have been unused since ``unused_before_ms``. The caller must delete their
        objects, then call ``release_files``."""
        return self._reader(coordinator_id).deletable.free(limit, unused_before_ms)

    def files_of_others(
        self, coordinator_id: int, unused_before_ms: int, limit: int = 1000, *, unused_from_ms: int = 0
    ) -> list[calls.FreeFile]:
        """Return files of other owners that have been unused at this coordinator since ``unused_before_ms``.
        The file that has been unused for the longest time is first.

        Usually the owner still has batches in such a file. But if the commit of the file was refused at the
        owner, the owner does not know the file, and never hands it over. If ``describe_files`` at the owner
        does not return the file, the caller closes the file there and calls ``take_over`` at this
        coordinator. Otherwise the file would never be deleted.
        """
        return self._reader(coordinator_id).deletable.of_others(limit, unused_before_ms, unused_from_ms)

    # -- upkeep ---------------------------------------------------------------------------------

    async def apply_retention(
        self, coordinator_id: int, policies: Sequence[calls.RetentionPolicy]
    ) -> list[calls.DeletedRecords]:
        """Do one limited pass of retention by time and size. Call this method again as long as the last call
        has deleted records."""
        now_ms = self._machine.deletion_clock.now_ms()
        offsets: list[calls.OffsetToDelete] = []
        for policy in policies:
            start = retained_from(self._reader(coordinator_id), policy, now_ms)
            if start is not None:
                offsets.append(calls.OffsetToDelete(policy.topic_id, policy.partition_index, start))
            await asyncio.sleep(0)  # so that other tasks of the event loop can run
        return await self.delete_records(coordinator_id, offsets) if offsets else []

    async def forget_old(self, coordinator_id: int) -> None:
        """Remove inactive producers, and results that are too old for a repeated call."""
        times_ms = self._machine.deletion_clock.now_ms(), self._cluster_now_ms()
        await self.runtime.write(coordinator_id, lambda shard, _, token: shard.expire(token, *times_ms))

    async def snapshot(self, coordinator_id: int) -> LogPosition | None:
        """Write a snapshot of the committed state and remove the start of the log, while commits continue."""
        return await self._kept(coordinator_id).snapshotter.snapshot()

    def records_since_snapshot(self, coordinator_id: int) -> int:
        return self._kept(coordinator_id).store.records_since_snapshot

    def _kept(self, coordinator_id: int) -> LedCoordinator:
        """Return a coordinator whose state is on this node, as leader or standby. Raises the errors of
        :meth:`_active`."""
        standby = self.runtime.standby(coordinator_id)
        if standby is None or not standby.is_current:
            return self._active(coordinator_id)
        return cast(LedCoordinator, standby.store)


def coordinator_of_key(key: str) -> int:
    """The coordinator that a FindCoordinator key names. Raises INVALID_REQUEST."""
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise KafkaError(ErrorCode.invalid_request, f"{key!r} is not the number of a diskless coordinator")
    return int(key)
