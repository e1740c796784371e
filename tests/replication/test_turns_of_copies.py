"""A connection for copies fetches one partition at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from test_fetch_answers import EPOCH, LEADER, fetcher_of

from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.catching_up import CatchUpPace
from moldau.runtime import ErrorCode
from moldau.simulation.world.world import World

TOPIC_ID = UUID(int=1)


class Copied:
    """A partition that is far behind. Each append moves its end by 10."""

    topic = "t"
    snapshots = None

    def __init__(self, index: int) -> None:
        self.key = PartitionKey(TOPIC_ID, index)
        self.end_offset = 0
        self.following = self
        self.is_cutting = False

    def position(self) -> FetchPosition:
        return FetchPosition(LEADER, EPOCH, self.end_offset, -1)

    def is_synced(self, position: FetchPosition) -> bool:
        return True

    def begins_inside(self, records: bytes) -> bool:
        return False

    def append(self, epoch: int, records: bytes, **offsets: int) -> Any:
        self.end_offset += 10
        return SimpleNamespace(size_bytes=len(records))


def requested(count: int, failing: dict[int, ErrorCode]) -> list[list[int]]:
    """The partitions that the leader's session has in each of the first requests. The leader answers with an
    error in the requests that ``failing`` names by number."""

    async def story() -> list[list[int]]:
        session: set[int] = set()
        sessions: list[list[int]] = []
        enough = asyncio.Event()

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            session.difference_update(*(each.partitions for each in request.forgotten_topics_data))
            session.update(part.partition for topic in request.topics for part in topic.partitions)
            sessions.append(sorted(session))
            if len(sessions) == count:
                enough.set()
                await asyncio.Event().wait()
            code = failing.get(len(sessions) - 1, ErrorCode.none)
            rows = [
                PartitionData(
                    partition_index=index, error_code=code, high_watermark=10_000, records=bytes(61)
                )
                for index in session
            ]
            answers = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)]
            return FetchResponse(session_id=1, responses=answers)

        fetcher = fetcher_of(ask, CatchUpPace(10**9))
        for index in range(3):
            fetcher.add(Copied(index))  # type: ignore[arg-type]
        await enough.wait()
        await fetcher.stop()
        return sessions

    return World(1).run(story())


def test_each_request_has_one_partition() -> None:
    assert requested(7, {}) == [[0], [1], [2], [0], [1], [2], [0]]


def test_a_partition_with_an_error_does_not_hold_up_the_others() -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert requested(6, {1: unknown})[:5] == [[0], [1], [2], [0], [2]]
    # When no partition can be requested, the session is emptied, until the first pause is over.
    assert requested(6, dict.fromkeys((0, 1, 2), unknown)) == [[0], [1], [2], [], [0], [1]]
