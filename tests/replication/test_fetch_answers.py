"""How a follower uses the responses of its leader, and the sizes of the responses that it asks for."""

import asyncio
import pathlib
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from replica_files import Replicas

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.replication.fetching.fetch_session import FetchLimits
from moldau.replication.fetching.replica_fetcher import FetcherSettings, ReplicaFetcher
from moldau.runtime import UnexpectedErrors
from moldau.runtime.entropy import SeededEntropy

LEADER, FOLLOWER, EPOCH = 1, 2, 3

Ask = Callable[[FetchRequest, int], Coroutine[Any, Any, FetchResponse]]


def follower_of(ask: Ask) -> ReplicaFetcher:
    """A fetcher whose leader answers with ``ask``."""
    brokers: Any = SimpleNamespace(local_epoch=7, fetched=lambda size_bytes: None)
    quota: Any = SimpleNamespace(is_throttled=lambda topic, index: False)
    fetcher = ReplicaFetcher(
        FOLLOWER, LEADER, FetcherSettings(), brokers, SeededEntropy(1), UnexpectedErrors(), quota
    )
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

        fetcher = follower_of(ask)
        fetcher.add(follower)
        await asked_again.wait()
        assert (follower.high_watermark, follower.log.log_start_offset) == (3, 2)
        assert requests[1].topics[0].partitions[0].log_start_offset == 2
        await fetcher.stop()

    asyncio.run(story())


def test_a_response_is_small_while_some_partitions_are_copied_and_others_are_caught_up(
    tmp_path: pathlib.Path,
) -> None:
    """The fetch after a response acknowledges new records of the partitions that are caught up. It must not
    wait until many megabytes of other partitions were appended."""

    async def story() -> list[int]:
        caught_up, copied = Replicas(tmp_path / "1"), Replicas(tmp_path / "2", topic_number=2)
        for pair in (caught_up, copied):
            pair.lead(LEADER, EPOCH)
        copied.produce(LEADER, b"a")
        records = copied.content(LEADER)
        rows = [
            [PartitionData(partition_index=0, high_watermark=0, records=b"")],
            [PartitionData(partition_index=0, high_watermark=2, records=records)],
            [PartitionData(partition_index=0, high_watermark=1, records=b"")],
        ]
        topics = [caught_up.topic_id, copied.topic_id, copied.topic_id]
        sizes: list[int] = []
        asked_again = asyncio.Event()

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            sizes.append(request.max_bytes)
            if len(sizes) > len(rows):
                asked_again.set()
                await asyncio.Event().wait()
            number = len(sizes) - 1
            answer = FetchableTopicResponse(topic_id=topics[number], partitions=rows[number])
            return FetchResponse(session_id=1, responses=[answer])

        fetcher = follower_of(ask)
        for pair in (caught_up, copied):
            fetcher.add(pair.partitions[FOLLOWER])
        await asked_again.wait()
        await fetcher.stop()
        return sizes

    limits = FetchLimits()
    large, small = limits.response_max_bytes, limits.max_bytes
    assert asyncio.run(story()) == [large, large, small, large]
