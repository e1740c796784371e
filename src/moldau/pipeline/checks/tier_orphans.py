"""Finds orphans in the remote tier. These are objects of failed or late attempts to build a segment, and they
have no metadata.

This scan only counts them. The leaders' own scan removes them, because only a leader can be sure that no
other node will publish the attempt.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.client.cluster import Client, parse_bootstrap
from moldau.metrics import Meters
from moldau.objects.factory import open_storage
from moldau.pipeline.reading.tier_segments import Tier, list_known_segments
from moldau.protocol.own.tiered.list_segments import TieredSegment
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.object_layout import decode_location, parse_segment_key, partition_folder

_GONE = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True)
class TierFolder:
    """Partitions of one topic. A task lists the objects of these partitions."""

    topic: str
    topic_id: UUID
    partitions: tuple[int, ...]


class TierReport(NamedTuple):
    """The results of a task that has scanned a :class:`TierFolder`."""

    listed: int = 0
    old: int = 0
    orphans: tuple[str, ...] = ()
    orphan_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScanTier:
    """Lists the objects of a topic's segments. It is sent to the tasks."""

    bootstrap: str
    tier: Tier
    before_ms: int
    """Objects that were written at this time or later are skipped, because they may belong to an unfinished
    segment."""
    timeout_s: float

    def __call__(self, folder: TierFolder) -> TierReport:
        return asyncio.run(self._scan(folder))

    async def _scan(self, folder: TierFolder) -> TierReport:
        client = Client(parse_bootstrap(self.bootstrap), self.timeout_s)
        storage = open_storage(self.tier.storage, Machine.real(), Meters())
        listed, old = 0, dict[str, int]()
        orphans: list[str] = []
        try:
            for number in folder.partitions:
                partition = TopicIdPartition(folder.topic_id, folder.topic, number)
                here: dict[str, int] = {}
                async for page in storage.list(partition_folder(self.tier.folder, partition)):
                    listed += len(page)
                    here |= {
                        info.key: info.size_bytes for info in page if info.last_modified_ms < self.before_ms
                    }
                old |= here
                if here:
                    # The metadata are requested after the listing. Therefore they include each segment that
                    # was published during the listing.
                    orphans += await self._unknown(client, folder, number, sorted(here))
        finally:
            await storage.close()
            await client.close()
        return TierReport(listed, len(old), tuple(orphans), sum(old[key] for key in orphans))

    async def _unknown(
        self, client: Client, folder: TierFolder, partition: int, keys: Sequence[str]
    ) -> list[str]:
        """The orphans among ``keys``. The result is empty if the topic was deleted after the plan was made,
        because its objects are then deleted, too."""
        try:
            topic = await client.topic(folder.topic)
            if topic.topic_id != folder.topic_id:
                return []
            known = {one.id: one for one in await list_known_segments(client, topic, partition)}
        except KafkaError as error:
            if error.code in _GONE:
                return []
            raise
        return [key for key in keys if is_orphan(key, known)]


def is_orphan(key: str, known: dict[UUID, TieredSegment]) -> bool:
    """Whether an object is an orphan: it belongs to no existing segment, or to an attempt that was not
    published."""
    parsed = parse_segment_key(key)
    if parsed is None:
        return False  # an object of another program, which is no orphan
    segment = known.get(parsed.id.id)
    if segment is None:
        return True
    if segment.state != RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        return False  # the segment is being built or deleted
    published = decode_location(segment.custom_metadata).attempt if segment.custom_metadata else ""
    return parsed.attempt != published
