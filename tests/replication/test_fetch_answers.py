"""Responses of a leader that arrive after the follower's own log has changed, or that name no records."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from replica_files import Replicas, batch

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.replication.fetching.catching_up import CatchUpPace
from moldau.replication.fetching.fetcher_context import FetcherContext, FetcherSettings
from moldau.replication.fetching.replica_fetcher import ReplicaFetcher
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.runtime.entropy import SeededEntropy

LEADER, FOLLOWER, EPOCH = 1, 2, 3


def fetcher_of(ask: Callable[..., Awaitable[Any]], pace: CatchUpPace | None = None) -> ReplicaFetcher:
    """A fetcher whose requests are answered by a function. With a ``pace``, it is for copies."""
    brokers: Any = SimpleNamespace(local_epoch=7, fetched=lambda size_bytes: None)
    quota: Any = SimpleNamespace(is_throttled=lambda topic, index: False)
    ports = (brokers, SeededEntropy(1), UnexpectedErrors(), quota)
    context = FetcherContext(FOLLOWER, FetcherSettings(), *ports)
    fetcher = ReplicaFetcher(context, LEADER, lambda key: None, pace)
    fetcher._leader = lambda: SimpleNamespace(ask=ask, disconnect=lambda: None)  # type: ignore[method-assign, assignment, return-value]
    return fetcher


def test_a_response_counts_although_retention_has_moved_the_start_of_the_own_log(
    tmp_path: pathlib.Path,
) -> None:
    """The leader does not send the high watermark and its log start again, so the follower must adopt both
    from this response."""

    async def story() -> None:
        pair = Replicas(tmp_path)
        pair.lead(LEADER, EPOCH)
        for value in (b"a", b"b", b"c"):
            pair.produce(LEADER, value)
        await pair.fetch(FOLLOWER)
        follower, asked_again = pair.partitions[FOLLOWER], asyncio.Event()
        requests: list[FetchRequest] = []

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            requests.append(request)
            if len(requests) > 1:
                asked_again.set()
                await asyncio.Event().wait()
            follower.log.update_log_start_offset(1)
            row = PartitionData(partition_index=0, high_watermark=3, log_start_offset=2, records=b"")
            answer = FetchableTopicResponse(topic_id=follower.key.topic_id, partitions=[row])
            return FetchResponse(session_id=1, responses=[answer])

        fetcher = fetcher_of(ask)
        fetcher.add(follower)
        await asked_again.wait()
        assert (follower.high_watermark, follower.log.log_start_offset) == (3, 2)
        assert requests[1].topics[0].partitions[0].log_start_offset == 2
        await fetcher.stop()

    asyncio.run(story())


def test_a_follower_outside_the_log_of_its_leader_is_cut_at_the_end_of_that_log(
    tmp_path: pathlib.Path,
) -> None:
    """The high watermark of a new leader may be low. If the follower was cut there, an in-sync replica would
    lack committed records for some time."""

    async def story() -> None:
        pair = Replicas(tmp_path)
        pair.lead(FOLLOWER, EPOCH)
        for value in (b"a", b"b", b"c"):
            pair.produce(FOLLOWER, value)
            if value != b"c":
                await pair.fetch(LEADER)
        pair.lead(LEADER, EPOCH + 1)
        leader, follower, asked_again = pair.partitions[LEADER], pair.partitions[FOLLOWER], asyncio.Event()
        assert (leader.high_watermark, pair.end(LEADER), pair.end(FOLLOWER)) == (1, 2, 3)

        async def ask(request: Any, timeout_ms: int, version: int | None = None) -> Any:
            if isinstance(request, ListOffsetsRequest):
                return await listed(request)
            position = cast(FetchRequest, request).topics[0].partitions[0]
            code = ErrorCode.offset_out_of_range
            if position.fetch_offset <= pair.end(LEADER):
                asked_again.set()
                await asyncio.Event().wait()
            row = PartitionData(partition_index=0, error_code=code)
            answer = FetchableTopicResponse(topic_id=follower.key.topic_id, partitions=[row])
            return FetchResponse(session_id=1, responses=[answer])

        async def listed(request: ListOffsetsRequest) -> ListOffsetsResponse:
            found = await leader.find_offset(
                request.topics[0].partitions[0].timestamp,
                read_committed=False,
                current_leader_epoch=EPOCH + 1,
                is_replica=request.replica_id == FOLLOWER,
            )
            row = ListOffsetsPartitionResponse(partition_index=0, offset=found.offset)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[row])])

        fetcher = fetcher_of(ask)
        fetcher.add(follower)
        await asyncio.wait_for(asked_again.wait(), 60)
        assert pair.end(FOLLOWER) == 2
        await fetcher.stop()

    asyncio.run(story())


def test_a_log_is_not_fetched_while_another_fetcher_truncates_it(tmp_path: pathlib.Path) -> None:
    """A partition moves to another connection when ``num.replica.fetchers`` is changed. A truncation that has
    begun is completed, although its fetcher no longer follows the partition."""

    async def story() -> None:
        pair = Replicas(tmp_path)
        pair.lead(FOLLOWER, EPOCH)
        pair.produce(FOLLOWER, b"a")
        pair.lead(LEADER, EPOCH + 1)
        follower, asked = pair.partitions[FOLLOWER], asyncio.Event()
        may_go_on, whole = asyncio.Event(), follower.log.truncate_to
        offsets: list[int] = []

        async def truncate_to(offset: int) -> None:
            await may_go_on.wait()
            await whole(offset)

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            offsets.append(request.topics[0].partitions[0].fetch_offset)
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        follower.log.truncate_to = truncate_to  # type: ignore[method-assign]
        cutting = asyncio.ensure_future(follower.following.truncate(EPOCH + 1, EPOCH, 0))
        fetcher = fetcher_of(ask)
        await asyncio.sleep(0)
        fetcher.add(follower)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not offsets
        with pytest.raises(KafkaError, match="is being truncated"):
            follower.following.append(EPOCH + 1, batch(b"b"), high_watermark=0, log_start_offset=0)
        may_go_on.set()
        await cutting
        await asked.wait()
        assert offsets == [0]
        await fetcher.stop()

    asyncio.run(story())
