"""Finds the offsets of a topic, and reads ranges of them. It works in a task or in any other process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from moldau.client.cluster import EARLIEST, LATEST, Client, connected, parse_bootstrap
from moldau.pipeline.reading.decoding import FoundBatch
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier import TierPartitionReader
from moldau.pipeline.reading.topic_source import Bounds, TopicSource
from moldau.pipeline.reading.wal import WalReader


def find_bounds(bootstrap: str, topic: str, *, committed_only: bool, timeout_s: float = 30.0) -> Bounds:
    """The topic's current first and end offsets. With ``committed_only`` the ranges end at the first open
    transaction."""

    async def attempt() -> Bounds:
        async with connected(bootstrap, timeout_s) as client:
            found = await client.topic(topic)
            starts = await client.offsets(found, dict.fromkeys(found.leaders, EARLIEST))
            ends = await client.offsets(
                found, dict.fromkeys(found.leaders, LATEST), committed_only=committed_only
            )
        return Bounds(
            str(found.topic_id),
            {partition: row.offset for partition, row in starts.items()},
            {partition: row.offset for partition, row in ends.items()},
        )

    return asyncio.run(attempt())


def fetch_found(source: TopicSource, wanted: Sequence[OffsetRange]) -> Iterator[FoundBatch]:
    """Batches with the records of the ranges. Each partition has one range, and the batches of a partition
    are in order.

    If ``source`` names the stores, batches are read from the topic's objects in the WAL and the tier.
    Otherwise they are read from the brokers. The first and the last batch of a range may extend beyond the
    range. With ``committed_only``, batches of aborted transactions are skipped. Raises :class:`ToolError`
    when records were deleted, :class:`TopicGoneError` when the topic was deleted, and ``KafkaError`` for a
    broker's error.
    """
    with asyncio.Runner() as runner:
        # The loop's own ``run_until_complete`` is used, because each call of ``Runner.run`` replaces the
        # handler of Ctrl-C. Replacing the handler takes as long as decoding a small chunk.
        run = runner.get_loop().run_until_complete
        client = Client(parse_bootstrap(source.bootstrap), source.timeout_s)
        chunks = _chunks(client, source, wanted)
        try:
            while (chunk := run(_next(chunks))) is not None:
                yield from chunk
        finally:
            run(chunks.aclose())
            run(client.close())


async def _next(chunks: AsyncIterator[list[FoundBatch]]) -> list[FoundBatch] | None:
    return await anext(chunks, None)


async def _chunks(
    client: Client, source: TopicSource, wanted: Sequence[OffsetRange]
) -> AsyncGenerator[list[FoundBatch], None]:
    owners = source.wal.coordinators if source.wal is not None else {}
    by_coordinator: dict[int, list[OffsetRange]] = {}
    for one in wanted:
        if one.partition in owners:
            by_coordinator.setdefault(owners[one.partition], []).append(one)
            continue
        async for found in TierPartitionReader(client, source, one).chunks():
            yield found
    for ranges in by_coordinator.values():
        assert source.wal is not None
        async for found in WalReader(client, source, source.wal, ranges).chunks():
            yield found
