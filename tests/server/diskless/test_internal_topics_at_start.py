"""The brokers of a new cluster create an internal topic when there is an active broker for each replica, so
that the leaders of its partitions are spread."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.cluster.internal_topics import DISKLESS_METADATA, InternalTopic
from moldau.runtime.errors import ErrorCode
from moldau.server.subsystems import topic_creation_subsystem
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem

TOPIC = InternalTopic.of(DISKLESS_METADATA, 3, 3)


class Cluster:
    """The view of one broker, and a controller that creates every topic."""

    def __init__(self, active: int) -> None:
        self.requested: list[str] = []
        self.waits = 0
        self.active = active
        self.topics: dict[str, object] = {}
        image = SimpleNamespace(
            topics=self.topics,
            active_brokers=lambda: iter(range(self.active)),
        )
        context = SimpleNamespace(
            view=SimpleNamespace(image=image),
            channel=self,
            config=SimpleNamespace(flag=lambda key: True),
            metadata=SimpleNamespace(publisher=SimpleNamespace(until=self._until)),
        )
        extensions = SimpleNamespace(internal_topics={})
        partitions = SimpleNamespace(settled=self._done)
        self.subsystem = TopicsSubsystem(cast(Any, context), cast(Any, extensions), cast(Any, partitions))

    async def send(self, request: Any, caller: Any) -> Any:
        self.requested += [topic.name for topic in request.topics]
        self.topics.update(dict.fromkeys(self.requested, object()))
        return SimpleNamespace(topics=[SimpleNamespace(error_code=ErrorCode.none, error_message=None)])

    async def _until(self, holds: Callable[[], bool]) -> None:
        self.waits += 1
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _done(self) -> None:
        pass


def requested_at_start(active: int, *, later: int | None = None) -> list[str]:
    """The topics that a broker requests. ``later`` is the number of active brokers a little later."""

    async def story() -> list[str]:
        cluster = Cluster(active)
        await cluster.subsystem.ensure_soon(TOPIC)
        for _ in range(10):
            await asyncio.sleep(0)
        assert cluster.requested == [] or active == 3
        cluster.active = active if later is None else later
        for _ in range(10):
            await asyncio.sleep(0)
        await cluster.subsystem.stop()
        return cluster.requested

    return asyncio.run(story())


def test_a_broker_with_enough_others_creates_the_topic_at_once() -> None:
    assert requested_at_start(3) == [TOPIC.name]


@pytest.mark.parametrize("active", [1, 2])
def test_a_broker_waits_for_the_others(active: int) -> None:
    assert requested_at_start(active) == []
    assert requested_at_start(active, later=3) == [TOPIC.name]


def test_a_missing_broker_does_not_prevent_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_creation_subsystem, "TOPIC_RETRY_S", 0)

    async def story() -> list[str]:
        cluster = Cluster(2)
        await cluster.subsystem.ensure_soon(TOPIC)
        for _ in range(20):
            await asyncio.sleep(0)
        await cluster.subsystem.stop()
        return cluster.requested

    assert asyncio.run(story()) == [TOPIC.name]


def test_the_health_of_the_broker_tells_that_it_waits() -> None:
    async def story() -> None:
        cluster = Cluster(1)
        problem = cluster.subsystem.contribution().checks["topics"]
        assert problem() is None
        await cluster.subsystem.ensure_soon(TOPIC)
        await asyncio.sleep(0)
        assert problem() == (
            "__diskless_metadata cannot be created yet: 1 of 3 brokers are active"
            " (diskless.metadata.topic.replication.factor=3)"
        )
        cluster.active = 3
        for _ in range(10):
            await asyncio.sleep(0)
        assert problem() is None
        await cluster.subsystem.stop()

    asyncio.run(story())


def test_an_existing_topic_is_not_waited_for() -> None:
    async def story() -> Cluster:
        cluster = Cluster(1)
        cluster.topics[TOPIC.name] = object()
        await cluster.subsystem.ensure_soon(TOPIC)
        for _ in range(10):
            await asyncio.sleep(0)
        await cluster.subsystem.stop()
        return cluster

    cluster = asyncio.run(story())
    assert (cluster.requested, cluster.waits) == ([], 0)
