"""Metadata responses contain the chunks of partitions for clients that request them."""

import asyncio
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.cluster.image.delta import image_of
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages import metadata
from moldau.protocol.records.metadata import ChunkRecord, PartitionRecord, TopicRecord
from moldau.protocol.schema import Message
from moldau.server.handlers.metadata.metadata import ROWS_A_TURN, MetadataHandlers
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.requests.dispatch import Dispatcher

TOPIC_ID = uuid.UUID(int=100)
CHUNKS = 2 * ROWS_A_TURN


def records() -> Iterator[Message]:
    yield TopicRecord(name="t", topic_id=TOPIC_ID)
    for index, start in enumerate((-1, CHUNKS * 10)):
        yield PartitionRecord(
            topic_id=TOPIC_ID,
            partition_id=index,
            replicas=[1],
            isr=[1],
            leader=1,
            start_offset=start,
            start_timestamp=start,
        )
    for number in range(CHUNKS):
        yield ChunkRecord(
            partition_id=1,
            topic_id=TOPIC_ID,
            start_offset=number * 10,
            start_timestamp=number,
            stop_offset=number * 10 + 9,
            end_offset=number * 10 + 9,
            chunk_epoch=3,
            replicas=[1, 2, 3],
            isr=[1, 2],
            adding_replicas=[3],
            max_timestamp=number + 1,
            size_bytes=77,
        )


IMAGE = image_of(records())


def asked(request: metadata.MetadataRequest, version: int) -> tuple[Any, int]:
    """The response to a request, and the number of iterations of the event loop until it was ready."""
    creator: Any = SimpleNamespace(auto_create=False, name_error=lambda name: None)
    authorizer: Any = SimpleNamespace(allows=lambda *_: True)
    handlers = MetadataHandlers(ClusterView("cluster", 1, lambda: IMAGE), creator, authorizer)
    dispatcher = Dispatcher(handlers.table(), Scope.BROKER)
    context = RequestContext(ApiKey.METADATA, version, 1, None, ConnectionContext("c", "PLAINTEXT"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> Any:
        counting = asyncio.ensure_future(count())
        body = b"".join(encode_request(ApiKey.METADATA, version, request))
        answer: Any = dispatcher(context, memoryview(body))
        buffers = await answer if isinstance(answer, asyncio.Future) else answer
        counting.cancel()
        return decode_response(ApiKey.METADATA, version, memoryview(b"".join(buffers)))

    return asyncio.run(main()), turns


@pytest.mark.parametrize("version", [8, 12])
def test_other_clients_see_an_ordinary_partition(version: int) -> None:
    answer, _ = asked(metadata.MetadataRequest(topics=None), version)
    for row in answer.topics[0].partitions:
        assert (row.leader_id, row.start_offset, row.chunks) == (1, -1, ())


def test_a_client_that_requests_the_chunks_gets_them_after_several_turns() -> None:
    answer, turns = asked(metadata.MetadataRequest(topics=None, include_chunks=True), 12)
    without, chunked = answer.topics[0].partitions
    assert (without.start_offset, without.start_timestamp, without.chunks) == (-1, -1, ())
    assert (chunked.start_offset, chunked.start_timestamp) == (CHUNKS * 10, CHUNKS * 10)
    assert [chunk.start_offset for chunk in chunked.chunks] == list(range(0, CHUNKS * 10, 10))
    assert chunked.chunks[1] == metadata.MetadataResponseChunk(
        start_offset=10,
        start_timestamp=1,
        stop_offset=19,
        end_offset=19,
        chunk_epoch=3,
        replica_nodes=[1, 2, 3],
        isr_nodes=[1, 2],
        offline_replicas=[1, 2, 3],
        adding_replicas=[3],
        max_timestamp=2,
        size_bytes=77,
    )
    assert turns > 0
