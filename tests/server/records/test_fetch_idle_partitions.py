"""A follower's fetch does not visit idle partitions, and still gets every change of them."""

import asyncio
import errno
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.partition_interface import FollowerPosition
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import KafkaError, Machine
from moldau.runtime.errors import ErrorCode
from moldau.server.handlers.records import fetch
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.requests.fetch_sessions import EVICTION_AGE_MIN_S, FetchSessions
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World
from moldau.storage.log.partition_log import PartitionLog

LEADER, FOLLOWER, OTHER = 1, 2, 3
EVERYBODY = (LEADER, FOLLOWER, OTHER)
EPOCH = 5
COUNT = 4
TOPIC_ID = UUID(int=1)
WAIT_MS = 500
LAG_MS_MAX = 30_000


class Permissions(AllowEveryone):
    """Permissions of a follower that a test can revoke."""

    def __init__(self) -> None:
        self.may_follow = True

    def allows(
        self, context: RequestContext, operation: AclOperation, kind: AclResourceType, name: str
    ) -> bool:
        return self.may_follow


class Leadership:
    """A broker that leads some partitions of three replicas. Both followers fetch in sessions."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        self.registry = PartitionRegistry(MetadataImage)
        self.permissions = Permissions()
        self.visits: list[int] = []
        self.on_visit: Callable[[], None] = lambda: None
        self.machine = Machine.real()
        self.partitions = [self._partition(folder, index) for index in range(COUNT)]
        ids = iter(range(1, 99))
        self.sessions = FetchSessions(10, lambda: next(ids))
        self._handlers = FetchHandlers(
            FetchServices(self.registry, self.arrivals, self.sessions, self.permissions, 1 << 20)
        )

    def _partition(self, folder: pathlib.Path, index: int) -> ClassicPartition:
        loop = asyncio.get_running_loop()
        context = ReplicaContext(
            self.machine,
            LEADER,
            self.arrivals,
            BrokerTopicMeters(Meters("kafka.server", "KafkaServer")),
            monotonic_ms=lambda: int(loop.time() * 1000),
        )
        log = PartitionLog.open(self.machine, str(folder / f"t-{index}"), TopicPartition("t", index))
        key = PartitionKey(TOPIC_ID, index)
        partition = ClassicPartition(context, key, log, min_in_sync=2, high_watermark=0)
        visited = partition.is_up_to_date

        def visit(position: FollowerPosition, replica_id: int, broker_epoch: int) -> bool:
            self.visits.append(index)
            self.on_visit()
            return visited(position, replica_id, broker_epoch)

        partition.is_up_to_date = visit
        self.registry.add(partition)
        partition.become_leader(EPOCH, EVERYBODY, EVERYBODY)
        return partition

    def leader(self, index: int) -> LeaderReplica:
        leader = self.partitions[index]._replica.leader
        assert leader is not None
        return leader

    def append(self, index: int) -> None:
        batch = build_batch([Record(0, 1, b"k", b"v", ())])
        self.partitions[index].append(memoryview(batch), required_acks=1, timeout_ms=1000)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        connection, now_s = ConnectionContext("c", "PLAINTEXT"), asyncio.get_running_loop().time()
        context = RequestContext(1, 17, 0, None, connection, received_at=now_s)
        answer = self._handlers.fetch(context, request)
        return answer if isinstance(answer, FetchResponse) else await cast(Any, answer)


class Fetcher:
    """A follower of all partitions."""

    def __init__(self, broker: Leadership, replica_id: int, broker_epoch: int = 7) -> None:
        self._broker = broker
        self._state = ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch)
        self.session_id, self.epoch = 0, 0
        self.ends = [partition.log.log_end_offset for partition in broker.partitions]
        self.starts = [partition.log.log_start_offset for partition in broker.partitions]

    async def fetch(
        self, *indexes: int, forgotten: tuple[int, ...] = (), wait_ms: int = WAIT_MS, min_bytes: int = 1
    ) -> dict[int, PartitionData]:
        """Send the positions of some partitions. Returns the rows of the response."""
        rows = [
            FetchPartition(
                partition=index,
                current_leader_epoch=EPOCH,
                fetch_offset=self.ends[index],
                last_fetched_epoch=EPOCH if self.ends[index] else -1,
                log_start_offset=self.starts[index],
                partition_max_bytes=1 << 20,
            )
            for index in indexes
        ]
        request = FetchRequest(
            replica_state=self._state,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=rows)] if rows else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        self._broker.visits.clear()
        response = await self._broker.fetch(request)
        assert response.error_code is ErrorCode.none
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        return {row.partition_index: row for topic in response.responses for row in topic.partitions}

    async def become_idle(self) -> None:
        await self.fetch(*range(COUNT), wait_ms=0)
        await self.fetch(wait_ms=0)
        await self.fetch(wait_ms=0)


Story = Callable[[Leadership, Fetcher, Fetcher], Coroutine[Any, Any, None]]


@pytest.fixture(params=["at once", "in turns"])
def play(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Story], None]:
    """Plays a story in which all partitions are idle. The fetches are handled at once or in several turns of
    the event loop."""
    if request.param == "in turns":
        monkeypatch.setattr(fetch, "POSITIONS_AT_ONCE", 1)
        monkeypatch.setattr(fetch, "POSITIONS_A_TURN", 1)

    def run(story: Story) -> None:
        async def beginning() -> None:
            broker = Leadership(tmp_path)
            follower, other = Fetcher(broker, FOLLOWER), Fetcher(broker, OTHER)
            await other.become_idle()
            await follower.become_idle()
            await story(broker, follower, other)

        with World(0) as world:
            world.run(beginning())

    return run


def test_idle_partitions_are_not_visited(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            begun = loop.time()
            assert not await follower.fetch()
            assert broker.visits == []
            assert loop.time() - begun >= WAIT_MS / 1000

    play(story)


def test_a_follower_of_idle_partitions_stays_caught_up(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2 * LAG_MS_MAX // WAIT_MS):
            await follower.fetch()
        broker.append(1)
        now_ms = int(loop.time() * 1000)
        assert broker.leader(1).lagging(now_ms, LAG_MS_MAX) == {OTHER}
        assert broker.leader(1).lagging(now_ms + LAG_MS_MAX, LAG_MS_MAX) == {FOLLOWER, OTHER}

    play(story)


@pytest.mark.parametrize("waits", [True, False])
def test_an_append_to_an_idle_partition_is_sent_at_once(play: Callable[[Story], None], waits: bool) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if waits:
            answer = asyncio.ensure_future(follower.fetch(wait_ms=60_000))
            await asyncio.sleep(1)
            broker.append(2)
        else:
            broker.append(2)
            answer = asyncio.ensure_future(follower.fetch(wait_ms=60_000))
        rows = await answer
        assert list(rows) == [2]
        assert rows[2].records
        assert set(broker.visits) == {2}
        assert loop.time() - begun < 2
        assert not len(broker.arrivals)

    play(story)


def test_a_fetch_that_an_append_has_woken_waits_for_the_other_partitions_too(
    play: Callable[[Story], None],
) -> None:
    """The fetch needs the bytes of two appends, to two partitions."""

    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        size = len(build_batch([Record(0, 1, b"k", b"v", ())]))
        answer = asyncio.ensure_future(follower.fetch(wait_ms=60_000, min_bytes=2 * size))
        await asyncio.sleep(1)
        broker.append(0)
        await asyncio.sleep(1)
        assert not answer.done()
        broker.append(3)
        await asyncio.sleep(1)
        assert answer.done()
        assert list(answer.result()) == [0, 3]

    play(story)


@pytest.mark.parametrize("is_woken", [False, True])
def test_a_fetch_waits_for_a_partition_that_changes_while_other_partitions_are_visited(
    play: Callable[[Story], None], is_woken: bool
) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        size = len(build_batch([Record(0, 1, b"k", b"v", ())]))

        def append_once() -> None:
            broker.on_visit = lambda: None
            broker.append(0)

        broker.on_visit = append_once
        indexes, sizes, expected = ((), 3, {0, 2}) if is_woken else ((2,), 2, {0})
        answer = asyncio.ensure_future(follower.fetch(*indexes, wait_ms=60_000, min_bytes=sizes * size))
        await asyncio.sleep(1)
        if is_woken:
            broker.append(2)
            await asyncio.sleep(1)
        assert not answer.done()
        broker.append(0)
        await asyncio.sleep(1)
        assert answer.done()
        assert set(answer.result()) == expected

    play(story)


def test_a_fetch_in_which_all_partitions_become_idle_waits(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert not await follower.fetch(*range(COUNT))
        assert set(broker.visits) == set(range(COUNT))
        assert loop.time() - begun >= WAIT_MS / 1000

    play(story)


async def commit_a_record(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
    """Add a record to partition 1, and wait until the partition is idle again."""
    broker.append(1)
    for fetcher in (other, follower) * 3:
        await fetcher.fetch(1, wait_ms=0)
        fetcher.ends[1] = broker.partitions[1].log.log_end_offset
    for fetcher in (other, follower):
        await fetcher.fetch(1, wait_ms=0)
        await fetcher.fetch(wait_ms=0)
        await fetcher.fetch()
        assert broker.visits == []


def forget_follower(broker: Leadership) -> None:
    broker.partitions[1].become_leader(EPOCH, EVERYBODY, (LEADER, OTHER), 1)


def fail_disk(broker: Leadership) -> None:
    with pytest.raises(KafkaError):
        broker.partitions[1].log.access.fail("reading", OSError(errno.EIO, "broken"))


VISITS: dict[str, Callable[[Leadership], object]] = {
    "an append": lambda broker: broker.append(1),
    "a new term": lambda broker: broker.partitions[1].become_leader(EPOCH + 1, EVERYBODY, EVERYBODY),
    "the end of the leadership": lambda broker: broker.partitions[1].follow(EPOCH + 1, OTHER),
    "the end of the replica": lambda broker: broker.partitions[1].end(),
    "a smaller in-sync set": forget_follower,
    "fewer replicas": lambda broker: broker.partitions[1].become_leader(
        EPOCH, (LEADER, OTHER), (LEADER, OTHER), 1
    ),
    "a higher log start": lambda broker: broker.partitions[1].log.update_log_start_offset(1),
    "a failed disk": fail_disk,
}


@pytest.mark.parametrize("name", VISITS)
def test_any_change_ends_the_idle_period(play: Callable[[Story], None], name: str) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        await commit_a_record(broker, follower, other)
        VISITS[name](broker)
        await follower.fetch()
        assert set(broker.visits) == {1}
        leader = broker.partitions[1]._replica.leader
        progress = None if leader is None else leader.followers.get(FOLLOWER)
        assert progress is None or progress.idle is None

    play(story)


def test_an_idle_follower_gets_a_new_log_start_once(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        await commit_a_record(broker, follower, other)
        broker.partitions[1].log.update_log_start_offset(1)
        rows = await follower.fetch()
        assert rows[1].log_start_offset == 1
        follower.starts[1] = 1
        for _ in range(2):
            assert not await follower.fetch(1)
        assert not await follower.fetch()
        assert broker.visits == []

    play(story)


def test_a_position_that_is_sent_again_is_visited(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        await follower.fetch(3)
        assert broker.visits == [3]
        await follower.fetch()
        assert broker.visits == []

    play(story)


def test_the_idle_period_of_a_forgotten_partition_ends(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        forgotten_ms = int(asyncio.get_running_loop().time() * 1000)
        await follower.fetch(forgotten=(3,))
        await follower.fetch()
        progress = broker.leader(3).followers[FOLLOWER]
        assert progress.idle is None
        assert progress.last_fetch_ms <= forgotten_ms
        assert broker.leader(2).followers[FOLLOWER].idle is not None

    play(story)


def test_a_follower_without_permission_gets_errors_for_idle_partitions(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        broker.permissions.may_follow = False
        rows = await follower.fetch()
        assert [row.error_code for row in rows.values()] == [ErrorCode.topic_authorization_failed] * COUNT
        broker.permissions.may_follow = True
        rows = await follower.fetch()
        assert [row.error_code for row in rows.values()] == [ErrorCode.none] * COUNT

    play(story)


def test_a_new_incarnation_of_a_follower_visits_all_partitions(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        follower._state = ReplicaState(replica_id=FOLLOWER, replica_epoch=8)
        await follower.fetch()
        assert set(broker.visits) == set(range(COUNT))
        assert broker.leader(0).followers[FOLLOWER].broker_epoch == 8

    play(story)


def idle_partitions(broker: Leadership, fetcher: Fetcher) -> set[int]:
    positions = broker.sessions._sessions[fetcher.session_id].positions
    return {key.partition for key, each in positions.items() if each.idle is not None and each.idle.lasts}


def test_a_partition_is_idle_only_in_the_session_that_fetched_last(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        again = Fetcher(broker, FOLLOWER)
        await again.become_idle()
        assert (idle_partitions(broker, follower), len(idle_partitions(broker, again))) == (set(), COUNT)
        await again.fetch()
        assert broker.visits == []
        await follower.fetch(0)
        assert 0 in idle_partitions(broker, follower)
        assert 0 not in idle_partitions(broker, again)

    play(story)


def test_a_session_that_is_opened_again_ends_its_idle_periods(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        former = broker.sessions._sessions[follower.session_id]
        follower.epoch = 0
        await follower.fetch(0, wait_ms=0)
        assert not any(each.idle is not None and each.idle.lasts for each in former.positions.values())
        assert broker.leader(3).followers[FOLLOWER].idle is None

    play(story)


def test_an_evicted_session_ends_its_idle_periods(play: Callable[[Story], None]) -> None:
    async def story(broker: Leadership, follower: Fetcher, other: Fetcher) -> None:
        sessions = broker.sessions
        sessions._slot_count = 2
        await asyncio.sleep(EVICTION_AGE_MIN_S + 1)
        await other.fetch()
        await Fetcher(broker, 9).fetch(0, wait_ms=0)
        assert follower.session_id not in sessions._sessions
        assert all(broker.leader(index).followers[FOLLOWER].idle is None for index in range(COUNT))
        assert all(broker.leader(index).followers[OTHER].idle is not None for index in range(COUNT))

    play(story)
