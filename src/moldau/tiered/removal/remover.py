"""The remote partition remover: removes the remote data of topics that are deleted, or no longer tiered.

A deleted partition has the events DELETE_PARTITION_MARKED, STARTED and FINISHED. If a broker finds an
unfinished deletion, also after a restart, it continues the deletion. Some deletions have no first event yet.
To find them, the remover compares the partitions with remote data to the topics of the cluster. A topic that
is missing in the committed metadata is deleted. A topic that is missing only in this broker's metadata may be
new.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from moldau.runtime import KafkaError
from moldau.tiered.metadata.lifecycle import (
    IllegalTransitionError,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.remote_log_manager import RemoteLogManager
from moldau.tiered.removal.deletion import delete_objects, delete_segment
from moldau.tiered.storage.storage_manager import RemoteStorageError
from moldau.tiered.tasks.context import LATE_WRITE_GRACE_MS

__all__ = ["HostedPartitions", "NoHostedPartitions", "RemotePartitionRemover"]

logger = logging.getLogger(__name__)

RECONCILE_INTERVAL_S: Final = 300.0
NEWS_PAUSE_S: Final = 1.0
"""Delay between a notification and the check. Several metadata partitions often catch up within this time,
and one check is then enough for all of them."""


class HostedPartitions(Protocol):
    """The information about this broker's partitions that a removal needs."""

    def untiered(self, partitions: Collection[TopicIdPartition]) -> Collection[TopicIdPartition]:
        """The partitions among ``partitions`` that this broker leads and that are not tiered now. The caller
        passes only partitions with remote data."""
        ...

    async def until_current(self) -> None:
        """Wait until :meth:`untiered` uses all metadata that were committed at the time of the call.

        Raises ``KafkaError`` or ``TimeoutError`` while it is unknown which metadata are committed.
        """
        ...

    def emptied(self, partition: TopicIdPartition) -> None:
        """Called after :meth:`RemotePartitionRemover.empty_partition`. The topic may have become tiered again
        in the meantime."""
        ...


class NoHostedPartitions:
    """The implementation for a broker that never had tiered partitions."""

    def untiered(self, partitions: Collection[TopicIdPartition]) -> Collection[TopicIdPartition]:
        return ()

    async def until_current(self) -> None: ...

    def emptied(self, partition: TopicIdPartition) -> None: ...


