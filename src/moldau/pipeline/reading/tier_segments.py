"""The remote segments of a partition as its leader lists them, and the places of their objects."""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from moldau.client.cluster import Client, ClusterTopic
from moldau.client.errors import ToolError
from moldau.network.client.node_connection import NodeAddress
from moldau.objects.factory import StorageSettings
from moldau.pipeline.reading.tier_plan import IndexPlace, SegmentObject
from moldau.pipeline.reading.wal_access import (
    TOPIC_CONFIG,
    WalAccess,
    broker_config,
    broker_configs,
    find_config,
    find_storage,
)
from moldau.protocol.own.tiered.list_segments import TieredSegment
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.tiered.calls import ListSegmentsCall, NetworkTieredCalls
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import RemoteLogSegmentId
from moldau.tiered.storage.object_layout import ObjectLocation, decode_location, segment_keys
from moldau.tiered.storage.storage_manager import IndexType

logger = logging.getLogger(__name__)

REMOTE_PREFIX: Final = "rsm.config."
_URL: Final = f"{REMOTE_PREFIX}url"
_PREFIX: Final = f"{REMOTE_PREFIX}prefix"
MANAGER_CLASS: Final = "remote.log.storage.manager.class.name"
TIER_ENABLED: Final = "remote.log.storage.system.enable"
TIERED: Final = "remote.storage.enable"
DEFAULT_FOLDER: Final = "tiered"
SEGMENTS_A_PAGE: Final = 1000


class Tier(NamedTuple):
    """The place of the segments that were stored by the built-in storage manager."""

    storage: StorageSettings
    folder: str


async def find_tier(client: Client, given: Mapping[str, str], wal: StorageSettings | None) -> Tier | None:
    """The tier of a cluster. ``None`` if the cluster does not use the built-in storage manager, because then
    only brokers can read the objects.

    By default segments are in the store of the WAL. Raises :class:`ToolError` when no store is known.
    """
    known = await broker_configs(client, MANAGER_CLASS, _URL, _PREFIX)
    if known[MANAGER_CLASS]:
        return None
    url = given.get(_URL) or known[_URL]
    if url is None:
        wal = wal or await find_storage(client, given)
        url = wal.url
    if url.startswith("memory:"):
        raise ToolError(f"{url} is the brokers' own memory")
    options = {
        key.removeprefix(REMOTE_PREFIX): value
        for key, value in given.items()
        if key.startswith(REMOTE_PREFIX) and key not in (_URL, _PREFIX)
    }
    if wal is not None and url == wal.url:
        options = {**wal.options, **options}
    folder = given.get(_PREFIX) or known[_PREFIX] or DEFAULT_FOLDER
    return Tier(StorageSettings(url, None, options), folder.strip("/"))


async def find_tier_access(
    client: Client, topic: ClusterTopic, given: Mapping[str, str], wal: WalAccess | None
) -> Tier | None:
    """Access to the objects of a topic's remote segments.

    Returns ``None`` for a topic without remote segments, and if only brokers can read the segments. If an
    error is the reason, a line is logged.
    """
    try:
        if wal is None and await find_config(client, TOPIC_CONFIG, topic.name, TIERED) != "true":
            return None
        if await broker_config(client, TIER_ENABLED) != "true":
            return None
        return await find_tier(client, given, None if wal is None else wal.storage)
    except (KafkaError, ToolError) as error:
        logger.warning("what topic %s has in the tier is read through the brokers: %s", topic.name, error)
        return None


async def list_segments(
    client: Client, topic: ClusterTopic, partition: int, tier: Tier
) -> list[SegmentObject]:
    """The segments of a partition whose copies are finished, by start offset."""
    known = await list_known_segments(client, topic, partition)
    copied = [one for one in known if one.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return sorted(
        (_located(one, topic, partition, tier) for one in copied), key=lambda segment: segment.start_offset
    )


async def list_known_segments(client: Client, topic: ClusterTopic, partition: int) -> list[TieredSegment]:
    """All segments of a partition that are in the metadata, in any state."""
    found: list[TieredSegment] = []
    while True:
        page = await _page(client, topic, partition, len(found))
        found += page
        if len(page) < SEGMENTS_A_PAGE:
            return found


def _located(one: TieredSegment, topic: ClusterTopic, partition: int, tier: Tier) -> SegmentObject:
    location = decode_location(one.custom_metadata) if one.custom_metadata else None
    id = RemoteLogSegmentId(topic.topic_id, topic.name, partition, one.id)
    keys = segment_keys(tier.folder, id, one.start_offset, location.attempt if location else "")
    return SegmentObject(
        one.id,
        one.start_offset,
        one.end_offset,
        one.size_bytes,
        keys.log,
        tuple((epoch.epoch, epoch.start_offset) for epoch in one.leader_epochs),
        _index_place(location, keys.indexes, IndexType.OFFSET),
        _index_place(location, keys.indexes, IndexType.TRANSACTION),
        not one.txn_index_empty,
    )


def _index_place(location: ObjectLocation | None, key: str, kind: IndexType) -> IndexPlace | None:
    found = None if location is None else location.range_of(kind)
    return None if found is None else IndexPlace(key, *found)


async def _page(client: Client, topic: ClusterTopic, partition: int, skip: int) -> list[TieredSegment]:
    call = ListSegmentsCall(topic.name, partition, skip, SEGMENTS_A_PAGE)

    async def ask() -> list[TieredSegment]:
        leader = (await client.topic(topic.name)).leaders[partition]
        brokers = {
            row.node_id: NodeAddress(row.host, row.port) for row in (await client.metadata([])).brokers
        }
        if leader not in brokers:
            raise KafkaError(ErrorCode.leader_not_available, f"broker {leader} is not in the cluster")
        return (await NetworkTieredCalls(client.channel(brokers[leader])).list_segments(call)).segments

    return await client.retrying(ask)
