"""The information that a leader has about its followers. The tests check the high watermark."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.replication.core.leader import LeaderAndIsr, LeaderReplica, ReplicaOffsets


def leadership(
    *, replicas: tuple[int, ...] = (1, 2, 3), in_sync: tuple[int, ...] = (1, 2, 3)
) -> LeaderReplica:
    return LeaderReplica(1, LeaderAndIsr(5, replicas, in_sync), ReplicaOffsets(0, 0), now_ms=0)


def test_a_lone_leader_commits_what_it_appends() -> None:
    leader = leadership(replicas=(1,), in_sync=(1,))
    assert leader.local_append(10)
    assert leader.high_watermark == 10


def test_the_slowest_in_sync_follower_holds_the_watermark() -> None:
    leader = leadership()
    assert not leader.local_append(10)
    assert not leader.follower_fetched(2, 10, now_ms=1)
    assert leader.follower_fetched(3, 4, now_ms=1)
    assert leader.high_watermark == 4


def test_a_follower_outside_the_in_sync_set_does_not_delay_the_watermark() -> None:
    leader = leadership(in_sync=(1, 2))
    leader.local_append(10)
    assert leader.follower_fetched(2, 10, now_ms=1)
    assert leader.high_watermark == 10
    assert leader.caught_up_outsiders() == frozenset()
    leader.follower_fetched(3, 10, now_ms=2)
    assert leader.caught_up_outsiders() == {3}


def test_a_follower_that_does_not_know_the_start_of_the_log_does_not_join() -> None:
    leader = leadership(in_sync=(1, 2))
    leader.brokers_changed({1: 6, 2: 7, 3: 8})
    leader.local_append(10)
    leader.log_start_offset = 5
    for start, members in ((0, None), (5, [1, 2, 3])):
        leader.follower_fetched(2, 10, 1, broker_epoch=7, log_start_offset=5)
        leader.follower_fetched(3, 10, 1, broker_epoch=8, log_start_offset=start)
        proposal = leader.propose(1, 10_000, local_broker_epoch=6)
        assert (proposal and [each.broker_id for each in proposal.members]) == members


def test_a_deletion_waits_for_an_in_sync_follower_on_a_fenced_broker() -> None:
    leader = leadership()
    leader.brokers_changed({1: 6, 2: 7})
    leader.local_append(10)
    leader.follower_fetched(2, 10, 1, broker_epoch=7, log_start_offset=5)
    leader.follower_fetched(3, 10, 1, broker_epoch=8, log_start_offset=0)
    assert leader.low_watermark(5) == 0
    leader.set_changed((1, 2))
    assert leader.low_watermark(5) == 5


def test_shrinking_the_set_releases_the_watermark() -> None:
    leader = leadership()
    leader.local_append(7)
    leader.follower_fetched(2, 7, now_ms=1)
    assert leader.set_changed((1, 2))
    assert leader.high_watermark == 7


def test_a_follower_that_keeps_up_with_what_it_saw_is_not_lagging() -> None:
    leader = leadership()
    for tick in range(1, 50):
        leader.local_append(tick * 10)
        leader.follower_fetched(2, (tick - 1) * 10, now_ms=tick * 1000)
    assert leader.lagging(50_000, lag_ms_max=10_000) == {3}


def test_a_fetch_of_a_broker_without_a_replica_changes_nothing() -> None:
    leader = leadership()
    leader.local_append(7)
    assert not leader.follower_fetched(9, 7, now_ms=1)


@given(st.lists(st.tuples(st.sampled_from(["append", "fetch2", "fetch3"]), st.integers(0, 20))))
def test_the_watermark_never_moves_back_and_never_passes_an_in_sync_replica(
    moves: list[tuple[str, int]],
) -> None:
    leader = leadership()
    ends = {1: 0, 2: 0, 3: 0}
    previous = 0
    for kind, amount in moves:
        if kind == "append":
            ends[1] += amount
            leader.local_append(ends[1])
        else:
            follower = int(kind[-1])
            ends[follower] = min(ends[1], ends[follower] + amount)
            leader.follower_fetched(follower, ends[follower], now_ms=0)
        assert previous <= leader.high_watermark <= min(ends.values())
        previous = leader.high_watermark


def test_a_check_of_a_complete_in_sync_set_makes_no_objects() -> None:
    leader = leadership()
    for follower in (2, 3):
        leader.follower_fetched(follower, 0, now_ms=0)
    before = leader._joining, leader._bounding, leader.in_sync
    assert leader.propose(60_000, 30_000, local_broker_epoch=1) is None
    after = leader._joining, leader._bounding, leader.in_sync
    assert all(one is other for one, other in zip(before, after, strict=True))
    leader.local_append(7)
    assert leader.propose(60_000, 30_000, local_broker_epoch=1) is not None
