"""The task of a follower: track the leader's copies, and free the local disk."""

from moldau.tiered.position import find_highest_copied
from moldau.tiered.tasks.context import RemoteTaskContext, TaskPartition

__all__ = ["FollowerTask"]


class FollowerTask:
    """The task of one partition while this broker follows it. :meth:`run` is one round."""

    def __init__(self, context: RemoteTaskContext, partition: TaskPartition) -> None:
        self._context = context
        self._partition = partition

    async def run(self) -> None:
        metadata, partition = self._context.metadata, self._partition
        await metadata.wait_ready(partition.partition)
        found = find_highest_copied(metadata, partition.partition, partition.log)
        partition.log.highest_copied_offset = max(partition.log.highest_copied_offset, found)

    def stop(self) -> None:
        """It holds no resources."""
