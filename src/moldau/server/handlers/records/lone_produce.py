"""Produce to a single partition. This handler makes the response's bytes directly from the request's bytes.

It does the same as the general handler, in the same order, but makes no message objects. The module
``protocol.fast_paths.produce`` defines the exact form of these requests. If a request has another form, or
would be refused before the append, this handler does nothing. The general handler then processes the request,
and makes the error if there is one.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import UUID

from moldau.network.context import Answer, Buffers, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import response_encoder
from moldau.protocol.fast_paths.produce import FIRST_LONE_VERSION, TOPIC_ID_VERSION, lone_packer, lone_reader
from moldau.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from moldau.records.batch import is_transactional
from moldau.replication.appending.append_turn import AppendTurn
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, Partition
from moldau.runtime.errors import ErrorCode
from moldau.server.requests.dispatch import DirectHandler
from moldau.server.requests.throttles import Hold, rest_ms
from moldau.server.topics.registry import PartitionRegistry

MayWrite = Callable[[RequestContext, Partition], bool]
"""Returns whether the client may write to a partition, by the rules of the general handler."""
AppendInTransaction = Callable[
    [RequestContext, Partition, memoryview, str | None, int, int], "AppendAnswer | None"
]
"""Appends a transactional batch. The last three arguments are the transactional id, acks, and the
time-out in ms. Returns None if the general handler must refuse the batch."""
RowOf = Callable[[int, AppendOutcome], PartitionProduceResponse]
"""Returns a partition's entry in the response, as the general handler makes it."""
WithLeaders = Callable[[RequestContext, ProduceResponse], ProduceResponse]
"""Adds leaders to a response: the leaders of its partitions that other brokers lead."""


def lone_produce(
    version: int,
    partitions: PartitionRegistry,
    turn: AppendTurn,
    may_write: MayWrite,
    append_in_transaction: AppendInTransaction,
    row_of: RowOf,
    with_leaders: WithLeaders,
    hold: Hold | None,
) -> DirectHandler | None:
    """The direct handler of a version of Produce. It is None if the version has no direct handler. ``hold``
    applies the throttles."""
    if version < FIRST_LONE_VERSION:
        return None
    by_id = version >= TOPIC_ID_VERSION
    read, pack, find = lone_reader(version), lone_packer(version), partitions.raw(by_id=by_id)
    encode = response_encoder(ApiKey.PRODUCE, version)
    append, appended = turn.append, ErrorCode.none

    def answer(
        context: RequestContext, topic: bytes, index: int, outcome: AppendOutcome, until_s: float = 0.0
    ) -> Buffers:
        throttle_ms = rest_ms(until_s, asyncio.get_running_loop().time()) if until_s else 0
        if outcome[0] is appended and not throttle_ms:
            return [pack(topic, index, outcome[1], outcome[2], outcome[3])]
        named = {"topic_id": UUID(bytes=topic)} if by_id else {"name": topic.decode()}
        row = TopicProduceResponse(**named, partition_responses=[row_of(index, outcome)])
        return encode(with_leaders(context, ProduceResponse(responses=[row], throttle_time_ms=throttle_ms)))

    def produce(context: RequestContext, body: memoryview) -> Answer:
        request = read(body)
        if request is None:
            return None
        name, acks, timeout_ms, topic, index, records = request
        partition = find((topic, index))
        if partition is None or (acks != -1 and acks != 1) or not may_write(context, partition):
            return None
        outcome: AppendAnswer | None
        if is_transactional(records):
            outcome = append_in_transaction(context, partition, records, name, acks, timeout_ms)
            if outcome is None:
                return None
        else:
            outcome = append(partition, records, acks, timeout_ms, context.connection)
        if type(outcome) is AppendOutcome:
            return answer(context, topic, index, outcome, 0.0 if hold is None else hold(context, False))
        assert isinstance(outcome, asyncio.Future)
        until_s = 0.0 if hold is None else hold(context, True)
        return _later(outcome, partial(answer, context, topic, index, until_s=until_s))

    return produce


def _later(
    outcome: "asyncio.Future[AppendOutcome]", answer: Callable[[AppendOutcome], Buffers]
) -> "asyncio.Future[Buffers]":
    """Return a future with the response to an append that still waits for replicas, or for the upload of its
    records."""
    body: asyncio.Future[Buffers] = outcome.get_loop().create_future()

    def finish(done: "asyncio.Future[AppendOutcome]") -> None:
        if body.done():
            return
        if done.cancelled():
            body.cancel()
        elif (error := done.exception()) is not None:
            body.set_exception(error)
        else:
            try:
                body.set_result(answer(done.result()))
            except Exception as refused:
                body.set_exception(refused)

    outcome.add_done_callback(finish)
    return body
