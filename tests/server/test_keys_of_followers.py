"""The keys ``replica.*`` and ``num.replica.fetchers`` have an effect on the requests of followers."""

import asyncio
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.fetcher_context import FetcherContext, FetcherSettings
from moldau.replication.fetching.replica_fetcher import FIRST_BACKOFF_MS, ReplicaFetcher
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.runtime.entropy import SeededEntropy
from moldau.server.settings import development_config
from moldau.server.subsystems.partitions.replication import fetcher_settings
from moldau.simulation.world.world import World

KEYS = {
    "replica.fetch.max.bytes": "1001",
    "replica.fetch.response.max.bytes": "1002",
    "replica.fetch.wait.max.ms": "203",
    "replica.fetch.min.bytes": "4",
    "replica.fetch.backoff.ms": "305",
    "replica.socket.timeout.ms": "1006",
    "num.replica.fetchers": "7",
}
PARTITION: Any = SimpleNamespace(
    key=PartitionKey(UUID(int=1), 0),
    topic="t",
    following=SimpleNamespace(
        is_cutting=False,
        position=lambda: FetchPosition(2, 5, 0, -1),
        is_synced=lambda position: True,
    ),
)


def requests_of(settings: FetcherSettings, count: int) -> list[tuple[float, FetchRequest, int]]:
    """The first requests of a fetcher whose leader never answers. Each of them is returned with its time and
    its time-out."""
    found: list[tuple[float, FetchRequest, int]] = []

    async def story() -> None:
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        async def ask(request: FetchRequest, timeout_ms: int) -> None:
            found.append((loop.time(), request, timeout_ms))
            if len(found) == count:
                enough.set()
            raise KafkaError(ErrorCode.network_exception)

        brokers: Any = SimpleNamespace(local_epoch=7)
        quota: Any = SimpleNamespace(is_throttled=lambda topic, index: False)
        context = FetcherContext(1, settings, brokers, SeededEntropy(1), UnexpectedErrors(), quota)
        fetcher = ReplicaFetcher(context, 2, move=lambda key: None)
        fetcher._leader = lambda: SimpleNamespace(ask=ask, disconnect=lambda: None)  # type: ignore[method-assign, assignment, return-value]
        fetcher.add(PARTITION)
        await enough.wait()
        await fetcher.stop()

    with World(1) as world:
        world.run(story())
    return found


def test_the_requests_of_a_follower_have_the_configured_limits(tmp_path: Path) -> None:
    settings = fetcher_settings(development_config(str(tmp_path), 0, KEYS))
    assert settings.fetcher_count == 7
    (_, request, timeout_ms), *_ = requests_of(settings, 1)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (203, 4, 1002)
    assert request.topics[0].partitions[0].partition_max_bytes == 1001
    # The leader may wait before it answers.
    assert timeout_ms == 1006 + 203


def test_the_pause_after_an_error_grows_to_the_configured_pause(tmp_path: Path) -> None:
    settings = fetcher_settings(development_config(str(tmp_path), 0, KEYS))
    times = [at_s for at_s, _, _ in requests_of(settings, 9)]
    pauses_ms = [round((later - at_s) * 1000) for at_s, later in pairwise(times)]
    assert pauses_ms == [FIRST_BACKOFF_MS, 40, 80, 160, 305, 305, 305, 305]
