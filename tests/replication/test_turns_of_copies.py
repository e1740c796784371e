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


def requested(
    count: int, failing: dict[int, ErrorCode], withheld: frozenset[int] = frozenset(), copied: int = 3
) -> list[list[int]]:
    """The partitions that the leader's session has in each of the first requests. The leader answers with an
    error in the requests that ``failing`` names by number. It sends no records of the partitions
    ``withheld``. Each answer takes a millisecond."""

    async def story() -> list[list[int]]:
        session: set[int] = set()
        sessions: list[list[int]] = []
        enough = asyncio.Event()

        async def ask(request: FetchRequest, timeout_ms: int) -> FetchResponse:
            session.difference_update(*(each.partitions for each in request.forgotten_topics_data))
            session.update(part.partition for topic in request.topics for part in topic.partitions)
            assert request.max_wait_ms == 0
            sessions.append(sorted(session))
            await asyncio.sleep(0.001)
            if len(sessions) == count:
                enough.set()
                await asyncio.Event().wait()
            code = failing.get(len(sessions) - 1, ErrorCode.none)
            rows = [
                PartitionData(
                    partition_index=index, error_code=code, high_watermark=10_000, records=bytes(61)
                )
                for index in session
                # A leader sends only rows with something new.
                if index not in withheld
            ]
            answers = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)]
            return FetchResponse(session_id=1, responses=answers)

        fetcher = fetcher_of(ask, CatchUpPace(10**9))
        for index in range(copied):
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


def test_a_partition_that_the_leader_throttles_does_not_hold_up_the_others() -> None:
    sessions = requested(200, {}, withheld=frozenset({1}))
    assert sessions[:6] == [[0], [1], [2], [0], [2], [0]]
    assert 1 <= sessions[2:].count([1]) <= 3, "it is requested again after each pause"


def test_a_leader_that_throttles_everything_is_not_asked_all_the_time() -> None:
    sessions = requested(6, {}, withheld=frozenset({0, 1}), copied=2)
    assert sessions == [[0], [1], [], [0], [1], []]
