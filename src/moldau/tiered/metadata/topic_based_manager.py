"""The metadata manager on ``__remote_log_metadata`` (Kafka's ``TopicBasedRemoteLogMetadataManager``).

A write appends its event, and the event is then durable and committed. The write then waits until the
follower of that metadata partition has applied the event. Therefore a writer reads its own writes. The writer
also notices when the event of another writer came first and its own event was dropped. The topic is created
when the first partition needs it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import apsw

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.runtime import KafkaError, Machine
from moldau.runtime.files.sealed_files import SUM_SUFFIX
from moldau.tiered.metadata.follower import FollowedPartition, MetadataFollower, StoreRenewedError
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState, check_segment_move
from moldau.tiered.metadata.manager import (
    NO_POSITION,
    MetadataPosition,
    RemoteMetadataNotReadyError,
)
from moldau.tiered.metadata.records import encode_event
from moldau.tiered.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.metadata.store import MetadataStore
from moldau.tiered.metadata.topic import (
    EventWriter,
    MetadataTopic,
    TopicDescription,
    metadata_partition_of,
)
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError, RemoteStorageError

__all__ = ["MetadataManagerSettings", "TopicBasedRemoteLogMetadataManager"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

STORE_FILE: Final = "remote-log-metadata.sqlite"
RETRY_MAX_S: Final = 5.0
WANTED_A_TURN: Final = 1_000
"""Number of partitions that are requested from the followers in one iteration of the event loop."""


@dataclass(frozen=True, slots=True)
class MetadataManagerSettings:
    """Kafka's keys of the topic-based manager, except the keys of the topic. Times are in milliseconds."""

    consume_wait_ms: int = 120_000
    """The value of ``remote.log.metadata.consume.wait.ms``."""
    initialization_retry_interval_ms: int = 100
    """The value of ``remote.log.metadata.initialization.retry.interval.ms``."""


