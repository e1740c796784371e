"""``moldau pipeline verify``: is every live batch of the diskless topics there, whole, and in its place?"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.cluster import connected
from moldau.client.errors import ToolError
from moldau.pipeline.coordinator_calls import CoordinatorCalls
from moldau.pipeline.damage import Checked, total
from moldau.pipeline.planning import OffsetRange, group, split
from moldau.pipeline.rounds import RunUnits
from moldau.pipeline.verifying import Verify, VerifyUnit
from moldau.pipeline.wal_access import find_storage

UNIT_RECORDS_MAX: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """What is verified: the named diskless topics, or all."""

    bootstrap: str
    topics: Sequence[str] = ()
    unit_records_max: int = UNIT_RECORDS_MAX
    timeout_s: float = 30.0
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    verify: Verify
    units: Sequence[VerifyUnit]
    topics: int
    partitions: int


def verify_once(job: VerifyJob, run: RunUnits) -> dict[str, Any]:
    """Look at everything; what was found, as JSON. Raises ``ToolError`` and ``KafkaError``."""
    plan = asyncio.run(_plan(job))
    found: list[Checked] = run(plan.verify, plan.units)
    done = total(found)
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


async def _plan(job: VerifyJob) -> Plan:
    units: list[VerifyUnit] = []
    partitions = 0
    names: set[str] = set()
    async with connected(job.bootstrap, job.timeout_s) as client:
        coordinators = CoordinatorCalls(client)
        for coordinator_id in await coordinators.ids():
            for topic in await coordinators.describe_topics(coordinator_id):
                if job.topics and topic.name not in job.topics:
                    continue
                names.add(topic.name)
                partitions += len(topic.partitions)
                in_wal = [
                    OffsetRange(one.partition_index, one.wal_start_offset, one.high_watermark)
                    for one in topic.partitions
                    if one.high_watermark > one.wal_start_offset
                ]
                in_tier = [
                    OffsetRange(one.partition_index, one.log_start_offset, one.wal_start_offset)
                    for one in topic.partitions
                    if one.wal_start_offset > one.log_start_offset
                ]
                owners = dict.fromkeys((one.partition for one in in_wal), coordinator_id)
                topic_id = str(topic.topic_id)
                begins = {one.partition: one.start for one in in_wal}
                units += [
                    VerifyUnit(topic.name, topic_id, together, coordinator_id, begins)
                    for together in group(in_wal, owners, job.unit_records_max)
                ]
                units += [
                    VerifyUnit(topic.name, topic_id, (one,), None)
                    for one in split(in_tier, job.unit_records_max)
                ]
        if missing := sorted(set(job.topics) - names):
            raise ToolError(f"no diskless topic is called {', '.join(missing)}")
        storage = await find_storage(client, job.storage)
    return Plan(Verify(job.bootstrap, storage, job.timeout_s), units, len(names), partitions)
