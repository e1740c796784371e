"""Restores a cluster into the folders of new nodes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.backup.cut_format import ClusterCut, LogPiece, LogPieces
from moldau.backup.restore.diskless_partitions import (
    create_partitions,
    delete_expired,
    diskless_partitions,
    ends_of,
    without_aborted,
)
from moldau.backup.restore.folders import NewCluster, NewNode, copy_log, write_log
from moldau.backup.restore.local_log import LocalCoordinatorLog
from moldau.backup.restore.metadata import EPOCH_MARGIN, NewGeneration, new_metadata, new_position
from moldau.backup.restore.open_producers import abort_pending_offsets
from moldau.backup.restore.recommit import (
    FoundObject,
    ObjectWindow,
    Recommit,
    RecommitReport,
    batches_with_owners,
    deleted_objects,
    find_objects,
    list_objects,
)
from moldau.backup.restore.remote_segments import RemoteChain, RemoteSegments, remote_chains, without_tier
from moldau.backup.restore.revoked_commits import SavedDecisions
from moldau.backup.restore.saved_state import metadata_of, pieces_of, problems_of
from moldau.backup.restore.tiered_logs import TieredLog, write_tiered_logs
from moldau.backup.restore.transactions import DecidedCommit, abort_strays, fence_producers
from moldau.backup.store_generations import begin_generation, latest_generation
from moldau.backup.stored_cuts import FoundCut, StoredCuts
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    STATE_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.kept_objects import store_kept
from moldau.objects.storage import ObjectInfo, ObjectStorage, StorageError
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.protocol.schema import Message
from moldau.runtime import KafkaError, Machine
from moldau.runtime.errors import ErrorCode
from moldau.storage.folders.file_names import folder_of
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteStorageManager

__all__ = ["RestoreReport", "Restoring", "examine"]

_LONGEST_CUT_MS: Final = 600_000
"""Assumed maximum of the time that a cut takes, from its first read of a log until its object is stored."""
_ANY_AGE_MS: Final = 1 << 50
"""The maximum age of a commit during a restore. It is so large that objects of every age are committed."""


@dataclass(slots=True)
class RestoreReport:
    """The restored parts of a cluster. In the report of a dry run, these are the parts that would be
    restored."""

    cut: ClusterCut
    topics: int = 0
    diskless_topics: int = 0
    classic_topics: Sequence[str] = ()
    """Topics of users that lose their local records. The records of these topics in remote segments are
    restored."""
    damaged_cuts: Sequence[str] = ()
    """Cuts that are newer than the restored cut and cannot be read."""
    missing: list[str] = field(default_factory=list)
    """Data of the cut that cannot be read or restored: one line for each, with the reason."""
    aborted_transactions: int = 0
    """Number of producers whose open transactions the restore aborts."""
    obstacles: list[str] = field(default_factory=list)
    """Reasons why a restore would be refused. Only the report of a dry run contains reasons."""
    remote_ends: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """For each classic tiered partition, the offset after its remote records. The remote records before this
    offset are restored."""
    folders: Mapping[int, str] = field(default_factory=dict)
    """The log folder with the restored logs, by node id."""
    newer: RecommitReport = field(default_factory=RecommitReport)


async def examine(
    machine: Machine,
    storage: ObjectStorage,
    found: FoundCut,
    scratch_path: str,
    until_ms: int | None = None,
    *,
    has_tier: bool = False,
) -> RestoreReport:
    """Report which parts of the cluster a restore of this cut would restore. Raises ``StorageError`` and
    ``KafkaError``.

    Writes nothing into the store. The coordinators' logs are written into the folder ``scratch_path``.
    ``has_tier`` is whether the restore would have access to the remote segments.
    """
    cut = found.cut
    report = RestoreReport(cut, damaged_cuts=found.damaged)
    # The objects are listed first. If the cluster still runs, it may delete objects of this cut later.
    listed = await list_objects(storage)
    report.missing += await problems_of(storage, cut)
    newer = await find_objects(storage, listed, _window(found, until_ms), report.newer)
    if report.missing:
        return report
    image = _image_of(await metadata_of(storage, cut))
    _describe(report, image)
    owners, _ = diskless_partitions(image)
    for each in newer:
        batches_with_owners(each, owners, report.newer)
    if not has_tier:
        report.missing += without_tier(await _remote_segments(storage, cut), image)
    node = NewNode(node_id=0, path=scratch_path, directory_id=new_directory_id(machine.entropy))
    cluster = NewCluster(cluster_id=cut.cluster_id, nodes=[node])
    report.missing += await Restoring(machine, storage, found, cluster, until_ms).absent_objects(listed)
    return report


def _describe(report: RestoreReport, image: MetadataImage) -> None:
    topics = [topic for topic in image.topics if topic.name not in STATE_TOPICS]
    report.topics = len(topics)
    report.diskless_topics = sum(DISKLESS.is_kind_of(topic) for topic in topics)
    report.classic_topics = [topic.name for topic in topics if not DISKLESS.is_kind_of(topic)]


def _image_of(records: Sequence[Message]) -> MetadataImage:
    return MetadataDelta().replay_all(records).apply()


def _window(found: FoundCut, until_ms: int | None) -> ObjectWindow:
    """The objects that are perhaps not in the cut. The window begins before the cut, because an older object
    may have been committed after the cut."""
    times = CoordinatorTimes()
    age_ms = times.max_commit_age_ms + times.clock_skew_ms
    return ObjectWindow(found.cut.created_ms - age_ms, found.stored_ms - age_ms - _LONGEST_CUT_MS, until_ms)


class Restoring:
    """A restore of one cut into the folders of the nodes of a cluster."""

    def __init__(
        self,
        machine: Machine,
        storage: ObjectStorage,
        found: FoundCut,
        cluster: NewCluster,
        until_ms: int | None = None,
        tier: RemoteStorageManager | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """With ``until_ms``, records of later objects are skipped. ``tier`` gives access to the remote
        segments of classic topics. Without ``tier``, these topics are empty after the restore. With
        ``waits``, nodes of the old cluster may still run: the restore lists the objects only when these nodes
        can no longer write."""
        self._waits = waits
        self.on_wait: Callable[[float], None] = lambda left_s: None
        """Called with the seconds that the restore waits for old nodes."""
        self._tier = tier
        self._until_ms = until_ms
        self._machine = machine
        self._storage = storage
        self._window = _window(found, until_ms)
        self._cut = cut = found.cut
        self._cluster = cluster
        self._work_path = cluster.path_of(cluster.brokers[0].node_id)
        """The folder in which all logs are restored, before the other replicas get copies."""
        self._image = MetadataImage()
        """The metadata of the restored cluster."""
        self._aborted: set[int] = set()
        """The producers whose transactions are aborted."""
        self._committing: dict[int, DecidedCommit] = {}
        """Transactions that the restored coordinators will commit, by producer id."""
        self._report = RestoreReport(cut, damaged_cuts=found.damaged)

    async def run(self) -> RestoreReport:
        """Write the folders. Raises ``FormatError``, ``StorageError`` and ``KafkaError``. After an error, no
        node can start with the folders."""
        self._cluster.check(self._machine)
        # The new generation ends the old cluster. So it begins only if the saved state can be restored.
        if problems := await problems_of(self._storage, self._cut):
            raise StorageError(problems[0], transient=False)
        number = 1 + max(self._cut.generation, await latest_generation(self._storage))
        # Nodes of the old cluster that still run will stop soon. The objects are listed as late as possible,
        # so that the list includes the last objects of these nodes.
        await begin_generation(self._storage, number, self._cut.cluster_id)
        begun_s = asyncio.get_running_loop().time()
        await self._take_later_cut()
        old = await metadata_of(self._storage, self._cut)
        self._machine.disk.make_dirs(self._work_path)
        async with contextlib.AsyncExitStack() as closing:
            decisions = await self._write_transactions()
            logs = await self._write_logs(decisions, closing)
            image = _image_of(old)
            restores = number - self._cut.generation
            coordinators = await self._load(image, logs, restores, closing)
            await create_partitions(image, coordinators)
            # The markers that the restore has changed, and all later records, belong to the new generation,
            # because the old cluster may have other records at their offsets.
            ends = ends_of(image, coordinators, logs) | decisions.revoked_from
            self._aborted |= decisions.revoked_producers
            self._aborted |= await abort_strays(coordinators, logs, self._committing, decisions.marked)
            self._report.aborted_transactions = len(self._aborted)
            await self._until_nobody_writes(begun_s)
            listed = await list_objects(self._storage)
            newer = await find_objects(self._storage, listed, self._window, self._report.newer)
            segments = await _remote_segments(self._storage, self._cut)
            chains = remote_chains(segments, image)
            await delete_expired(image, coordinators, logs, segments)
            starts = without_aborted(ends, image, coordinators, logs, segments)
            generation = NewGeneration(number, starts, restores)
            await self._write_metadata(old, generation, newer, chains)
            owners, stamped = diskless_partitions(image)
            await Recommit(coordinators, owners, stamped, self._report.newer).commit(newer)
            if self._tier is None:
                self._report.missing += without_tier(segments, image)
            await self._keep_unknown(number)
            self._report.missing += await self._absent_from(listed, coordinators, logs)
            await asyncio.gather(*(log.flush() for log in logs.values()))
        await self._distribute()
        await self._begin_tiered_logs(chains)
        self._cluster.finish(self._machine)
        self._report.folders = {each.node_id: each.path for each in self._cluster.nodes}
        return self._report

    async def absent_objects(self, listed: Iterable[ObjectInfo]) -> list[str]:
        """Load only the coordinators, and report the WAL objects of the cut that are not in ``listed``.
        Nothing is restored. Raises ``StorageError`` and ``KafkaError``.
        """
        self._machine.disk.make_dirs(self._work_path)
        async with contextlib.AsyncExitStack() as closing:
            logs = await self._write_logs(await self._write_transactions(), closing)
            image = _image_of(await metadata_of(self._storage, self._cut))
            return await self._absent_from(listed, await self._load(image, logs, 1, closing), logs)

    async def _absent_from(
        self,
        listed: Iterable[ObjectInfo],
        coordinators: DisklessCoordinator,
        coordinator_ids: Iterable[int],
    ) -> list[str]:
        """Return one line about the WAL objects of the cut that the store lacks; an empty list if no object
        is missing.

        A cluster deletes an object only after later cuts were saved. So the newest cut has all its objects,
        unless no cuts were saved any more, or the store is an incomplete copy.
        """
        keys = await deleted_objects(listed, coordinators, coordinator_ids)
        if not keys:
            return []
        problem = f"records in {len(keys):,} WAL objects that"
        if self._until_ms is None:
            return [f"{problem} are not in the store, the first is {keys[0]}"]
        return [
            f"{problem} were deleted after the state was saved, the first is {keys[0]}: only a copy of the"
            " bucket of that time has them"
        ]

    async def _until_nobody_writes(self, begun_s: float) -> None:
        """Wait until the nodes of the old cluster can no longer write. ``begun_s`` is the time of the event
        loop after the generation was stored.

        A restore of an earlier state does not wait, because it skips the records that old nodes still write.
        """
        if not self._waits:
            return
        passed_s = asyncio.get_running_loop().time() - begun_s
        begun_ms = self._machine.clock.now_ms() - 1000 * passed_s
        if self._until_ms is not None and self._until_ms < begun_ms - CoordinatorTimes().clock_skew_ms:
            return
        left_s = self._cut.lease_ms / 1000 - passed_s
        if left_s > 0:
            self.on_wait(left_s)
            await asyncio.sleep(left_s)

    async def _take_later_cut(self) -> None:
        """Use the newest cut of the old cluster, because the old cluster may have made cuts until now. Each
        deletion of an object waited for a cut. Therefore the newest cut needs no object that was deleted."""
        found = await StoredCuts(self._storage).newest(until_ms=self._until_ms)
        if found is None or found.cut.generation != self._cut.generation:
            return
        if found.cut.number > self._cut.number:
            self._cut = self._report.cut = found.cut
            self._window = _window(found, self._until_ms)

    async def _keep_unknown(self, generation: int) -> None:
        """Store a list of the objects with records of unknown topics, so that no node deletes these
        objects.
        """
        kept = {key: sorted(topics) for key, topics in self._report.newer.kept.items()}
        if kept:
            await store_kept(self._storage, f"{generation:010d}", kept)

    async def _write_metadata(
        self,
        old: Sequence[Message],
        generation: NewGeneration,
        newer: Sequence[FoundObject],
        chains: Iterable[TopicIdPartition],
    ) -> None:
        seen = max((each.producer_id_max for each in newer), default=-1)
        # Without access to the tier, the logs are empty and begin at the offsets that are in the metadata.
        tiered = {PartitionKey(each.topic_id, each.partition) for each in chains if self._tier is not None}
        records = list(new_metadata(old, self._cluster.brokers, generation, seen, tiered))
        self._image = _image_of(records)
        _describe(self._report, self._image)
        end = new_position(self._cut.metadata_offset, self._cut.metadata_epoch, generation.restores)
        await self._cluster.write_metadata(self._machine, records, end)

    async def _distribute(self) -> None:
        """Copy the logs to the folders of all their replicas. The logs are already closed."""
        machine = self._machine
        for log_id, saved in self._cut.logs.items():
            partition = self._image.topics.partition(*log_id)
            assert partition is not None
            name = folder_of(TopicPartition(saved.topic, log_id.partition))
            source = f"{self._work_path}/{name}"
            paths = [self._cluster.path_of(each) for each in partition.replicas]
            for path in paths:
                if path != self._work_path:
                    await machine.workers.run(copy_log, machine, source, f"{path}/{name}")
            if self._work_path not in paths:
                machine.disk.remove_tree(source)

    async def _begin_tiered_logs(self, chains: Mapping[TopicIdPartition, RemoteChain]) -> None:
        """Make the logs of classic tiered topics begin after their remote records."""
        if self._tier is None:
            return
        logs = {name: self._tiered_log(name, chain) for name, chain in chains.items()}
        written = await write_tiered_logs(self._machine, self._tier, logs, self._committing)
        self._report.missing += written.problems
        self._aborted |= set(written.aborted)
        self._report.aborted_transactions = len(self._aborted)
        self._report.remote_ends = {name: chain.newest.end_offset + 1 for name, chain in chains.items()}

    def _tiered_log(self, name: TopicIdPartition, chain: RemoteChain) -> TieredLog:
        partition = self._image.topics.partition(name.topic_id, name.partition)
        assert partition is not None
        folders = [self._cluster.path_of(each) for each in partition.replicas]
        return TieredLog(chain, folders, partition.leader_epoch)

    async def _write_transactions(self) -> SavedDecisions:
        """Write the logs of the transaction coordinators, in which all producers are fenced."""
        for log_id, saved in _saved(self._cut, TRANSACTION_STATE_TOPIC):
            log = await self._write_log(log_id, saved.topic, pieces_of(self._storage, saved))
            epoch = log.last_epoch + 1
            log.initialize_epoch(epoch)
            aborted, committing = fence_producers(log, epoch, self._machine.clock.now_ms())
            self._aborted |= aborted
            self._committing |= committing
            await log.flush()
            log.close()
        return SavedDecisions(
            {
                log_id.partition: saved.end_offset
                for log_id, saved in _saved(self._cut, TRANSACTION_STATE_TOPIC)
            },
            {each.decision for each in self._committing.values()},
        )

    async def _write_logs(
        self, decisions: SavedDecisions, closing: contextlib.AsyncExitStack
    ) -> dict[int, SnapshotLog]:
        """Write all logs except those of the transaction coordinators. Returns the logs of the diskless
        coordinators, which ``closing`` closes.
        """
        coordinator_logs: dict[int, SnapshotLog] = {}
        for log_id, saved in self._cut.logs.items():
            pieces = pieces_of(self._storage, saved)
            if saved.topic == DISKLESS_METADATA_TOPIC:
                log = await self._write_log(log_id, saved.topic, decisions.without_later(pieces))
                coordinator_logs[log_id.partition] = log
                closing.callback(log.close)
            elif saved.topic != TRANSACTION_STATE_TOPIC:
                log = await self._write_log(log_id, saved.topic, pieces)
                if saved.topic == CONSUMER_OFFSETS_TOPIC:
                    abort_pending_offsets(log, self._committing, self._machine.clock.now_ms())
                    await log.flush()
                log.close()
        return coordinator_logs

    async def _write_log(
        self, log_id: PartitionKey, topic: str, pieces: AsyncIterator[tuple[LogPiece, memoryview]]
    ) -> SnapshotLog:
        name = TopicPartition(topic, log_id.partition)
        return await write_log(self._machine, self._work_path, name, log_id.topic_id, pieces)

    async def _load(
        self,
        image: MetadataImage,
        logs: Mapping[int, SnapshotLog],
        restores: int,
        closing: contextlib.AsyncExitStack,
    ) -> DisklessCoordinator:
        """Load the diskless coordinators from their logs."""
        coordinators = DisklessCoordinator(
            self._machine,
            CoordinatorTimes(max_commit_age_ms=_ANY_AGE_MS),
            opener=self._machine.open_sqlite,
        )
        closing.push_async_callback(coordinators.close)
        for coordinator_id, log in logs.items():
            epoch = _epoch_of(image, coordinator_id) + restores * EPOCH_MARGIN
            coordinators.load(coordinator_id, epoch, LocalCoordinatorLog(log, epoch))
        for coordinator_id in logs:
            await coordinators.until_loaded(coordinator_id)
            if not coordinators.is_active(coordinator_id):
                raise KafkaError(ErrorCode.kafka_storage_error, coordinators.problem() or "not loaded")
        return coordinators


def _saved(cut: ClusterCut, topic: str) -> list[tuple[PartitionKey, LogPieces]]:
    return [(log_id, saved) for log_id, saved in cut.logs.items() if saved.topic == topic]


async def _remote_segments(storage: ObjectStorage, cut: ClusterCut) -> RemoteSegments:
    segments = RemoteSegments()
    for _, saved in _saved(cut, REMOTE_LOG_METADATA_TOPIC):
        await segments.add(pieces_of(storage, saved))
    return segments


def _epoch_of(image: MetadataImage, coordinator_id: int) -> int:
    """The epoch of the coordinator's log in the cut. The restore increases this epoch, and the restored node
    later leads in a higher epoch."""
    topic = image.topics.get(DISKLESS_METADATA_TOPIC)
    assert topic is not None
    return topic.partitions[coordinator_id].leader_epoch
