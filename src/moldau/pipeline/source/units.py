"""The units of Spark's tasks: ranges of offsets, and the information with which a task reads the topic."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from moldau.client.cluster import Client, connected
from moldau.pipeline.reading.planning import OffsetRange, group, unit_size
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.source.snapshot import TopicRanges

UNIT_RECORDS_MAX: Final = 500_000
UNIT_RECORDS_MIN: Final = 50_000
"""Minimum size of a unit, unless ``minPartitions`` asks for smaller units."""
UNITS: Final = 8
"""Usual number of units of a query with enough records. It is a constant because the planner does not know
the number of cores."""
TIMEOUT_S: Final = 30.0


@dataclass
class UnitPartition(InputPartition):
    """Ranges of a topic that one task reads."""

    source: TopicSource
    unit: tuple[OffsetRange, ...]


def plan(
    topics: Sequence[TopicRanges], units_min: int, records_max: int | None = None
) -> list[InputPartition]:
    """Units of all topics. There are at least ``units_min`` units, if there are enough offsets.

    No unit has more than ``records_max`` offsets. If ``records_max`` is given, partitions are read one by
    one.
    """
    everything = [one for topic in topics for one in topic.ranges]
    total = sum(one.end - one.start for one in everything)
    usual = min(UNIT_RECORDS_MAX, max(UNIT_RECORDS_MIN, -(-total // UNITS)))
    if records_max is not None:
        usual = min(usual, records_max)
    size = unit_size(everything, units_min, usual)
    return [
        UnitPartition(_of_unit(topic.source, unit), unit)
        for topic in topics
        for unit in group(topic.ranges, _owners(topic.source) if records_max is None else {}, size)
    ]


def _owners(source: TopicSource) -> Mapping[int, int]:
    return {} if source.wal is None else source.wal.coordinators


def _of_unit(source: TopicSource, unit: Sequence[OffsetRange]) -> TopicSource:
    """Reduce a source to the partitions of a unit, because a topic may have thousands of partitions."""
    if source.wal is None:
        return source
    owners = source.wal.coordinators
    few = {one.partition: owners[one.partition] for one in unit if one.partition in owners}
    return replace(source, wal=replace(source.wal, coordinators=few))


def ask(bootstrap: str, look: Callable[[Client], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Run a coroutine function with a new client. Returns its result."""

    async def run() -> Any:
        async with connected(bootstrap, timeout_s) as client:
            return await look(client)

    return asyncio.run(run())
