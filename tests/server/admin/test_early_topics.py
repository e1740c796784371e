"""CreateTopics of diskless topics in a new cluster, which has no coordinators yet."""

import asyncio
from typing import Any

import pytest

from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.handlers.admin.forwarded_apis import COORDINATORS_TIMEOUT_S, ForwardedHandlers
from moldau.simulation.world.world import World


class NewCluster:
    """A controller. The coordinators of its cluster exist after some time."""

    def __init__(self, coordinators_after_s: float, later_error: ErrorCode | None = None) -> None:
        """All requests but the first are refused with ``later_error``."""
        self.later_error = later_error
        self.ready_s = asyncio.get_running_loop().time() + coordinators_after_s
        self.asked: list[list[str]] = []

    async def send(self, request: CreateTopicsRequest, *_: Any) -> CreateTopicsResponse:
        self.asked.append([topic.name for topic in request.topics])
        if self.later_error is not None and len(self.asked) > 1:
            if self.later_error is ErrorCode.network_exception:
                raise KafkaError(self.later_error)
            return CreateTopicsResponse(
                topics=[
                    CreatableTopicResult(name=topic.name, error_code=self.later_error)
                    for topic in request.topics
                ]
            )
        is_early = asyncio.get_running_loop().time() < self.ready_s
        refusals = {"diskless": ErrorCode.coordinator_not_available} if is_early else {}
        rows = [
            CreatableTopicResult(
                name=topic.name,
                error_code=refusals.get(topic.name, ErrorCode.none),
                error_message="early" if topic.name in refusals else None,
            )
            for topic in request.topics
        ]
        return CreateTopicsResponse(topics=rows)


async def create(cluster: NewCluster, timeout_ms: int) -> tuple[dict[str, ErrorCode], float]:
    """Create a classic and a diskless topic. Returns the codes by topic, and the time of the call."""

    async def done(*_: object) -> None:
        return None

    loop = asyncio.get_running_loop()
    handlers = ForwardedHandlers(
        cluster,
        [],
        lambda _: asyncio.ensure_future(done()),
        done,
        lambda _: 1,
    )
    began_s = loop.time()
    context = RequestContext(
        ApiKey.CREATE_TOPICS, 7, 1, None, ConnectionContext("c", "PLAINTEXT"), received_at=began_s
    )
    wanted = [CreatableTopic(name=name, num_partitions=1) for name in ("classic", "diskless", "other")]
    response = await handlers.create_topics(
        context, CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms)
    )
    assert isinstance(response, CreateTopicsResponse)
    return {row.name: row.error_code for row in response.topics}, loop.time() - began_s


def test_a_diskless_topic_waits_for_the_coordinators_of_a_new_cluster() -> None:
    async def story() -> None:
        cluster = NewCluster(2)
        codes, took_s = await create(cluster, 60_000)
        assert list(codes.items()) == [(name, ErrorCode.none) for name in ("classic", "diskless", "other")]
        assert 2 <= took_s < 2.2
        assert cluster.asked[0] == ["classic", "diskless", "other"]
        assert {tuple(names) for names in cluster.asked[1:]} == {("diskless",)}

    World(1).run(story())


@pytest.mark.parametrize(
    ("timeout_ms", "longest_s"), [(0, 0.0), (500, 0.4), (60_000, COORDINATORS_TIMEOUT_S)]
)
def test_the_wait_for_coordinators_ends_with_the_request(timeout_ms: int, longest_s: float) -> None:
    async def story() -> None:
        codes, took_s = await create(NewCluster(1_000), timeout_ms)
        assert codes["diskless"] is ErrorCode.coordinator_not_available
        assert codes["classic"] is ErrorCode.none
        assert longest_s - 0.2 <= took_s < longest_s + 0.001

    World(1).run(story())


@pytest.mark.parametrize(
    "error", [ErrorCode.not_controller, ErrorCode.request_timed_out, ErrorCode.network_exception]
)
def test_created_topics_are_reported_although_the_controller_goes_away(error: ErrorCode) -> None:
    """A client that gets NOT_CONTROLLER for one topic may create all topics of its request again."""

    async def story() -> None:
        codes, took_s = await create(NewCluster(1_000, error), 5_000)
        assert codes == {
            "classic": ErrorCode.none,
            "diskless": ErrorCode.coordinator_not_available,
            "other": ErrorCode.none,
        }
        assert took_s <= 4

    World(1).run(story())
