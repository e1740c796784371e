"""The snapshot of a query: its topics, their ranges, and how tasks read them. The snapshot is made only
once."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.client import cluster
from moldau.client.cluster import Client, ClusterTopic
from moldau.client.errors import ToolError
from moldau.pipeline.reading.broker import UNKNOWN_TOPIC
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier_segments import find_tier_access
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.reading.wal_access import find_wal_access, high_watermarks
from moldau.pipeline.source.options import EARLIEST, LATEST, SourceOptions, StartPosition, Timestamps
from moldau.runtime.errors import KafkaError


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """The ranges of one topic in a DataFrame."""

    source: TopicSource
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """A topic of a query and its chosen partitions."""

    topic: ClusterTopic
    partitions: Sequence[int]


async def find_topics(
    client: Client, options: SourceOptions, *, may_be_absent: bool = False
) -> list[ChosenTopic]:
    """The current topics of the query. Raises :class:`ToolError` and ``KafkaError`` for missing topics.

    With ``may_be_absent``, topics that do not exist are skipped. The options for positions may still name
    these topics.
    """
    chosen = options.topics
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        rows = (await client.metadata()).topics
        chosen = dict.fromkeys(
            sorted(row.name for row in rows if row.name and not row.is_internal and matches(row.name))
        )
    found = []
    for name, partitions in chosen.items():
        try:
            topic = await client.topic(name)
        except KafkaError as error:
            if may_be_absent and error.code in UNKNOWN_TOPIC:
                continue
            raise
        for partition in partitions or ():
            if partition not in topic.leaders:
                raise ToolError(f"topic {name} has no partition {partition}")
        found.append(ChosenTopic(topic, sorted(topic.leaders) if partitions is None else partitions))
    if not may_be_absent:
        for position in (options.starting, options.ending):
            _check_named(position, found)
    return found


def _check_named(position: StartPosition | None, chosen: Sequence[ChosenTopic]) -> None:
    """Refuse offsets and times of partitions that the query does not read, because such a partition was
    probably mistyped."""
    named = position.by_partition if isinstance(position, Timestamps) else position
    if not isinstance(named, Mapping):
        return
    read = {(found.topic.name, partition) for found in chosen for partition in found.partitions}
    for topic, partitions in named.items():
        for partition in partitions:
            if (topic, partition) not in read:
                raise ToolError(f"the given offsets name {topic}-{partition}, which is not read")


async def source_of(client: Client, options: SourceOptions, topic: ClusterTopic) -> TopicSource:
    """The information that tasks need to read a topic."""
    wal = None if options.from_brokers else await find_wal_access(client, topic, options.storage)
    return TopicSource(
        bootstrap=options.bootstrap,
        topic=topic.name,
        topic_id=str(topic.topic_id),
        committed_only=options.committed_only,
        may_lose=not options.fail_on_data_loss,
        timeout_s=options.poll_timeout_s,
        wal=wal,
        tier=None if options.from_brokers else await find_tier_access(client, topic, options.storage, wal),
        rack=options.rack,
    )


async def pin(client: Client, options: SourceOptions) -> list[TopicRanges]:
    """Determine the ranges of a batch query at this moment. Raises :class:`ToolError` for offsets that do not
    exist."""
    topics = await find_topics(client, options)
    return await asyncio.gather(*(_pin_topic(client, options, found) for found in topics))


async def _pin_topic(client: Client, options: SourceOptions, found: ChosenTopic) -> TopicRanges:
    source, (firsts, ends) = await asyncio.gather(
        source_of(client, options, found.topic), _bounds(client, options, found)
    )
    if source.wal is not None and not options.committed_only:
        known = await high_watermarks(client, found.topic, source.wal)
        ends = {partition: max(end, known.get(partition, end)) for partition, end in ends.items()}
    starts = await _resolved(client, options.starting, found, firsts, ends)
    stops = await _resolved(client, _ending(options), found, firsts, ends)
    ranges = [
        _checked(options, found.topic.name, OffsetRange(partition, starts[partition], stops[partition]),
                 firsts[partition], ends[partition])
        for partition in found.partitions
    ]  # fmt: skip
    return TopicRanges(source, tuple(one for one in ranges if one.end > one.start))


async def _bounds(
    client: Client, options: SourceOptions, found: ChosenTopic
) -> tuple[dict[int, int], dict[int, int]]:
    """First and end offsets. First offsets are requested before end offsets, so that no range begins after
    its end."""
    firsts = await first_offsets(client, found)
    return firsts, await end_offsets(client, options, found)


def _ending(options: SourceOptions) -> StartPosition:
    return LATEST if options.ending is None else options.ending


async def starting_offsets(client: Client, options: SourceOptions, found: ChosenTopic) -> dict[int, int]:
    """The start of a streaming query without a checkpoint."""
    firsts = await first_offsets(client, found)
    ends = await end_offsets(client, options, found)
    starting = LATEST if options.starting is None else options.starting
    starts = await _resolved(client, starting, found, firsts, ends)
    name = found.topic.name
    for partition in found.partitions:
        wanted = OffsetRange(partition, starts[partition], ends[partition])
        starts[partition] = _checked(options, name, wanted, firsts[partition], ends[partition]).start
    return starts


async def first_offsets(client: Client, found: ChosenTopic) -> dict[int, int]:
    asked = dict.fromkeys(found.partitions, cluster.EARLIEST)
    rows = await client.offsets(found.topic, asked)
    return {partition: row.offset for partition, row in rows.items()}


async def end_offsets(client: Client, options: SourceOptions, found: ChosenTopic) -> dict[int, int]:
    """End offsets by partition. With ``committed_only`` a partition ends at its first open transaction."""
    asked = dict.fromkeys(found.partitions, cluster.LATEST)
    rows = await client.offsets(found.topic, asked, committed_only=options.committed_only)
    return {partition: row.offset for partition, row in rows.items()}


async def offsets_at(client: Client, topic: ClusterTopic, times: Mapping[int, int]) -> dict[int, int | None]:
    """For each partition, the offset of its first record with at least the given timestamp, in milliseconds;
    ``None`` if there is no such record."""
    rows = await client.offsets(topic, times)
    return {partition: row.offset if row.offset >= 0 else None for partition, row in rows.items()}


async def _resolved(
    client: Client,
    position: StartPosition | None,
    found: ChosenTopic,
    firsts: Mapping[int, int],
    ends: Mapping[int, int],
) -> dict[int, int]:
    name = found.topic.name
    if position is None or position == EARLIEST:
        return dict(firsts)
    if position == LATEST:
        return dict(ends)
    if isinstance(position, Timestamps):
        return await _at_times(client, position, found, ends)
    assert isinstance(position, Mapping)
    rows = position.get(name, {})
    offsets = {}
    for partition in found.partitions:
        if partition not in rows:
            raise ToolError(f"the given offsets leave out {name}-{partition}")
        offset = rows[partition]
        known = {EARLIEST: firsts[partition], LATEST: ends[partition]}
        offsets[partition] = known.get(offset, offset)
    return offsets


async def _at_times(
    client: Client, times: Timestamps, found: ChosenTopic, ends: Mapping[int, int]
) -> dict[int, int]:
    name = found.topic.name
    asked = {}
    for partition in found.partitions:
        time = times.by_partition.get(name, {}).get(partition, times.everywhere)
        if time is None:
            raise ToolError(f"the given timestamps leave out {name}-{partition}")
        asked[partition] = time
    offsets = {}
    for partition, offset in (await offsets_at(client, found.topic, asked)).items():
        if offset is None and not times.or_latest:
            raise ToolError(
                f"{name}-{partition} has no record at or after {asked[partition]} ms"
                " (option startingOffsetsByTimestampStrategy=latest begins at its end)"
            )
        # With ``read_committed`` the partition's end may be before the found record. The offset is therefore
        # limited to the end.
        offsets[partition] = ends[partition] if offset is None else min(offset, ends[partition])
    return offsets


def _checked(options: SourceOptions, name: str, wanted: OffsetRange, first: int, behind: int) -> OffsetRange:
    partition, start, end = wanted
    if start < first or start > behind or end > behind:
        if options.fail_on_data_loss:
            raise ToolError(
                f"{name}-{partition} has offsets {first} to {behind}, not {start} to {end}"
                " (option failOnDataLoss=false reads what is there)"
            )
        start, end = min(max(start, first), behind), min(end, behind)
    return OffsetRange(partition, start, end)
