"""A fetch of a follower that already knows everything is recorded without a read. The tests compare this
short way with an ordinary read. After both, the leader must have the same state, and the read must return
nothing new."""

import copy
import pathlib
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.leader import LeaderAndIsr, LeaderReplica, ReplicaOffsets
from moldau.replication.partition_interface import ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import Machine
from moldau.server.handlers.records.fetch_rows import has_news
from moldau.server.requests.fetch_sessions import SessionPosition
from moldau.storage.log.partition_log import PartitionLog

LEADER, FOLLOWER, OTHER = 1, 2, 3
EPOCH = 5

offsets = st.integers(0, 3)
fetches = st.tuples(
    st.sampled_from([FOLLOWER, OTHER, 9]), offsets, st.integers(-1, 2), st.integers(-1, 1), st.integers(1, 9)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), offsets),
        st.tuples(st.just("set"), st.sampled_from([(1,), (1, 2), (1, 3), (1, 2, 3)])),
        st.tuples(st.just("fetch"), fetches),
    ),
    max_size=12,
)
steps_of_idle_followers = st.one_of(
    st.tuples(st.just("append"), st.none()),
    st.tuples(st.just("set"), st.sampled_from([(1, 2), (1, 2, 3)])),
    st.tuples(st.just("other"), st.none()),
    st.tuples(st.just("full fetch"), st.none()),
    st.tuples(st.just("fetch"), st.sampled_from(["first session", "second session"])),
)


def state(leader: LeaderReplica) -> dict[str, object]:
    return {name: copy.deepcopy(value) for name, value in vars(leader).items()}


@given(steps, fetches)
def test_the_short_way_records_the_same_as_a_fetch(
    history: list[tuple[str, object]], last: tuple[int, int, int, int, int]
) -> None:
    leader = LeaderReplica(1, LeaderAndIsr(EPOCH, (1, 2, 3), (1, 2, 3)), ReplicaOffsets(0, 0), now_ms=0)
    leader.brokers_changed({1: 1, 2: 1, 3: 1})

    def fetched(fetch: tuple[int, int, int, int, int]) -> bool:
        replica, offset, broker_epoch, start, now_ms = fetch
        return leader.follower_fetched(
            replica,
            min(offset, leader.log_end_offset),
            now_ms,
            broker_epoch=broker_epoch,
            log_start_offset=start,
        )

    for kind, value in history:
        if kind == "append":
            leader.local_append(max(leader.log_end_offset, value))  # type: ignore[call-overload]
        elif kind == "set":
            leader.set_changed(value, leader.partition_epoch + 1)  # type: ignore[arg-type]
        else:
            fetched(value)  # type: ignore[arg-type]
    replica, offset, broker_epoch, start, now_ms = last
    before = copy.deepcopy(leader)
    is_idle = leader.idle_follower_fetched(
        replica, offset, now_ms, broker_epoch=broker_epoch, log_start_offset=start
    )
    after = state(leader)
    if not is_idle:
        assert after == state(before)
        return
    leader = before
    assert not fetched(last)
    assert state(leader) == after


class Period:
    """An idle period of a follower in one session of fetches."""

    def __init__(self, leader: LeaderReplica, replica: int, now_ms: int) -> None:
        self.leader, self.replica, self.last_ms = leader, replica, now_ms
        leader.begin_idle(replica, self)

    def end(self) -> None:
        self.leader.end_idle(self.replica, self, self.last_ms)


@given(st.lists(steps_of_idle_followers, max_size=20))
def test_the_end_of_an_idle_period_records_the_same_as_all_its_fetches(
    history: list[tuple[str, object]],
) -> None:
    """Two sessions of the same follower fetch alternately. One leader records each fetch. The other leader
    records idle periods."""
    leaders = [
        LeaderReplica(1, LeaderAndIsr(EPOCH, (1, 2, 3), (1, 2, 3)), ReplicaOffsets(0, 0), now_ms=0)
        for _ in range(2)
    ]
    each_fetch, periods = leaders
    sessions: dict[object, Period] = {}
    for now_ms, (kind, value) in enumerate(history, 1):
        if kind == "append":
            for leader in leaders:
                leader.local_append(leader.log_end_offset + 1)
        elif kind == "set":
            for leader in leaders:
                leader.set_changed(value, leader.partition_epoch + 1)  # type: ignore[arg-type]
        elif kind == "other":
            for leader in leaders:
                leader.follower_fetched(OTHER, leader.log_end_offset, now_ms)
        elif kind == "full fetch":
            for leader in leaders:
                leader.follower_fetched(FOLLOWER, leader.log_end_offset, now_ms)
        else:
            end = each_fetch.log_end_offset
            period = sessions.get(value)
            if period is not None and periods.followers[FOLLOWER].idle is period:
                period.last_ms = now_ms
            elif periods.idle_follower_fetched(FOLLOWER, end, now_ms, broker_epoch=-1, log_start_offset=-1):
                sessions[value] = Period(periods, FOLLOWER, now_ms)
            else:
                periods.follower_fetched(FOLLOWER, end, now_ms)
            each_fetch.follower_fetched(FOLLOWER, end, now_ms)
        assert periods.lagging(now_ms, 3) == each_fetch.lagging(now_ms, 3)
    periods.end_idle_periods()
    assert state(periods) == state(each_fetch)