class TopicBasedRemoteLogMetadataManager:
    """A ``RemoteLogMetadataManager`` and its ``MetadataHosting``; called on the event loop."""

    def __init__(
        self,
        machine: Machine,
        topic: MetadataTopic,
        folder: str,
        settings: MetadataManagerSettings | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
        leader_epoch_of: Callable[[TopicIdPartition], int | None] = lambda _: 0,
    ) -> None:
        """``folder`` (absolute, created if it does not exist) is for the local cache.

        ``leader_epoch_of`` returns the epoch in which this broker leads a partition, or ``None``. Only the
        leader writes events about the partition's segments. ``on_caught_up`` is called when all events of a
        metadata partition are applied: after each start, and after each loss of the local cache. Until then,
        results about all partitions are incomplete.
        """
        self._topic = topic
        self._entropy = machine.entropy
        self._settings = settings or MetadataManagerSettings()
        self._store = _Store(machine, folder)
        self._described: TopicDescription | None = None
        self._failure: RemoteStorageError | None = None
        self._opened = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None
        self._followers: dict[int, MetadataFollower] = {}
        self._held: dict[TopicIdPartition, int | None] = {}
        """Partitions of this broker, with the epoch for the partitions that it leads."""
        self._led: set[int] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._on_caught_up = on_caught_up
        self._leader_epoch_of = leader_epoch_of

    @property
    def problems(self) -> dict[int, str]:
        """Metadata partitions that cannot be followed now, with the reason. The number -1 stands for the
        topic itself."""
        found = {index: each.problem for index, each in self._followers.items() if each.problem is not None}
        return found if self._failure is None else {**found, -1: str(self._failure)}

    def problem(self) -> str | None:
        for index, reason in self.problems.items():
            name = REMOTE_LOG_METADATA_TOPIC if index < 0 else f"{REMOTE_LOG_METADATA_TOPIC}-{index}"
            return f"{name} cannot be followed: {reason}"
        return None

    def notice(self) -> str | None:
        skipped = self.skipped
        return f"{skipped} broken records of {REMOTE_LOG_METADATA_TOPIC} were skipped" if skipped else None

    @property
    def notifies_of_removals(self) -> bool:
        return True

    @property
    def skipped(self) -> int:
        """Number of records that could not be read in the metadata partitions that are followed now."""
        return sum(each.skipped for each in self._followers.values())

    # Assignments ----------------------------------------------------------------------------------

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        terms = {partition: self._leader_epoch_of(partition) for partition in leaders}
        for partition, term in {**dict.fromkeys(followers), **terms}.items():
            # A new leader must first apply all events of the previous leaders.
            afresh = term is not None and self._held.get(partition) != term
            self._held[partition] = term
            if self._described is not None:
                self._follower(self._metadata_partition(partition)).begin_following(partition, afresh=afresh)
        self._open_soon()

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)
            if self._described is not None:
                index = self._metadata_partition(partition)
                if index in self._followers:
                    self._followers[index].drop(partition)
                    self._settle(index)

    def owns(self, partition: TopicIdPartition) -> bool:
        """Whether this broker leads the metadata partition of ``partition``. If so, it completes the
        deletions in that metadata partition."""
        return self._described is not None and self._metadata_partition(partition) in self._led

    def on_metadata_partition_leadership(self, metadata_partition: int, *, leads: bool) -> None:
        """Begin or end this broker's leadership of a partition of the topic.

        The leader follows this partition even if it uses no user partition whose events are in this
        partition. The reason is that the leader completes unfinished deletions (KIP-405's remote partition
        remover), and must therefore know them.
        """
        if leads:
            self._led.add(metadata_partition)
            if self._described is not None:
                self._follower(metadata_partition).catch_up()
            self._open_soon()
        else:
            self._led.discard(metadata_partition)
            self._settle(metadata_partition)

    def _follower(self, index: int) -> MetadataFollower:
        found = self._followers.get(index)
        if found is None:
            found = self._followers[index] = MetadataFollower(
                index, self._topic, self._store, self._entropy, self._on_caught_up
            )
            found.start()
        return found

    def _settle(self, index: int) -> None:
        """Stop a follower that is not used. The next follower begins with the stored state."""
        follower = self._followers.get(index)
        if follower is None or index in self._led or follower.is_needed:
            return
        del self._followers[index]
        task = asyncio.get_running_loop().create_task(follower.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _metadata_partition(self, partition: TopicIdPartition) -> int:
        assert self._described is not None
        return metadata_partition_of(partition, self._described.partition_count)

    def _open_soon(self) -> None:
        if self._opening is None and not self._closed:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="open remote metadata")

    async def _open(self) -> None:
        wait_s = self._settings.initialization_retry_interval_ms / 1000
        told = ""
        while True:
            try:
                described = await self._topic.ensure()
                await self._store.open(described)
                break
            except (RemoteStorageError, KafkaError, apsw.Error, OSError) as error:
                if isinstance(error, RemoteStorageError) and not error.transient:
                    logger.error("remote log metadata cannot be used: %s", error)
                    self._failure = error
                    self._opened.set()
                    return
                if str(error) != told:
                    logger.warning("remote log metadata cannot be used yet: %s", error)
                    told = str(error)
            await asyncio.sleep(wait_s * self._entropy.uniform(0.8, 1.2))
            wait_s = min(RETRY_MAX_S, wait_s * 2)
        self._described = described
        for index in self._led:
            self._follower(index)
        for number, partition in enumerate(list(self._held)):
            if number % WANTED_A_TURN == WANTED_A_TURN - 1:
                await asyncio.sleep(0)
            if partition in self._held:
                self._follower(self._metadata_partition(partition)).begin_following(partition)
        self._opened.set()

    # Readiness ------------------------------------------------------------------------------------

    def is_ready(self, partition: TopicIdPartition) -> bool:
        if self._described is None:
            return False
        follower = self._followers.get(self._metadata_partition(partition))
        return follower is not None and follower.is_ready(partition)

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        await self._until_open()
        follower = self._followers.get(self._metadata_partition(partition))
        if follower is None or await follower.until_loaded(partition) is None:
            raise RemoteMetadataNotReadyError(f"{partition} is not assigned to this broker")

    async def wait_applied(self, position: MetadataPosition) -> None:
        if position == NO_POSITION:
            return
        await self._until_open()
        follower = self._followers.get(position.partition)
        if follower is None:
            raise RemoteMetadataNotReadyError(
                f"nothing of {REMOTE_LOG_METADATA_TOPIC}-{position.partition} is followed by this broker"
            )
        await self._wait(follower, position.offset)

    async def _until_open(self) -> None:
        if self._closed:
            raise RemoteMetadataNotReadyError("the metadata manager is closed")
        self._open_soon()
        await self._opened.wait()
        if self._failure is not None:
            raise RemoteStorageError(str(self._failure), transient=False)

    async def _wait(self, follower: MetadataFollower, offset: int) -> None:
        try:
            async with asyncio.timeout(self._settings.consume_wait_ms / 1000):
                await follower.until_applied(offset)
        except TimeoutError as error:
            why = "" if follower.problem is None else f": {follower.problem}"
            raise RemoteStorageError(
                f"the event at {offset} of {REMOTE_LOG_METADATA_TOPIC}-{follower.partition} did not come back"
                f" in {self._settings.consume_wait_ms} ms (remote.log.metadata.consume.wait.ms){why}"
            ) from error

    # Writes ---------------------------------------------------------------------------------------

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{metadata.id}: a segment begins in COPY_SEGMENT_STARTED")
        followed = self._ready(metadata.topic_id_partition)
        known = followed.cache.get(metadata.id.id)
        check_segment_move(None if known is None else known.state, metadata.state)
        return await self._write(metadata, self._writer(metadata.topic_id_partition))

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> MetadataPosition:
        known = self._ready(update.topic_id_partition).cache.get(update.id.id)
        if known is None:
            raise RemoteResourceNotFoundError(f"{update.id} is not known: it was deleted, or never begun")
        check_segment_move(known.state, update.state)
        return await self._write(update, self._writer(update.topic_id_partition))

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> MetadataPosition:
        return await self._write(metadata)

    def _writer(self, partition: TopicIdPartition) -> EventWriter:
        epoch = self._leader_epoch_of(partition)
        if epoch is None:
            raise RemoteMetadataNotReadyError(f"{partition} is not led by this broker")
        return EventWriter(partition, epoch)

    async def _write(self, event: RemoteLogMetadata, writer: EventWriter | None = None) -> MetadataPosition:
        await self._until_open()
        index = self._metadata_partition(event.topic_id_partition)
        follower = self._follower(index)
        with follower.writing():
            offset = await self._topic.append(index, encode_event(event), writer)
            await self._wait(follower, offset)
        return MetadataPosition(index, offset)

    # Reads ----------------------------------------------------------------------------------------

    def _ready(self, partition: TopicIdPartition) -> FollowedPartition:
        if self._failure is not None:
            raise RemoteStorageError(str(self._failure), transient=False)
        if self._described is not None:
            follower = self._followers.get(self._metadata_partition(partition))
            if follower is not None and follower.is_ready(partition):
                return follower.followed[partition]
        known = "being loaded" if partition in self._held else "not assigned to this broker"
        raise RemoteMetadataNotReadyError(f"the remote metadata of {partition} is {known}")

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._ready(partition).cache.segment_for(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._ready(partition).cache.next_with_txn_index(epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return self._ready(partition).cache.highest_offset(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self._ready(partition).cache.list(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        return self._ready(partition).cache.size_bytes(epoch)

    def remote_partition_deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        return [event for each in self._followers.values() for event in each.deletions.values()]

    async def remote_log_partitions(self) -> Sequence[TopicIdPartition]:
        await self._until_open()
        found: list[TopicIdPartition] = []
        try:
            for index in sorted(self._followers):
                more: list[TopicIdPartition] = await self._store.call(
                    self._store.generation, MetadataStore.partitions, index
                )
                found += more
        except (apsw.Error, OSError, StoreRenewedError) as error:
            raise RemoteStorageError(f"the remote metadata cache: {error}") from error
        return found

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if not self._opened.is_set():
            self._failure = RemoteStorageError("the metadata manager is closed")
            self._opened.set()
        followers, self._followers = list(self._followers.values()), {}
        await asyncio.gather(*(each.close() for each in followers), *self._ending)
        await self._store.close()


class _Store:
    """The database. Worker threads make one call at a time. The database is rebuilt when it is damaged."""

    def __init__(self, machine: Machine, folder: str) -> None:
        self._machine = machine
        self._folder = folder
        self._lock = asyncio.Lock()
        self._store: MetadataStore | None = None
        self._described: TopicDescription | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self.generation = 0

    async def open(self, described: TopicDescription) -> None:
        """Open the existing database, or create it."""
        self._described = described
        await self._in_turn(self._open)

    async def call(self, generation: int, function: Callable[..., T], *arguments: Any) -> T:
        """Run ``function(store, *arguments)``. The function runs to its end even when the caller is
        cancelled.
        """
        return await self._in_turn(self._run, generation, function, *arguments)

    async def _in_turn(self, function: Callable[..., T], *arguments: Any) -> T:
        task = asyncio.get_running_loop().create_task(self._locked(function, *arguments))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _locked(self, function: Callable[..., T], *arguments: Any) -> T:
        async with self._lock:
            return await self._machine.workers.run(function, *arguments)

    def _open(self) -> MetadataStore:
        assert self._described is not None
        if self._store is None:
            path, disk = f"{self._folder}/{STORE_FILE}", self._machine.disk
            is_known = not disk.is_dir(self._folder) or any(map(disk.exists, (path, path + SUM_SUFFIX)))
            if not is_known and not self.generation:
                logger.warning("%s is missing: it is rebuilt from the topic", path)
            disk.make_dirs(self._folder)
            self._store = MetadataStore.open(self._machine, path, self._described.topic_id)
        return self._store

    def _run(self, generation: int, function: Callable[..., T], *arguments: Any) -> T:
        if generation != self.generation:
            raise StoreRenewedError
        store = self._open()
        try:
            return function(store, *arguments)
        except (apsw.CorruptError, apsw.NotADBError, apsw.SchemaChangeError) as error:
            logger.warning("the remote metadata cache in %s is damaged: %s", self._folder, error)
            store.abandon()
            self._store = None
            self.generation += 1
            raise

    async def close(self) -> None:
        """Wait for the call in progress, then close the file."""
        await asyncio.gather(*self._calls, return_exceptions=True)
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(apsw.Error):
                await self._machine.workers.run(store.close)
