"""``moldau pipeline verify``: checks that every existing batch of the diskless topics is intact and can be
found."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.client.cluster import Client, connected
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.calls.grouping import by_topic
from moldau.pipeline.checks.damage import GAP, Checked, Damage, total, uncovered
from moldau.pipeline.checks.tier import VerifyUnit
from moldau.pipeline.checks.units import Verify
from moldau.pipeline.reading.planning import OffsetRange, group, split
from moldau.pipeline.reading.tier_segments import Tier, find_tier, list_segments
from moldau.pipeline.reading.wal_access import find_storage
from moldau.pipeline.unit_runs import RunUnits

UNIT_RECORDS_MAX: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Options of a verification of some diskless topics, or of all diskless topics."""

    bootstrap: str
    topics: Sequence[str] = ()
    unit_records_max: int = UNIT_RECORDS_MAX
    timeout_s: float = 30.0
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    verify: Verify
    units: Sequence[VerifyUnit]
    topics: int
    partitions: int
    gaps: Sequence[Damage]
    """Gaps in the tier. They are computed from the metadata, without reading objects."""


def verify_once(job: VerifyJob, run: RunUnits) -> dict[str, Any]:
    """Check everything; returns the results as JSON. Raises ``ToolError`` and ``KafkaError``."""
    plan = asyncio.run(_plan(job))
    found: list[Checked] = run(plan.verify, plan.units)
    done = total([*found, Checked(damages=tuple(plan.gaps), damages_count=len(plan.gaps))])
    return {
        "topics": plan.topics,
        "partitions": plan.partitions,
        "batches": done.batches,
        "records": done.records,
        "bytes": done.size_bytes,
        "moved": done.moved,
        "damages": done.damages_count,
        "examples": [damage._asdict() for damage in done.damages],
    }


async def _plan(job: VerifyJob) -> VerifyPlan:
    units: list[VerifyUnit] = []
    partitions = 0
    names: set[str] = set()
    gaps: list[Damage] = []
    async with connected(job.bootstrap, job.timeout_s) as client:
        coordinators = DisklessCoordinators(client)
        storage = await find_storage(client, job.storage)
        tier = await find_tier(client, job.storage, storage)
        for coordinator_id in await coordinators.ids():
            described = await coordinators.describe_topics(coordinator_id)
            for topic_uuid, rows in by_topic(described.partitions):
                name, topic_id = rows[0].topic_name, str(topic_uuid)
                if job.topics and name not in job.topics:
                    continue
                names.add(name)
                partitions += len(rows)
                in_wal = [
                    OffsetRange(one.partition_index, one.wal_start_offset, one.high_watermark)
                    for one in rows
                    if one.high_watermark > one.wal_start_offset
                ]
                in_tier = [
                    OffsetRange(one.partition_index, one.log_start_offset, one.wal_start_offset)
                    for one in rows
                    if one.wal_start_offset > one.log_start_offset
                ]
                owners = dict.fromkeys((one.partition for one in in_wal), coordinator_id)
                begins = {one.partition: one.start for one in in_wal}
                units += [
                    VerifyUnit(name, topic_id, together, coordinator_id, begins)
                    for together in group(in_wal, owners, job.unit_records_max)
                ]
                for one in in_tier:
                    found = await _in_tier(client, name, topic_id, one, tier, job.unit_records_max)
                    units += found.units
                    gaps += found.gaps
        if missing := sorted(set(job.topics) - names):
            raise ToolError(f"no diskless topic is called {', '.join(missing)}")
    verify = Verify(job.bootstrap, storage, job.timeout_s, tier)
    return VerifyPlan(verify, units, len(names), partitions, gaps)


class _InTier(NamedTuple):
    units: list[VerifyUnit]
    gaps: list[Damage]


async def _in_tier(
    client: Client, name: str, topic_id: str, wanted: OffsetRange, tier: Tier | None, unit_records_max: int
) -> _InTier:
    """Return the units for offsets in the tier, and the gaps. A gap is a range of offsets that no segment
    contains."""
    if tier is None:
        cut = split([wanted], unit_records_max)
        begins = {wanted.partition: wanted.start}
        return _InTier([VerifyUnit(name, topic_id, (one,), None, begins) for one in cut], [])
    topic = await client.topic(name)
    found = await list_segments(client, topic, wanted.partition, tier)
    segments = [one for one in found if one.end_offset >= wanted.start and one.start_offset < wanted.end]
    units = [VerifyUnit(name, topic_id, (wanted,), None, segments=(one,)) for one in segments]
    reason = "no remote segment has these offsets"
    gaps = [
        Damage(GAP, name, wanted.partition, first, last, reason)
        for first, last in uncovered(
            [(one.start_offset, one.end_offset) for one in segments], wanted.start, wanted.end
        )
    ]
    return _InTier(units, gaps)
