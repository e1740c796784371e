"""Which remote segments a partition has, asked of its leader, and where their objects lie."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.client.cluster import Client, Endpoint, Topic
from moldau.objects.factory import StorageSettings
from moldau.pipeline.reading.wal_access import broker_config
from moldau.protocol.own.tiered_list_segments import TieredListSegmentsRequest, TieredSegment
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.tiered.lifecycle import RemoteLogSegmentState
from moldau.tiered.object_layout import decode_location, segment_keys
from moldau.tiered.segments import RemoteLogSegmentId

REMOTE_PREFIX: Final = "rsm.config."
MANAGER_CLASS: Final = "remote.log.storage.manager.class.name"
DEFAULT_FOLDER: Final = "tiered"
SEGMENTS_A_PAGE: Final = 1000


class Tier(NamedTuple):
    """Where the built-in storage manager keeps segments."""

    storage: StorageSettings
    folder: str


class SegmentObject(NamedTuple):
    """A segment that can be read. Offsets of both ends."""

    id: UUID
    start_offset: int
    end_offset: int
    size_bytes: int
    object_key: str


async def find_tier(client: Client, given: Mapping[str, str], wal: StorageSettings) -> Tier | None:
    """``None`` where another storage manager keeps segments, whose objects only brokers can read."""
    if await broker_config(client, MANAGER_CLASS):
        return None

    async def config(name: str) -> str | None:
        key = REMOTE_PREFIX + name
        return given.get(key) or await broker_config(client, key)

    url = await config("url") or wal.url
    known = ("url", "prefix")
    options = {
        key.removeprefix(REMOTE_PREFIX): value
        for key, value in given.items()
        if key.startswith(REMOTE_PREFIX) and key.removeprefix(REMOTE_PREFIX) not in known
    }
    if url == wal.url:
        options = {**wal.options, **options}
    return Tier(StorageSettings(url, None, options), (await config("prefix") or DEFAULT_FOLDER).strip("/"))


async def list_segments(client: Client, topic: Topic, partition: int, tier: Tier) -> list[SegmentObject]:
    """The copied segments of a partition, by start offset."""
    found: list[SegmentObject] = []
    skip = 0
    while True:
        page = await _page(client, topic, partition, skip)
        for one in page:
            if one.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                found.append(_located(one, topic, partition, tier))
        if len(page) < SEGMENTS_A_PAGE:
            return sorted(found, key=lambda segment: segment.start_offset)
        skip += len(page)


def _located(one: TieredSegment, topic: Topic, partition: int, tier: Tier) -> SegmentObject:
    attempt = decode_location(one.custom_metadata).attempt if one.custom_metadata else ""
    id = RemoteLogSegmentId(topic.topic_id, topic.name, partition, one.id)
    key = segment_keys(tier.folder, id, one.start_offset, attempt).log
    return SegmentObject(one.id, one.start_offset, one.end_offset, one.size_bytes, key)


async def _page(client: Client, topic: Topic, partition: int, skip: int) -> list[TieredSegment]:
    request = TieredListSegmentsRequest(
        topic=topic.name, partition_index=partition, skip=skip, limit=SEGMENTS_A_PAGE
    )

    async def ask() -> Any:
        leader = (await client.topic(topic.name)).leaders[partition]
        brokers = {row.node_id: Endpoint(row.host, row.port) for row in (await client.metadata([])).brokers}
        if leader not in brokers:
            raise KafkaError(ErrorCode.leader_not_available, f"broker {leader} is not there")
        response = await client.ask(request, broker=brokers[leader], version=0)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, response.error_message or response.error_code.name)
        return list(response.segments)

    found: list[TieredSegment] = await client.retrying(ask)
    return found
