"""The remote log manager: it runs the tasks of each partition at their intervals, and limits the number of
concurrent tasks.

A leader copies and cleans up, and a follower finds out which records are in the remote tier. Each task runs
in rounds, with ``remote.log.manager.task.interval.ms`` in between. After each failure the wait doubles, up to
a limit, with jitter.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from moldau.runtime import Entropy, KafkaError
from moldau.tiered.copied_end import find_highest_copied
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteStorageError
from moldau.tiered.tasks.cleanup_task import ExpirationTask
from moldau.tiered.tasks.context import LocalReplica, RemoteTaskContext, TaskPartition
from moldau.tiered.tasks.copy import CopyTask
from moldau.tiered.work_pool import WorkPool

__all__ = ["RemoteLogManager", "RemoteLogManagerSettings"]

logger = logging.getLogger(__name__)

_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""The fractional parts of the multiples of this number are spread evenly, for any number of multiples."""


class FollowerTask:
    """The task of a partition that this broker follows. :meth:`run` runs one round."""

    def __init__(self, context: RemoteTaskContext, partition: TaskPartition) -> None:
        self._context = context
        self._partition = partition

    async def run(self) -> None:
        metadata, partition = self._context.metadata, self._partition
        await metadata.wait_ready(partition.partition)
        found = find_highest_copied(metadata, partition.partition, partition.log)
        partition.log.highest_copied_offset = max(partition.log.highest_copied_offset, found)

    def stop(self) -> None:
        """Do nothing, because this task has no resources."""


@dataclass(frozen=True, slots=True)
class RemoteLogManagerSettings:
    """The settings ``remote.log.manager.*`` of Kafka."""

    task_interval_ms: int = 30_000
    retry_backoff_ms: int = 500
    retry_backoff_max_ms: int = 30_000
    retry_jitter: float = 0.2
    copier_pool_size: int = 10
    expiration_pool_size: int = 10

    def first_wait_ms(self, number: int) -> float:
        """Time between the first round and the second round of the task with this number.

        It is between half an interval and a whole interval, and it differs for each task. Therefore tasks
        that begin together do not stay synchronised.
        """
        return self.task_interval_ms * (1 - number * _GOLDEN_RATIO % 1 / 2)

    def backoff_ms(self, failures: int, entropy: Entropy) -> float:
        """Time to wait after the given number of consecutive failures, in ms."""
        wait_ms = min(self.retry_backoff_max_ms, self.retry_backoff_ms * 2.0 ** min(failures - 1, 30))
        return wait_ms * entropy.uniform(1 - self.retry_jitter, 1 + self.retry_jitter)


