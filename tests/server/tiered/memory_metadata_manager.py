"""A plug-in metadata manager. Tests name it in ``remote.log.metadata.manager.class.name``.

The content of each cluster stays in this process after its nodes have stopped.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from moldau.metrics import Meters
from moldau.runtime import Machine
from moldau.tiered.metadata.lifecycle import (
    RemotePartitionDeleteState,
    check_partition_delete_move,
    check_segment_move,
)
from moldau.tiered.metadata.manager import NO_POSITION, MetadataPosition
from moldau.tiered.metadata.segment_cache import SegmentCache
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError

CLASS_NAME = "memory_metadata_manager.MemoryMetadataManager"


class _Known:
    """State of one cluster."""

    def __init__(self) -> None:
        self.segments: defaultdict[TopicIdPartition, SegmentCache] = defaultdict(SegmentCache)
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}


_CLUSTERS: defaultdict[str, _Known] = defaultdict(_Known)


class MemoryMetadataManager:
    def __init__(self, configs: Mapping[str, str], machine: Machine, meters: Meters) -> None:
        self._known = _CLUSTERS[configs["cluster.id"]]

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        check_segment_move(None, metadata.state)
        self._known.segments[metadata.id.topic_id_partition].put(metadata)
        return NO_POSITION

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> MetadataPosition:
        cache = self._known.segments[update.id.topic_id_partition]
        known = cache.get(update.id.id)
        if known is None:
            raise RemoteResourceNotFoundError(f"{update.id} is not known")
        cache.put(known.with_update(update))
        return NO_POSITION

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> MetadataPosition:
        known = self._known.deletions.get(metadata.partition)
        check_partition_delete_move(None if known is None else known.state, metadata.state)
        self._known.deletions[metadata.partition] = metadata
        if metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._known.segments.pop(metadata.partition, None)
        return NO_POSITION

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._known.segments[partition].segment_for(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._known.segments[partition].next_with_txn_index(epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return self._known.segments[partition].highest_offset(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self._known.segments[partition].list(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        return self._known.segments[partition].size_bytes(epoch)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return True

    async def wait_ready(self, partition: TopicIdPartition) -> None: ...

    async def wait_applied(self, position: MetadataPosition) -> None: ...

    def remote_partition_deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        return [each for each in self._known.deletions.values() if each.state is not finished]

    async def remote_log_partitions(self) -> Sequence[TopicIdPartition]:
        known = self._known
        return [name for name, cache in known.segments.items() if len(cache) and name not in known.deletions]

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None: ...

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None: ...

    async def close(self) -> None: ...
