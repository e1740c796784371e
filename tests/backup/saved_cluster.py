"""A small cluster for tests of the restore. A test writes the saved logs of the cluster record by record."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

from crc32c import crc32c

from moldau.backup.cut_format import (
    DATA_FOLDER,
    DEFAULT_LEASE_MS,
    ClusterCut,
    LogPiece,
    LogPieces,
    ObjectPart,
)
from moldau.backup.image_object import ImageEncoder
from moldau.backup.restore.folders import NewCluster, NewNode
from moldau.backup.restore.restoring import RestoreReport, Restoring, examine
from moldau.backup.store_generations import latest_generation
from moldau.backup.stored_cuts import FoundCut
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from moldau.coordinators.diskless.calls import (
    CREATE_TIME,
    TRANSACTIONAL,
    BatchToCommit,
    CommitFileCall,
    DescribedFile,
    FindBatchesCall,
    FoundPartition,
    GuardToIssue,
    MarkerToWrite,
    PartitionsToCreate,
    PartitionToFind,
    PruneCall,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.wal import footer_size_bytes, write_tail
from moldau.objects import MemoryStorage
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.protocol.records import groups
from moldau.protocol.records import metadata as r
from moldau.protocol.records import transactions as schema
from moldau.protocol.schema import Message
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.records.batch import iter_headers, parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.runtime import ErrorCode, Machine
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.testing.lone_partition import lone_metadata_log
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.records import encode_event
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)

TOPIC: Final = UUID(int=0xA)
NAME: Final = "t"
NODE_ID: Final = 1
_EPOCH: Final = 1
_LATER_EPOCH: Final = 1_000_000
_RECORDS_A_BATCH: Final = 2
_ALL: Final = 1 << 24
_LONG_MS: Final = 600_000


class Writer:
    """Writes to one diskless partition. The index of the partition is the number of its coordinator."""

    def __init__(self, coordinators: DisklessCoordinator, index: int) -> None:
        self._coordinators = coordinators
        self._index = index
        self.keys: list[str] = []
        """The keys of the WAL objects with the written batches."""

    async def write(
        self, producer_id: int, epoch: int, sequence: int = 0, object_key: str | None = None
    ) -> None:
        """Commit a batch of two records of a transaction. By default, the key of the object is not the key of
        a WAL object, so a restore does not read it."""
        index = self._index
        (issued,) = await self._coordinators.guard_transactions(
            index, [GuardToIssue(TOPIC, index, producer_id, epoch)]
        )
        last = _RECORDS_A_BATCH - 1
        sizes = (0, 100, last, _RECORDS_A_BATCH, 5_000, CREATE_TIME)
        batch = BatchToCommit(
            TOPIC,
            index,
            0,
            *sizes,
            producer_id,
            epoch,
            sequence,
            sequence + last,
            TRANSACTIONAL,
            issued.guard,
        )
        self.keys.append(object_key or f"wal/0/file-{index}-{len(self.keys)}")
        call = CommitFileCall(self.keys[-1], 100, Machine.real().clock.now_ms(), 1, [batch], ())
        (result,) = (await self._coordinators.commit_file(index, call)).batches
        assert result.error is ErrorCode.none, result

    async def commit(self, producer_id: int, epoch: int, decided_at: int) -> None:
        """Write the marker of a transaction. ``decided_at`` is the offset of the outcome in
        ``__transaction_state``."""
        marker = MarkerToWrite(TOPIC, self._index, producer_id, epoch, 0, True, 0, 0, decided_at)
        (ended,) = await self._coordinators.end_transactions(self._index, [marker])
        assert ended.error is ErrorCode.none, ended

    async def prune(self, to_offset: int) -> None:
        """Remove the records before an offset from the WAL, because they are in a remote segment."""
        call = PruneCall(TOPIC, self._index, 0, to_offset, _EPOCH)
        pruned = await self._coordinators.prune(self._index, call)
        assert pruned.error is ErrorCode.none, pruned

    async def expire(self) -> None:
        """Let the coordinator forget the results of all files."""
        later_ms = Machine.real().clock.now_ms() + _LONG_MS
        await self._coordinators.runtime.write(
            self._index, lambda shard, _, token: shard.expire(token, later_ms)
        )


class SavedCluster:
    """The saved logs of one transaction coordinator and of ``count`` diskless coordinators."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self._folder = folder
        self._count = count
        self._machine = Machine.real()
        self._storage = MemoryStorage(self._machine.clock)
        self._logs: dict[PartitionKey, LogPieces] = {}
        self._image = MetadataImage()
        self.lease_ms = DEFAULT_LEASE_MS
        self.on_wait: Callable[[float], None] = lambda _: None
        """Called with the seconds for which a restore is about to wait for old nodes."""
        self._topics = {
            TRANSACTION_STATE_TOPIC: UUID(int=1),
            DISKLESS_METADATA_TOPIC: UUID(int=2),
            CONSUMER_OFFSETS_TOPIC: UUID(int=3),
            REMOTE_LOG_METADATA_TOPIC: UUID(int=4),
        }

    async def save_transactions(self, values: dict[str, schema.TransactionLogValue]) -> None:
        """Save ``values``, by transactional id, in the log of ``__transaction_state``."""
        records = [
            Record(
                0,
                0,
                schema.RECORDS.encode_key(schema.TransactionLogKey(transactional_id=name)),
                schema.RECORDS.encode_value(value, 1),
            )
            for name, value in values.items()
        ]
        log = self._open(self._folder / "old", TRANSACTION_STATE_TOPIC, 0)
        log.initialize_epoch(_EPOCH)
        log.append_as_leader(build_batch(records), _EPOCH)
        await self._save(log, TRANSACTION_STATE_TOPIC, 0)

    async def save_pending_offsets(self, producer_ids: Sequence[int]) -> None:
        """Save a log of ``__consumer_offsets``. Each producer has committed an offset in a transaction that
        has no marker yet."""
        log = self._open(self._folder / "old", CONSUMER_OFFSETS_TOPIC, 0)
        log.initialize_epoch(_EPOCH)
        for producer_id in producer_ids:
            key = groups.OffsetCommitKey(group="g", topic=NAME, partition=producer_id)
            value = groups.OffsetCommitValue(offset=1)
            record = Record(0, 0, groups.RECORDS.encode_key(key), groups.RECORDS.encode_value(value))
            batch = build_batch([record], producer_id=producer_id, producer_epoch=0, transactional=True)
            log.append_as_leader(batch, _EPOCH)
        await self._save(log, CONSUMER_OFFSETS_TOPIC, 0)

    @asynccontextmanager
    async def saving_partition(self, index: int) -> AsyncIterator[Writer]:
        """Write to a diskless partition. The log of its coordinator is saved at the end of the context."""
        async with self._coordinator(self._folder / "old", index, _EPOCH) as (coordinators, log):
            await coordinators.create_partitions(index, [PartitionsToCreate(TOPIC, NAME, [index])])
            yield Writer(coordinators, index)
            await self._save(log, DISKLESS_METADATA_TOPIC, index)

    async def store_wal_object(
        self, topic_id: UUID = TOPIC, producer_id: int = -1, *, age_ms: int = 0
    ) -> str:
        """Store a WAL object with one batch for partition 0 of a topic. With ``producer_id``, the batch
        belongs to a transaction. The footer and the key of the object say that the object was created
        ``age_ms`` ago. Returns the object's key."""
        return await self.store_wal_batches({0: producer_id}, topic_id, age_ms=age_ms)

    async def store_wal_batches(
        self,
        producer_ids: Mapping[int, int],
        topic_id: UUID = TOPIC,
        *,
        sequence: int = 0,
        is_transactional: bool = True,
        age_ms: int = 0,
    ) -> str:
        """Store a WAL object with one batch for each partition in ``producer_ids``. A batch with a producer
        id of -1 has no sequence and does not belong to a transaction."""
        batches = {
            index: build_batch(
                [Record(0, 0, b"k", b"v")],
                producer_id=producer_id,
                producer_epoch=min(0, producer_id),
                base_sequence=sequence if producer_id >= 0 else -1,
                transactional=is_transactional and producer_id >= 0,
            )
            for index, producer_id in producer_ids.items()
        }
        content = bytearray(b"".join(batches.values()))
        end, position = len(content), 0
        runs = []
        for index, batch in batches.items():
            runs.append((topic_id, index, position, [parse_header(batch)]))
            position += len(batch)
        content += bytes(footer_size_bytes(len(runs), len(runs)))
        created_ms = self._machine.clock.now_ms() - age_ms
        write_tail(content, end, runs, created_ms=created_ms, broker_id=NODE_ID)
        key = new_object_key(created_ms, NODE_ID, self._machine.entropy)
        await self._storage.upload(key, content, len(content))
        return key

    async def save_remote_segment(
        self,
        end_offset: int = 9,
        epoch: int = _EPOCH,
        states: Sequence[RemoteLogSegmentState] = (RemoteLogSegmentState.COPY_SEGMENT_FINISHED,),
    ) -> None:
        """Save the copy of a segment of partition 0 in a log of ``__remote_log_metadata``. The copy got
        ``states`` one after another."""
        id = RemoteLogSegmentId.of(TopicIdPartition(TOPIC, NAME, 0), UUID(int=1))
        started = RemoteLogSegmentMetadata(
            id, 0, end_offset, 1, NODE_ID, 1, 10, leader_epochs=(EpochStart(epoch, 0),)
        )
        events = [RemoteLogSegmentMetadataUpdate(id, 2, state, NODE_ID) for state in states]
        log = self._open(self._folder / "old", REMOTE_LOG_METADATA_TOPIC, 0)
        log.initialize_epoch(_EPOCH)
        records = [Record(0, 0, None, encode_event(each)) for each in (started, *events)]
        log.append_as_leader(build_batch(records), _EPOCH)
        await self._save(log, REMOTE_LOG_METADATA_TOPIC, 0)

    async def store_object(self, key: str) -> None:
        """Store an object without content."""
        await self._storage.upload(key, b"", 0)

    async def damage_log(self, name: str) -> str:
        """Replace the saved content of a log. Returns the key of its object."""
        key = f"{DATA_FOLDER}{name}"
        await self._storage.upload(key, bytes(_ALL >> 4), _ALL >> 4)
        return key

    async def latest_generation(self) -> int:
        return await latest_generation(self._storage)

    async def restore(self, until_ms: int | None = None, *, waits: bool = False) -> RestoreReport:
        """Restore the cluster as one node. With ``waits``, the restore waits, because nodes of the old
        cluster may still run."""
        node = NewNode(node_id=NODE_ID, path=str(self._folder / "new"), directory_id=UUID(int=900))
        voters = VoterSet([Voter(ReplicaKey(NODE_ID), "localhost", 1)])
        cluster = NewCluster(cluster_id="cluster", nodes=[node], static_voters=voters)
        restoring = Restoring(self._machine, self._storage, await self._cut(), cluster, until_ms, waits=waits)
        restoring.on_wait = self.on_wait
        report = await restoring.run()
        self._image = restoring._image
        return report

    async def examine(self, until_ms: int | None = None) -> RestoreReport:
        """The report of a dry run."""
        with TemporaryDirectory() as scratch:
            return await examine(self._machine, self._storage, await self._cut(), scratch, until_ms)

    async def _cut(self) -> FoundCut:
        image = MetadataDelta().replay_all(self._metadata()).apply()
        content = await ImageEncoder().encode(image)
        now_ms = self._machine.clock.now_ms()
        cut = ClusterCut(
            cluster_id="cluster",
            created_ms=now_ms,
            lease_ms=self.lease_ms,
            metadata=await self._stored("image", content),
            metadata_offset=1,
            metadata_epoch=1,
            logs=self._logs,
        )
        return FoundCut(cut, now_ms)

    def generation_starts(self, index: int) -> Sequence[int]:
        """The start offsets of the restored generations of a partition."""
        partition = self._image.topics.partition(TOPIC, index)
        assert partition is not None
        return partition.generations.starts

    async def find(self, index: int) -> FoundPartition:
        """The restored content of a partition."""
        async with self._coordinator(self._folder / "new", index, _LATER_EPOCH) as (coordinators, _):
            call = FindBatchesCall([PartitionToFind(TOPIC, index, 0)])
            (found,) = await coordinators.find_batches(index, call)
            return found

    async def file(self, index: int, object_key: str) -> DescribedFile:
        """A WAL object in the restored state of a coordinator."""
        async with self._coordinator(self._folder / "new", index, _LATER_EPOCH) as (coordinators, _):
            (found,) = await coordinators.describe_files(index, [object_key])
            return found

    def transactions(self) -> dict[str, schema.TransactionLogValue]:
        """The restored values of ``__transaction_state``, by transactional id."""
        log = self._open(self._folder / "new", TRANSACTION_STATE_TOPIC, 0)
        found = {}
        offset = log.start_offset
        while offset < log.end_offset:
            content = memoryview(b"".join(log.read(offset, _ALL).views))
            for position, header in iter_headers(content):
                offset = header.last_offset + 1
                for record in iter_records(content[position : position + header.size_bytes]):
                    assert record.key is not None
                    key = bytes(record.key)
                    name, value = (
                        schema.RECORDS.decode_key(key),
                        schema.RECORDS.decode_value(key, record.value),
                    )
                    assert isinstance(name, schema.TransactionLogKey)
                    assert isinstance(value, schema.TransactionLogValue)
                    found[name.transactional_id] = value
        log.close()
        return found

    def pending_offsets(self) -> set[int]:
        """The producers whose transactions are open in the restored log of ``__consumer_offsets``."""
        log = self._open(self._folder / "new", CONSUMER_OFFSETS_TOPIC, 0)
        producers = list(log.log.producers.state)
        log.close()
        return {each.producer_id for each in producers if each.current_txn_first_offset is not None}

    def _open(self, folder: Path, topic: str, index: int) -> SnapshotLog:
        name = TopicPartition(topic, index)
        return SnapshotLog.open(
            self._machine, f"{folder}/{topic}-{index}", name, topic_id=self._topics[topic]
        )

    @asynccontextmanager
    async def _coordinator(
        self, folder: Path, index: int, epoch: int
    ) -> AsyncIterator[tuple[DisklessCoordinator, SnapshotLog]]:
        snapshots = self._open(folder, DISKLESS_METADATA_TOPIC, index)
        log = lone_metadata_log(self._machine, snapshots, epoch)
        await log.settled()
        coordinators = DisklessCoordinator(self._machine)
        coordinators.load(index, epoch, log)
        await coordinators.until_loaded(index)
        assert coordinators.is_active(index), coordinators.problem()
        yield coordinators, snapshots
        await coordinators.close()
        await log.settled()
        snapshots.close()

    async def _save(self, log: SnapshotLog, topic: str, index: int) -> None:
        content = b"".join(log.read(0, _ALL).views)
        part = await self._stored(f"{topic}-{index}", content)
        pieces = (LogPiece(part, 0, log.end_offset, _EPOCH),)
        self._logs[PartitionKey(self._topics[topic], index)] = LogPieces(topic, pieces)

    async def _stored(self, name: str, content: bytes) -> ObjectPart:
        key = f"{DATA_FOLDER}{name}"
        await self._storage.upload(key, content, len(content))
        return ObjectPart(key, 0, len(content), crc32c(content))

    def _metadata(self) -> Sequence[Message]:
        records: list[Message] = [r.FeatureLevelRecord(name="metadata.version", feature_level=26)]
        topics = [
            (TRANSACTION_STATE_TOPIC, 1),
            (DISKLESS_METADATA_TOPIC, self._count),
            (CONSUMER_OFFSETS_TOPIC, 1),
            (REMOTE_LOG_METADATA_TOPIC, 1),
        ]
        for name, count in topics:
            records += self._topic(name, self._topics[name], count)
        return [*records, *self._topic(NAME, TOPIC, self._count, has_owners=True)]

    def _topic(self, name: str, topic_id: UUID, count: int, *, has_owners: bool = False) -> list[Message]:
        partitions = [
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[NODE_ID],
                isr=[NODE_ID],
                leader=NODE_ID,
                leader_epoch=_EPOCH,
                owner=index if has_owners else -1,
            )
            for index in range(count)
        ]
        return [r.TopicRecord(name=name, topic_id=topic_id), *partitions]