class Task(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


_MakeTask: TypeAlias = Callable[[RemoteTaskContext, TaskPartition], Task]


class _Running:
    """A task of one partition and the loop that repeats it."""

    def __init__(self, task: Task, rounds: "asyncio.Task[None]", leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self._task = task
        self._rounds = rounds

    async def stop(self) -> None:
        self._rounds.cancel()
        await asyncio.gather(self._rounds, return_exceptions=True)
        self._task.stop()


class RemoteLogManager:
    """Runs the tasks of partitions. The code that hosts the partitions notifies this class of the broker's
    role for each partition."""

    def __init__(self, context: RemoteTaskContext, settings: RemoteLogManagerSettings) -> None:
        self.context = context
        self._settings = settings
        self._copier = WorkPool(settings.copier_pool_size)
        self._expiration = WorkPool(settings.expiration_pool_size)
        self._following = WorkPool(settings.expiration_pool_size)
        self.removals = WorkPool(settings.expiration_pool_size)
        """A pool for the jobs of the partition remover, which may wait for a long time."""
        self._running: dict[TopicIdPartition, dict[str, _Running]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._begun_count = 0
        self._is_closed = False
        context.meters.watch_tasks(self._copier, self._expiration)

    @property
    def settings(self) -> RemoteLogManagerSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: RemoteLogManagerSettings) -> None:
        self._settings = settings
        self._copier.size = settings.copier_pool_size
        self._expiration.size = self._following.size = settings.expiration_pool_size
        self.removals.size = settings.expiration_pool_size

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """Partitions with tasks on this broker."""
        return [partition for partition, running in self._running.items() if running]

    # -- roles --------------------------------------------------------------------------------

    def lead(
        self, partition: TopicIdPartition, replica: LocalReplica, *, copies: bool, leader_epoch: int = 0
    ) -> None:
        """Run the tasks of a partition that this broker leads. ``copies`` is the negation of
        ``remote.log.copy.disable``. Repeated calls are allowed.

        In a new epoch the tasks begin again from the start, because another broker may have led and done the
        same work. After :meth:`close` the call is ignored, like :meth:`follow`.
        """
        if self._is_closed:
            return
        wanted: dict[str, tuple[WorkPool, _MakeTask]] = {"expire": (self._expiration, ExpirationTask)}
        if copies:
            wanted["copy"] = (self._copier, CopyTask)
        self._begin(partition, replica, wanted, leader_epoch)
        self.context.metadata.on_partition_leadership_changes([partition], [])

    def follow(self, partition: TopicIdPartition, replica: LocalReplica) -> None:
        """Run the task of a partition that has a replica on this broker but another leader. Repeated calls
        are allowed."""
        if self._is_closed:
            return
        self._begin(partition, replica, {"follow": (self._following, FollowerTask)})
        self.context.metadata.on_partition_leadership_changes([], [partition])

    def stop(self, partition: TopicIdPartition) -> "asyncio.Task[None] | None":
        """Stop the partition's tasks. The returned task is done when the last task of the partition has
        ended."""
        self.context.meters.forget(partition.topic, partition.partition)
        return self._end(partition, list(self._running.pop(partition, {}).values()))

    def release(self, partition: TopicIdPartition) -> None:
        """Stop the tasks like :meth:`stop` and drop the partition's metadata, because this broker has no
        replica any more.
        """
        self.stop(partition)
        self.context.metadata.on_stop_partitions([partition])

    def _begin(
        self,
        partition: TopicIdPartition,
        replica: LocalReplica,
        wanted: dict[str, tuple[WorkPool, _MakeTask]],
        leader_epoch: int = 0,
    ) -> None:
        running = self._running.setdefault(partition, {})
        over = [
            name for name, task in running.items() if name not in wanted or task.leader_epoch != leader_epoch
        ]
        self._end(partition, [running.pop(name) for name in over])
        for name, (pool, make) in wanted.items():
            if name not in running:
                task = make(self.context, TaskPartition(partition, replica))
                rounds = asyncio.get_running_loop().create_task(
                    self._repeat(partition, name, task, pool), name=f"{name} {partition}"
                )
                running[name] = _Running(task, rounds, leader_epoch)

    def _end(self, partition: TopicIdPartition, running: list[_Running]) -> "asyncio.Task[None] | None":
        if not running:
            return None

        async def stop_all() -> None:
            for each in running:
                await each.stop()

        stopping = asyncio.get_running_loop().create_task(stop_all(), name=f"stop {partition}")
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        return stopping

    # -- rounds -------------------------------------------------------------------------------

    async def _repeat(self, partition: TopicIdPartition, name: str, task: Task, pool: WorkPool) -> None:
        self._begun_count += 1
        interval_ms = self._settings.first_wait_ms(self._begun_count)
        failures = 0
        log = partial(logger.warning, "cannot %s %s: %s", name, partition)
        while True:
            try:
                async with pool.place():
                    await task.run()
                failures = 0
            except (RemoteStorageError, KafkaError) as error:
                failures += 1
                if isinstance(error, RemoteStorageError) and not error.transient:
                    failures += 30  # Only an operator can remove the cause, so wait for the longest time.
                log(error)
            except Exception:
                failures += 1
                logger.exception("a round to %s %s failed; it will be tried again", name, partition)
            wait_ms = (
                self._settings.backoff_ms(failures, self.context.machine.entropy) if failures else interval_ms
            )
            await asyncio.sleep(wait_ms / 1000)
            interval_ms = float(self._settings.task_interval_ms)

    async def close(self) -> None:
        """End every task, and start no new task."""
        self._is_closed = True
        for partition in list(self._running):
            self.stop(partition)
        await asyncio.gather(*self._stopping, return_exceptions=True)
