"""Responses of a leader that arrive after the follower's own log has changed."""

import asyncio
import pathlib
from types import SimpleNamespace
from typing import Any

from replica_files import Replicas

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.replication.fetching.replica_fetcher import FetcherSettings, ReplicaFetcher
from moldau.runtime import UnexpectedErrors
from moldau.runtime.entropy import SeededEntropy

LEADER, FOLLOWER, EPOCH = 1, 2, 3


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

        brokers: Any = SimpleNamespace(local_epoch=7, fetched=lambda size_bytes: None)
        quota: Any = SimpleNamespace(is_throttled=lambda topic, index: False)
        ports = (brokers, SeededEntropy(1), UnexpectedErrors(), quota)
        fetcher = ReplicaFetcher(FOLLOWER, LEADER, FetcherSettings(), *ports, move=lambda key: None)
        fetcher._leader = lambda: SimpleNamespace(ask=ask, disconnect=lambda: None)  # type: ignore[method-assign, assignment, return-value]
        fetcher.add(follower)
        await asked_again.wait()
        assert (follower.high_watermark, follower.log.log_start_offset) == (3, 2)
        assert requests[1].topics[0].partitions[0].log_start_offset == 2
        await fetcher.stop()

    asyncio.run(story())
