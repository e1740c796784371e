"""Classic partitions on a broker with a remote tier. A topic may become tiered, or stop being tiered, at any
time."""

from collections.abc import Awaitable, Callable, Collection

from moldau.cluster.image.topics_image import Topic
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import StopReason
from moldau.server.subsystems.partitions.classic_kind import ClassicKind
from moldau.server.subsystems.tiered.reads import ClassicRemotePart
from moldau.server.topics.partition_kinds import PartitionKind, RefusingKind
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.log.config import LogConfig
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.remote_log_manager import RemoteLogManager
from moldau.tiered.removal.remover import RemotePartitionRemover


class Tiering:
    """Begins and ends the remote part of this broker's classic partitions, and answers the remover's
    questions about these partitions.

    Implements :class:`moldau.tiered.removal.remover.HostedPartitions`.
    """

    def __init__(
        self,
        partitions: PartitionRegistry,
        manager: RemoteLogManager,
        reader: RemoteReader,
        until_current: Callable[[], Awaitable[None]],
    ) -> None:
        """``until_current`` waits until ``partitions`` have applied all metadata that were committed at the
        time of the call. If this fails, it raises an exception."""
        self._until_current = until_current
        self._partitions = partitions
        self._manager = manager
        self._reader = reader

    def begin(self, partition: ClassicPartition) -> None:
        """Make a tiered partition's remote part readable, and run the tasks that a leader or a follower
        needs. The method may be called again for the same partition."""
        name = _identity(partition)
        if partition.remote.part is None:  # A partition with chunks already has a remote part.
            # The old value of this offset may come from an earlier copy task. That task may have finished a
            # copy after the removal of all copies of this partition had begun.
            partition.log.highest_copied_offset = -1
            partition.remote.begin(self.part_of(partition))
        if partition.is_leader:
            copies, epoch = partition.log.config.copies_to_remote, partition.leader_epoch
            self._manager.lead(name, partition, copies=copies, leader_epoch=epoch)
        else:
            self._manager.follow(name, partition)

    def part_of(self, partition: ClassicPartition) -> ClassicRemotePart:
        """The records of a partition in the remote tier."""
        return ClassicRemotePart(_identity(partition), partition.log, self._reader, partition.read)

    def emptied(self, partition: TopicIdPartition) -> None:
        """The remote data of the partition were removed. If the topic has become tiered again during the
        removal, make a new remote part and start the tasks of the partition."""
        found = self._partitions.get_by_id(partition.topic_id, partition.partition)
        if isinstance(found, ClassicPartition) and found.log.config.remote_storage_enable:
            self.begin(found)

    async def until_current(self) -> None:
        await self._until_current()

    def untiered(self, partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
        """Return the partitions that this broker leads and whose topics are no longer tiered. If the broker
        stopped while it removed the remote data of such partitions, it now continues the removal."""
        found = []
        for name in partitions:
            partition = self._partitions.get_by_id(name.topic_id, name.partition)
            if (
                isinstance(partition, ClassicPartition)
                and partition.is_leader
                and not partition.log.config.remote_storage_enable
            ):
                found.append(name)
        return found


class TieredKind(PartitionKind[ClassicPartition]):
    """A classic kind that reports each partition to the remote log manager."""

    def __init__(
        self,
        classic: ClassicKind,
        manager: RemoteLogManager,
        remover: RemotePartitionRemover,
        tiering: Tiering,
    ) -> None:
        self._classic = classic
        self._manager = manager
        self._remover = remover
        self._tiering = tiering

    def log_config(self, topic: Topic) -> LogConfig | None:
        return self._classic.log_config(topic)

    def open(self, topic: Topic, index: int) -> ClassicPartition:
        return self._classic.open(topic, index)

    def apply_role(self, partition: ClassicPartition, topic: Topic, applied: Callable[[], None]) -> None:
        def report() -> None:
            self._update(partition)
            applied()

        self._classic.apply_role(partition, topic, report)

    def reconfigure(self, partition: ClassicPartition) -> None:
        self._classic.reconfigure(partition)
        self._update(partition)

    def may_suspend(self, partition: ClassicPartition) -> bool:
        return self._classic.may_suspend(partition)

    def coordinator_replica(self, partition: ClassicPartition) -> ClassicPartition:
        return self._classic.coordinator_replica(partition)

    def close(self, partition: ClassicPartition, reason: StopReason) -> None:
        was_leader, was_tiered = partition.is_leader, _is_tiered(partition)
        self._classic.close(partition, reason)
        if not was_tiered:
            return
        partition.remote.end()
        name = _identity(partition)
        if reason is StopReason.TOPIC_DELETED and was_leader:
            self._remover.delete_partition(name, after=self._manager.stop(name))
        else:
            self._manager.release(name)

    def _update(self, partition: ClassicPartition) -> None:
        """Reconcile the tasks with the topic's configuration and this broker's role."""
        name = _identity(partition)
        if partition.log.config.remote_storage_enable:
            # While the remote data of the partition are being removed, no tasks are started: segments that
            # are being removed must not count as copied. When the removal ends, the tasks are started.
            if not self._remover.is_at_work_on(name):
                self._tiering.begin(partition)
        elif _is_tiered(partition):
            partition.remote.end()
            stopped = self._manager.stop(name)
            if partition.is_leader:
                self._remover.empty_partition(name, stopped)


def tiered_off_kind() -> RefusingKind:
    """Refuses tiered topics on a broker whose remote tier is off, because this broker could read only a part
    of their records."""
    return RefusingKind(
        lambda topic: (
            f"topic {topic.name} has remote.storage.enable=true, and this broker has"
            " remote.log.storage.system.enable=false: set that to true again; to do without tiered storage,"
            " delete such topics or set their remote.storage.enable to false before"
        )
    )


def _is_tiered(partition: ClassicPartition) -> bool:
    """Whether a partition has records in the remote tier, or will have some."""
    return partition.remote.part is not None and partition.remote.is_tiered


def _identity(partition: ClassicPartition) -> TopicIdPartition:
    return TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)
