"""Finds unreferenced objects of remote segments, and deletes them.

Failed and late attempts to build a segment leave such objects. Either the metadata do not contain the
segment, or they name the objects of another attempt. An object is checked only when it is older than the
grace period, which is longer than any job. The leader of the object's partition checks the object when two
conditions hold:

1. The leader has written and applied an event of its own. It has therefore also applied all earlier events.
2. The coordinator has stored the leader's epoch. Therefore no segment of an older leader can become valid.

The scan works with storage managers that can list their objects, such as the built-in storage manager.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from moldau.metrics import Meters
from moldau.objects.storage import StorageError
from moldau.runtime import Entropy, KafkaError
from moldau.tiered.consolidation.ports import LedPartition
from moldau.tiered.consolidation.reconciler import SegmentReconciler
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemoteLogSegmentState
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.object_layout import ParsedKey, parse_segment_key
from moldau.tiered.storage.storage_manager import ListableSegments, RemoteStorageError

__all__ = ["SegmentOrphanScan"]

logger = logging.getLogger(__name__)

_CANDIDATES_MAX: Final = 10_000
_DELETED_AT_A_TIME: Final = 500


class SegmentOrphanScan:
    """Scans for orphans. Each pass checks a limited number of objects. The next pass continues after the last
    checked object."""

    def __init__(
        self,
        reconciler: SegmentReconciler,
        storage: ListableSegments,
        led: Callable[[], Mapping[TopicIdPartition, LedPartition]],
        entropy: Entropy,
        meters: Meters,
        *,
        grace_ms: int,
    ) -> None:
        """``led`` returns the diskless partitions that this broker leads."""
        self._reconciler = reconciler
        self._storage = storage
        self._led = led
        self._clock = reconciler.events.clock
        self._entropy = entropy
        self._grace_ms = grace_ms
        self._after = ""
        scope = meters.scoped("moldau.diskless", "SegmentOrphans")
        self._deleted = scope.counter(
            "DeletedPerSec", "Objects of segments that were deleted because no metadata referred to them."
        )

    async def run(self) -> int:
        """Scan once. Returns the number of deleted objects. An exception from this method is always a bug."""
        try:
            found = await self._list_old()
        except StorageError as error:
            logger.info("objects of segments cannot be listed now: %s", error)
            return 0
        deleted = 0
        for partition, keys in found.items():
            led = self._led().get(partition)
            if led is None or not self._may_have_orphans(partition, keys):
                continue
            try:
                deleted += await self._check_keys(led, keys)
            except (KafkaError, RemoteStorageError, IllegalTransitionError, StorageError, OSError) as error:
                # Perhaps the topic of this object was just deleted.
                logger.info("objects of %s cannot be checked now: %s", partition, error)
        return deleted

    async def _list_old(self) -> dict[TopicIdPartition, dict[str, ParsedKey]]:
        """Objects that are older than the grace period and belong to partitions that this broker leads."""
        before_ms = self._clock.now_ms() - self._grace_ms
        found: dict[TopicIdPartition, dict[str, ParsedKey]] = {}
        count, last = 0, ""
        async for page in self._storage.list_objects(self._after):
            for info in page:
                last = info.key
                key = parse_segment_key(info.key)
                if key is None or info.last_modified_ms >= before_ms:
                    continue
                if key.id.topic_id_partition in self._led():
                    found.setdefault(key.id.topic_id_partition, {})[info.key] = key
                    count += 1
            if count >= _CANDIDATES_MAX:
                self._after = last
                return found
        self._after = ""
        return found

    def _may_have_orphans(self, partition: TopicIdPartition, keys: Mapping[str, ParsedKey]) -> bool:
        try:
            return bool(self._orphans(partition, keys))
        except RemoteStorageError:
            return False

    async def _check_keys(self, led: LedPartition, keys: Mapping[str, ParsedKey]) -> int:
        barrier = RemoteLogSegmentMetadata(
            RemoteLogSegmentId.of(led.partition, self._entropy.uuid4()),
            start_offset=0,
            end_offset=0,
            max_timestamp_ms=-1,
            broker_id=self._reconciler.events.broker_id,
            event_timestamp_ms=self._clock.now_ms(),
            segment_size_bytes=0,
            leader_epochs=(EpochStart(0, 0),),
        )
        await self._reconciler.metadata.add_remote_log_segment_metadata(barrier)
        await self._reconciler.fence(led)
        await self._reconciler.discard(barrier)
        orphans = self._orphans(led.partition, keys)
        for start in range(0, len(orphans), _DELETED_AT_A_TIME):
            await self._storage.delete_objects(orphans[start : start + _DELETED_AT_A_TIME])
        self._deleted.value += len(orphans)
        if orphans:
            logger.info("deleted %d unreferenced objects of %s", len(orphans), led.partition)
        return len(orphans)

    def _orphans(self, partition: TopicIdPartition, keys: Mapping[str, ParsedKey]) -> list[str]:
        """The objects without a reference in the current metadata. Raises ``RemoteStorageError`` if the
        metadata are not loaded, or if they name no valid attempt for a segment."""
        known = {one.id.id: one for one in self._reconciler.metadata.list_remote_log_segments(partition)}
        return [text for text, key in keys.items() if self._is_orphan(known, key)]

    def _is_orphan(self, known: Mapping[UUID, RemoteLogSegmentMetadata], key: ParsedKey) -> bool:
        segment = known.get(key.id.id)
        if segment is None:
            return True
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return False  # The segment is being built, or being deleted.
        return self._storage.attempt_of(segment) != key.attempt
