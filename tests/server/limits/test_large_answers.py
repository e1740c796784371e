"""Small requests with large responses do not block the event loop. The rows are created in steps, and a
worker encodes them."""

import asyncio
import uuid
from types import SimpleNamespace

import pytest

from moldau.cluster.image.delta import image_of
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages import metadata
from moldau.protocol.records.metadata import PartitionRecord, TopicRecord
from moldau.runtime.workers import InlineWorkers
from moldau.server.handlers.metadata.metadata import ROWS_A_TURN, MetadataHandlers
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.requests.dispatch import Dispatcher

VERSION = 12
SIZES = {"small": 1, "middle": ROWS_A_TURN, "wide": 4 * ROWS_A_TURN + 1}


def records():
    for number, (name, size) in enumerate(SIZES.items()):
        topic_id = uuid.UUID(int=100 + number)
        yield TopicRecord(name=name, topic_id=topic_id)
        for index in range(size):
            yield PartitionRecord(topic_id=topic_id, partition_id=index, replicas=[1], isr=[1], leader=1)


class CountedWorkers(InlineWorkers):
    def __init__(self):
        self.pieces = 0

    async def run(self, function, *args, **kwargs):
        self.pieces += 1
        return function(*args, **kwargs)


IMAGE = image_of(records())


def asked(request):
    """The response to a request, the number of iterations of the event loop until it was sent, and the jobs
    of the worker."""
    view = ClusterView("cluster", 1, lambda: IMAGE)
    creator = SimpleNamespace(auto_create=False, name_error=lambda name: None)
    authorizer = SimpleNamespace(allows=lambda *_: True)
    workers = CountedWorkers()
    handlers = MetadataHandlers(view, creator, authorizer)
    dispatcher = Dispatcher(handlers.table(), Scope.BROKER, workers=workers)
    context = RequestContext(ApiKey.METADATA, VERSION, 1, None, ConnectionContext("c", "PLAINTEXT"))
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main():
        counting = asyncio.ensure_future(count())
        body = b"".join(encode_request(ApiKey.METADATA, VERSION, request))
        answer = dispatcher(context, memoryview(body))
        buffers = await answer if isinstance(answer, asyncio.Future) else answer
        counting.cancel()
        return decode_response(ApiKey.METADATA, VERSION, memoryview(b"".join(buffers)))

    return asyncio.run(main()), turns, workers.pieces


@pytest.mark.parametrize(
    ("names", "is_large"),
    [(None, True), (["wide"], True), (["small", "middle", "none"], True), (["small"], False)],
)
def test_a_metadata_response_with_many_partitions_is_made_in_turns_by_a_worker(names, is_large):
    topics = None if names is None else [metadata.MetadataRequestTopic(name=name) for name in names]
    answer, turns, pieces = asked(metadata.MetadataRequest(topics=topics))
    found = {topic.name: topic for topic in answer.topics}
    assert set(found) == set(SIZES if names is None else names)
    for name, topic in found.items():
        assert [row.partition_index for row in topic.partitions] == list(range(SIZES.get(name, 0)))
    rows = sum(SIZES.get(name, 0) for name in found)
    assert turns >= rows // ROWS_A_TURN
    assert (turns > 0) == is_large
    assert pieces == (rows > 2_000)
