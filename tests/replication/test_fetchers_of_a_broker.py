"""The partitions that a broker follows are spread over several connections to their leader. The number of
connections may change. Partitions in which the broker is far behind have a connection of their own."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import pytest

from moldau.protocol.partitions import PartitionKey
from moldau.replication.fetching import replica_fetcher_manager
from moldau.replication.fetching.fetcher_context import FetcherContext, FetcherSettings
from moldau.replication.fetching.replica_fetcher_manager import ReplicaFetcherManager

LEADERS = (1, 2)
KEYS = [PartitionKey(UUID(int=leader), index) for leader in LEADERS for index in range(4)]


class Connection:
    """A fetcher that only stores the list of its partitions."""

    alive: ClassVar[list["Connection"]] = []

    def __init__(self, context: object, leader_id: int, move: Any, pace: object = None) -> None:
        self.leader_id, self.move, self.pace = leader_id, move, pace
        self.partitions: dict[PartitionKey, Any] = {}
        self.caught_up: list[PartitionKey] = []
        self.alive.append(self)

    def __len__(self) -> int:
        return len(self.partitions)

    def partition(self, key: PartitionKey) -> Any:
        return self.partitions[key]

    def add(self, partition: Any, *, is_caught_up: bool) -> None:
        self.partitions[partition.key] = partition
        if is_caught_up:
            self.caught_up.append(partition.key)

    def remove(self, key: PartitionKey) -> None:
        del self.partitions[key]

    async def stop(self) -> None:
        self.alive.remove(self)


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher_manager, "ReplicaFetcher", Connection)
    monkeypatch.setattr(Connection, "alive", [])


def following_all() -> ReplicaFetcherManager:
    """The fetchers of a broker that follows all partitions."""
    ports: Any = (SimpleNamespace(),) * 4
    fetchers = ReplicaFetcherManager(FetcherContext(9, FetcherSettings(), *ports))
    for key in KEYS:
        fetchers.follow(SimpleNamespace(key=key), key.topic_id.int)  # type: ignore[arg-type]
    return fetchers


async def _sizes(fetchers: ReplicaFetcherManager) -> list[tuple[int, int]]:
    await asyncio.sleep(0)
    followed = [(key, each.leader_id) for each in Connection.alive for key in each.partitions]
    assert sorted(followed) == sorted((key, key.topic_id.int) for key in KEYS), "each has one connection"
    return sorted((each.leader_id, len(each)) for each in Connection.alive)


def test_partitions_move_when_the_number_of_connections_changes() -> None:
    async def story() -> None:
        fetchers = following_all()
        assert await _sizes(fetchers) == [(1, 4), (2, 4)]
        kept = list(Connection.alive)
        fetchers.resize(2)
        assert await _sizes(fetchers) == [(1, 2), (1, 2), (2, 2), (2, 2)]
        fetchers.resize(2)
        fetchers.resize(1)
        assert await _sizes(fetchers) == [(1, 4), (2, 4)]
        assert Connection.alive == kept, "partitions that keep their connection are not followed anew"
        await fetchers.stop()
        fetchers.resize(3)
        await asyncio.sleep(0)
        assert Connection.alive == []

    asyncio.run(story())


def test_copies_have_a_connection_of_their_own() -> None:
    async def story() -> None:
        fetchers = following_all()
        first, second = Connection.alive
        assert first.pace is None
        first.move(KEYS[0])
        second.move(KEYS[4])
        first.move(KEYS[1])
        *_, copies, copies_of_second = Connection.alive
        assert await _sizes(fetchers) == [(1, 2), (1, 2), (2, 1), (2, 3)]
        assert list(copies.partitions) == KEYS[:2]
        assert copies.pace is copies_of_second.pace is not None, "all copies of a broker share one rate"
        fetchers.resize(2)
        assert list(copies.partitions) == KEYS[:2], "copies go on where they are"
        copies.move(KEYS[0])
        assert await _sizes(fetchers) == [(1, 1), (1, 1), (1, 2), (2, 1), (2, 1), (2, 2)]
        assert [each.caught_up for each in Connection.alive if each.caught_up] == [[KEYS[0]]]
        fetchers.follow(SimpleNamespace(key=KEYS[1]), 1)  # type: ignore[arg-type]
        copies_of_second.move(KEYS[4])
        assert await _sizes(fetchers) == [(1, 2), (1, 2), (2, 2), (2, 2)], "without copies, no connection"
        await fetchers.stop()

    asyncio.run(story())
