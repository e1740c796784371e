"""Helpers for tests of tiered topics. They fill segments, wait for copies, and read the state of
both tiers."""

from pathlib import Path
from typing import Any

from moody_storage import CLASS_NAME
from plain_requests import Requests, eventually

from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
)
from moldau.runtime import SystemClock

BATCH_RECORDS = 3
STEP_MS = 1_000
PROPERTIES = {
    "remote.log.storage.manager.class.name": CLASS_NAME,
    "remote.log.manager.task.interval.ms": "50",
    "remote.log.manager.task.retry.backoff.ms": "50",
    "remote.log.manager.task.retry.backoff.max.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.index.interval.bytes": "1",
    # With these configs, the first response to a fetch contains its records, even if the read takes a long
    # time.
    "remote.fetch.max.wait.ms": "60000",
}
TIERED = {
    "remote_storage_enable": "true",
    "segment_ms": "1",
    "local_retention_bytes": "1",
    "retention_ms": "-1",
    "file_delete_delay_ms": "0",
}
"""With these configs, every batch of :func:`fill` closes the segment of the previous batch, and copied
segments are deleted from the disk."""


def value(offset: int) -> bytes:
    return b"value %d" % offset


async def fill(
    client: Requests, topic: str, count: int, *, start_ms: int | None = None, partition: int = 0
) -> int:
    """Append ``count`` batches. Their timestamps are a second apart. Returns the timestamp of the first
    batch."""
    if start_ms is None:
        # The new batches have later timestamps than the existing records, because a batch closes the active
        # segment only if its timestamp is later.
        start_ms = SystemClock().now_ms() - 600_000 + await end_of(client, topic, partition) * STEP_MS
    for number in range(count):
        first = await end_of(client, topic, partition)
        found = await client.produce_values(
            topic,
            *map(value, range(first, first + BATCH_RECORDS)),
            partition=partition,
            timestamp=start_ms + number * STEP_MS,
            step_ms=1,
        )
        assert found == first
    return start_ms


async def end_of(client: Requests, topic: str, partition: int = 0) -> int:
    return int((await client.offset_at(topic, LATEST_TIMESTAMP, partition)).offset)


async def tiers(client: Requests, topic: str, partition: int = 0) -> tuple[int, int, int]:
    """First offset, first local offset, last copied offset."""
    special = (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP)
    rows = [await client.offset_at(topic, which, partition) for which in special]
    return rows[0].offset, rows[1].offset, rows[2].offset


async def until_tiers(client: Requests, topic: str, *wanted: int, partition: int = 0) -> None:
    """Wait for ``(first, first local, last copied)``."""
    seen: list[Any] = [None]

    async def probe() -> bool:
        seen[0] = await tiers(client, topic, partition)
        return bool(seen[0] == wanted)

    try:
        await eventually(probe, f"{topic} at {wanted}", 20)
    except AssertionError as error:
        raise AssertionError(f"{error}, but at {seen[0]}") from None


async def read_from(client: Requests, topic: str, offset: int, partition: int = 0) -> None:
    """Check that every record at an offset or after it exists once, and that the records are in order."""
    end = await end_of(client, topic, partition)
    found = await client.read(topic, offset, end - offset, partition)
    assert [(record.offset, record.value) for record in found] == [(n, value(n)) for n in range(offset, end)]


def objects_of(data: str, topic: str) -> list[Path]:
    """The files of a topic in the object store of a development node."""
    return [path for path in Path(data, "objects").glob(f"tiered/{topic}-*/**/*") if path.is_file()]