class RemotePartitionRemover:
    """Runs next to the log manager, on every broker that follows metadata partitions."""

    def __init__(
        self,
        manager: RemoteLogManager,
        deleted: Callable[[Collection[TopicIdPartition]], Awaitable[Collection[TopicIdPartition]]],
        hosted: HostedPartitions | None = None,
        owns: Callable[[TopicIdPartition], bool] = lambda _: True,
        news: asyncio.Event | None = None,
    ) -> None:
        """``deleted`` gets partitions with remote data, and returns the partitions whose topic was deleted.
        It uses committed records. If it cannot get them, it raises ``KafkaError`` or ``TimeoutError``.

        ``owns`` returns whether this broker begins and completes the deletion of a partition. ``news`` is set
        when there may be more data to remove.
        """
        self._context = manager.context
        self._manager = manager
        self._deleted = deleted
        self._hosted = hosted or NoHostedPartitions()
        self._owns = owns
        self._jobs: dict[TopicIdPartition, asyncio.Task[None]] = {}
        self._reconciling: asyncio.Task[None] | None = None
        self._is_closed = False
        self._news = news or asyncio.Event()

    def start(self) -> None:
        """Begin to look for unfinished deletions."""
        if self._reconciling is None and not self._is_closed:
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())

    def delete_partition(
        self, partition: TopicIdPartition, after: "asyncio.Task[None] | None" = None
    ) -> None:
        """Remove the remote data of a partition whose topic was deleted. ``after`` is done when the
        partition's tasks on this broker have ended.

        Only the owner removes anything. Other brokers drop the partition's metadata.
        """
        self._begin(partition, lambda: self._delete_partition(partition), after)

    def empty_partition(self, partition: TopicIdPartition, after: "asyncio.Task[None] | None" = None) -> None:
        """Remove the segments of a partition whose topic is not tiered any more. The partition itself stays.

        If the committed metadata show that another broker leads the partition, or that the topic is tiered
        again, the segments are kept.
        """
        self._begin(partition, lambda: self._empty_partition(partition), after, self._hosted.emptied)

    @property
    def jobs(self) -> "list[asyncio.Task[None]]":
        """The removals in progress."""
        return list(self._jobs.values())

    def is_at_work_on(self, partition: TopicIdPartition) -> bool:
        return partition in self._jobs

    def _begin(
        self,
        partition: TopicIdPartition,
        work: Callable[[], Awaitable[None]],
        after: "asyncio.Task[None] | None",
        then: Callable[[TopicIdPartition], None] | None = None,
    ) -> None:
        if self._is_closed:
            return
        before = self._jobs.get(partition)

        async def job() -> None:
            for earlier in (after, before):
                if earlier is not None:
                    await asyncio.gather(earlier, return_exceptions=True)
            # Wait until the saved logs of the cluster show that the topic was deleted, or is no longer
            # tiered. A restored cluster then knows this, too.
            await self._context.pending_deletions.until_saved()
            await self._insist(partition, work)

        def over(task: "asyncio.Task[None]") -> None:
            if self._jobs.get(partition) is task:
                del self._jobs[partition]
            if not task.cancelled() and then is not None and partition not in self._jobs:
                then(partition)

        task = self._jobs[partition] = self._task(job(), f"remove {partition}")
        task.add_done_callback(over)

    @staticmethod
    def _task(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work, name=name)

    async def _insist(self, partition: TopicIdPartition, work: Callable[[], Awaitable[None]]) -> None:
        """Retry until the removal is done. Every step may be repeated."""
        failures = 0
        while True:
            try:
                async with self._manager.removals.place():
                    await work()
                return
            except (RemoteStorageError, KafkaError, IllegalTransitionError, TimeoutError) as error:
                failures += 1
                logger.warning("cannot remove the remote data of %s yet: %s", partition, error)
            except Exception:
                failures += 1
                logger.exception("removing the remote data of %s failed; it is tried again", partition)
            entropy = self._context.machine.entropy
            await asyncio.sleep(self._manager.settings.backoff_ms(failures, entropy) / 1000)

    # -- a deleted topic ----------------------------------------------------------------------

    async def _delete_partition(self, partition: TopicIdPartition) -> None:
        metadata = self._context.metadata
        if not self._owns(partition):
            # Another broker owns this deletion, and the metadata log refuses events of this broker. Therefore
            # the owner finds and removes all remaining segments.
            metadata.on_stop_partitions([partition])
            return
        state = self._state_of(partition)
        if state is None:
            try:
                await self._write_state(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
            except IllegalTransitionError:
                return  # The removal had already finished, but the response was lost.
        if state in (None, RemotePartitionDeleteState.DELETE_PARTITION_MARKED):
            await self._write_state(partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        await metadata.wait_ready(partition)
        # The list is complete, because no copy begins after DELETE_PARTITION_MARKED.
        segments = metadata.list_remote_log_segments(partition)
        for segment in segments:
            await delete_objects(self._context, segment)
        for segment in await self._outwait_late_writes(segments):
            await delete_objects(self._context, segment)
        await self._write_state(partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
        metadata.on_stop_partitions([partition])
        logger.info("removed the remote data of a deleted partition", extra={"partition": str(partition)})

    def _state_of(self, partition: TopicIdPartition) -> RemotePartitionDeleteState | None:
        for deletion in self._context.metadata.remote_partition_deletions():
            if deletion.partition == partition:
                return deletion.state
        return None

    async def _write_state(self, partition: TopicIdPartition, state: RemotePartitionDeleteState) -> None:
        context = self._context
        await context.metadata.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(partition, state, context.now_ms(), context.broker_id)
        )

    async def _outwait_late_writes(
        self, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Wait until no copy that was started can write any more bytes. After that, the bytes that such
        copies have written must be removed.

        The wait begins now and not at the start of the copies, because an engine stores the last segments of
        a plan a long time after it has planned them. ``segments`` is the list before their objects were
        deleted, because a copy may have finished after that deletion.
        """
        begun = [each for each in segments if each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED]
        if begun:
            await asyncio.sleep(LATE_WRITE_GRACE_MS / 1000)
        return begun

    # -- a topic that is not tiered any more --------------------------------------------------

    async def _empty_partition(self, partition: TopicIdPartition) -> None:
        metadata = self._context.metadata
        metadata.on_partition_leadership_changes([partition], [])
        await metadata.wait_ready(partition)
        begun = await self._outwait_late_writes(metadata.list_remote_log_segments(partition))
        segments = metadata.list_remote_log_segments(partition)
        # This broker's metadata may be old. Perhaps another broker leads the partition, and the topic is
        # tiered again. Segments that were copied later are not in this list.
        await self._hosted.until_current()
        removals: list[Callable[[], Awaitable[object]]] = [
            partial(delete_segment, self._context, segment, is_saved=True) for segment in segments
        ]
        removals += [partial(delete_objects, self._context, segment) for segment in begun]
        for remove in removals:
            if not self._hosted.untiered([partition]):
                logger.info("the remote data of a partition stay", extra={"partition": str(partition)})
                break
            await remove()
        else:
            logger.info("removed the remote data of a partition", extra={"partition": str(partition)})
        metadata.on_stop_partitions([partition])

    # -- removals that other brokers did not finish --------------------------------------------------

    async def _reconcile(self) -> None:
        while True:
            try:
                await self.reconcile_deletions()
            except (RemoteStorageError, KafkaError, TimeoutError) as error:
                logger.warning("cannot look for remote data of deleted topics: %s", error)
            except Exception:
                logger.exception("looking for remote data of deleted topics failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_INTERVAL_S):
                    await self._news.wait()
                    await asyncio.sleep(NEWS_PAUSE_S)
            self._news.clear()

    def check_soon(self) -> None:
        """Check again, because this broker now knows more than at the last check. After the loss of its local
        cache, it knows no deletions at first."""
        self._news.set()

    async def reconcile_deletions(self) -> None:
        """Continue deletions that were begun, and begin deletions that were never begun."""
        metadata = self._context.metadata
        known = await metadata.remote_log_partitions()
        if self._context.deletions_are_held():
            return
        begun = [deletion.partition for deletion in metadata.remote_partition_deletions()]
        deleted = await self._deleted([partition for partition in known if self._owns(partition)])
        for partition in dict.fromkeys((*begun, *deleted)):
            if partition not in self._jobs and self._owns(partition):
                self.delete_partition(partition)
        for partition in self._hosted.untiered(known):
            if partition not in self._jobs:
                self.empty_partition(partition)

    async def close(self) -> None:
        """Cancel the removals in progress, and begin no new removal. After the next start the removals
        continue."""
        self._is_closed = True
        tasks = [*self._jobs.values(), *filter(None, [self._reconciling])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