class IdlePartition:
    """A partition of three in-sync replicas with ten committed records. One follower, at the end of the log,
    was told everything."""

    def __init__(self, folder: pathlib.Path) -> None:
        machine = Machine.real()
        meters = BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        self.log = PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0))
        self.partition = ClassicPartition(
            ReplicaContext(machine, LEADER, WaitingRoom(), meters),
            PartitionKey(UUID(int=1), 0),
            self.log,
            min_in_sync=2,
            high_watermark=0,
        )
        self.lead(EPOCH)
        self.append()
        for _ in range(2):
            for follower in (FOLLOWER, OTHER):
                self.fetch(follower, self.position())
        self.idle = replace(self.position(), told_high_watermark=10, told_log_start_offset=0)
        self.now_ms = 0
        self.partition.leading._monotonic_ms = lambda: self.now_ms

    def position(self) -> SessionPosition:
        return SessionPosition(self.log.log_end_offset, 1 << 20, EPOCH, EPOCH, 0)

    def lead(self, epoch: int) -> None:
        everybody = (LEADER, FOLLOWER, OTHER)
        self.partition.become_leader(epoch, everybody, everybody)

    def append(self) -> None:
        records = [Record(number, 1, b"k", b"v", ()) for number in range(10)]
        self.partition.append(memoryview(build_batch(records)), required_acks=1, timeout_ms=1000)

    def fetch(self, follower: int, position: SessionPosition, broker_epoch: int = 7) -> ReadOutcome:
        request = ReadRequest(
            position.fetch_offset,
            position.max_bytes,
            current_leader_epoch=position.current_leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            replica_id=follower,
            broker_epoch=broker_epoch,
            log_start_offset=position.log_start_offset,
        )
        outcome = self.partition.read(request)
        assert isinstance(outcome, ReadOutcome)
        return outcome

    @property
    def leader(self) -> LeaderReplica:
        leader = self.partition._replica.leader
        assert leader is not None
        return leader


@pytest.fixture
def idle(tmp_path: pathlib.Path) -> IdlePartition:
    return IdlePartition(tmp_path)


def test_an_idle_follower_counts_as_caught_up(idle: IdlePartition) -> None:
    assert not has_news(idle.idle, idle.fetch(FOLLOWER, idle.idle))
    idle.now_ms = 9_000_000_000_000
    assert idle.partition.is_up_to_date(idle.idle, FOLLOWER, 7)
    assert idle.leader.followers[FOLLOWER].last_caught_up_ms == idle.now_ms
    idle.append()
    assert idle.leader.lagging(idle.now_ms + 1, lag_ms_max=30_000) == {OTHER}


def changed(**fields: int | bool) -> Callable[[IdlePartition], None]:
    def change(idle: IdlePartition) -> None:
        idle.idle = replace(idle.idle, **fields)

    return change


def lose_leadership(idle: IdlePartition) -> None:
    idle.partition.follow(EPOCH + 1, OTHER)


def leave_records_uncommitted(idle: IdlePartition) -> None:
    """The follower has the new records and knows the watermark, but the other follower lacks the records."""
    idle.append()
    idle.fetch(FOLLOWER, idle.position())
    idle.idle = replace(idle.idle, fetch_offset=20)


CHANGES: dict[str, Callable[[IdlePartition], object]] = {
    "an append": IdlePartition.append,
    "a new leader epoch": lambda idle: idle.lead(EPOCH + 1),
    "another leader": lose_leadership,
    "a higher start of the log": lambda idle: idle.log.update_log_start_offset(3),
    "records that are not committed": leave_records_uncommitted,
    "a follower outside the in-sync set": lambda idle: idle.leader.set_changed((LEADER, OTHER), 1),
    "a follower that is behind": changed(fetch_offset=9),
    "an old leader epoch": changed(current_leader_epoch=EPOCH - 1),
    "no leader epoch": changed(current_leader_epoch=-1),
    "another epoch of the last record": changed(last_fetched_epoch=EPOCH - 1),
    "an unknown watermark": changed(told_high_watermark=9),
    "an unknown log start": changed(told_log_start_offset=-1),
    "an earlier error": changed(told_error=True),
    "a new start of the follower's log": changed(log_start_offset=4),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_needs_a_read(idle: IdlePartition, name: str) -> None:
    CHANGES[name](idle)
    before = state(idle.leader) if idle.partition._replica.leader else {}
    assert not idle.partition.is_up_to_date(idle.idle, FOLLOWER, 7)
    assert (state(idle.leader) if idle.partition._replica.leader else {}) == before


@pytest.mark.parametrize("broker_epoch", [-1, 6, 8])
def test_another_incarnation_of_a_follower_needs_a_read(idle: IdlePartition, broker_epoch: int) -> None:
    assert not idle.partition.is_up_to_date(idle.idle, FOLLOWER, broker_epoch)


def test_a_broker_without_a_replica_needs_a_read(idle: IdlePartition) -> None:
    assert not idle.partition.is_up_to_date(idle.idle, 9, 7)
