"""No partition uses all bytes of a fetch, so that other partitions get bytes, too."""

import asyncio
from collections.abc import Iterator

import pytest
from plain_requests import NAMED_FETCH_VERSION, Requests

from moldau.protocol.messages import fetch as fetching
from moldau.testing import Node

PARTITIONS = 3


@pytest.fixture(scope="module", params=["classic", "diskless"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with Node(diskless=request.param == "diskless") as running:
        yield running


def test_a_partition_that_was_served_is_the_last_in_the_next_fetch_of_the_session(node: Node) -> None:
    async def story() -> None:
        async with asyncio.timeout(200), Requests(node.bootstrap_servers) as client:
            await client.create("fair", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                await client.produce_values("fair", b"x" * 5_000, partition=partition)
                await client.read("fair", 0, 1, partition=partition)
            rows = [
                fetching.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                for index in range(PARTITIONS)
            ]
            # The byte limit of a fetch is enough for one batch, and the fetches always name the same offsets.
            # The partitions must take turns: each response has records of the next partition.
            opened = await fetch(client, 0, 0, [fetching.FetchTopic(topic="fair", partitions=rows)])
            served = with_records(opened)
            for epoch in range(1, 2 * PARTITIONS):
                served += with_records(await fetch(client, opened.session_id, epoch, []))
            assert served == [0, 1, 2, 0, 1, 2]

    asyncio.run(story())


async def fetch(
    client: Requests, session_id: int, epoch: int, topics: list[fetching.FetchTopic]
) -> fetching.FetchResponse:
    request = fetching.FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        max_bytes=100,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
    )
    answer: fetching.FetchResponse = await client.ask(request, NAMED_FETCH_VERSION)
    return answer


def with_records(answer: fetching.FetchResponse) -> list[int]:
    return [row.partition_index for topic in answer.responses for row in topic.partitions if row.records]
