"""The moves between the roles of a replica, and the truncations that its policy forbids."""

import pytest

from moldau.replication.core.follower import FollowerReplica
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.core.policy import FSYNCED, WRITTEN, ReplicaPolicy
from moldau.replication.core.replica import Replica, ResignedReplica
from moldau.replication.core.role_names import LEGAL_MOVES, IllegalMoveError, ReplicaRole
from moldau.runtime import ErrorCode

LOCAL = 1


def replica(policy: ReplicaPolicy = WRITTEN, high_watermark: int = 0) -> Replica:
    return Replica(LOCAL, high_watermark=high_watermark, policy=policy)


def lead(one: Replica, epoch: int, log_end_offset: int = 0) -> bool:
    return one.lead(
        epoch,
        (LOCAL,),
        (LOCAL,),
        partition_epoch=epoch,
        log_end_offset=log_end_offset,
        synced_offset=0,
        now_ms=0,
    )


def be(one: Replica, name: ReplicaRole, epoch: int) -> None:
    match name:
        case ReplicaRole.LEADER:
            lead(one, epoch)
        case ReplicaRole.FOLLOWER:
            one.follow(epoch, leader_id=2)
        case ReplicaRole.RESIGNED:
            one.resign(epoch)


@pytest.mark.parametrize("source", ReplicaRole)
@pytest.mark.parametrize("target", ReplicaRole)
def test_a_newer_epoch_allows_the_moves_of_the_table_and_an_older_one_none(
    source: ReplicaRole, target: ReplicaRole
) -> None:
    one = replica()
    be(one, source, 5)
    be(one, target, 4)
    assert (one.role.name, one.leader_epoch) == (source, 5)
    be(one, target, 6)
    assert (one.role.name, one.leader_epoch) == (target, 6)
    assert (source, target) in LEGAL_MOVES


def test_one_epoch_has_one_leader() -> None:
    one = replica()
    lead(one, 5)
    with pytest.raises(IllegalMoveError):
        one.follow(5, leader_id=2)
    other = replica()
    other.follow(5, leader_id=2)
    with pytest.raises(IllegalMoveError):
        lead(other, 5)
    with pytest.raises(IllegalMoveError):
        other.follow(5, leader_id=3)


def test_a_replica_that_resigned_leads_again_in_a_newer_epoch_only() -> None:
    one = replica()
    lead(one, 5)
    one.resign(5)
    with pytest.raises(IllegalMoveError):
        lead(one, 5)
    lead(one, 6)
    assert isinstance(one.role, LeaderReplica)


def test_a_replica_without_a_leader_takes_a_role_in_its_epoch() -> None:
    one = replica()
    one.resign(5)
    assert isinstance(one.role, ResignedReplica)
    assert one.follow(5, leader_id=2)
    assert not one.follow(5, leader_id=2)
    assert isinstance(one.role, FollowerReplica)


def test_a_lone_leader_commits_its_log_at_once_and_a_syncing_one_when_it_is_synced() -> None:
    written = replica()
    assert lead(written, 1, log_end_offset=7)
    assert written.high_watermark == 7
    synced = replica(FSYNCED)
    assert not lead(synced, 1, log_end_offset=7)
    assert synced.leader is not None
    assert synced.leader.local_sync(4)
    assert not synced.leader.local_append(9)
    assert synced.high_watermark == 4
    assert synced.leader.local_sync(9)


@pytest.mark.parametrize("policy", [WRITTEN, FSYNCED])
def test_a_term_of_a_leader_does_not_begin_with_a_watermark_below_the_start_of_the_log(
    policy: ReplicaPolicy,
) -> None:
    """Followers adopt the start of the log only up to the watermark, and a follower whose log begins before
    this log does not join. With too few replicas in sync the watermark would not reach the start."""
    one = Replica(LOCAL, high_watermark=0, policy=policy, min_in_sync=2)
    assert one.lead(
        5,
        (LOCAL, 2),
        (LOCAL,),
        partition_epoch=1,
        log_start_offset=4,
        log_end_offset=9,
        synced_offset=9,
        now_ms=0,
    )
    assert one.high_watermark == 4


def test_a_truncation_below_the_watermark_is_reported_and_is_forbidden_for_synced_records() -> None:
    for policy in (WRITTEN, FSYNCED):
        one = replica(policy, high_watermark=10)
        one.follow(3, leader_id=2)
        assert one.follower is not None
        assert not one.follower.truncated(10)
        if policy is WRITTEN:
            assert one.follower.truncated(8)
            assert one.high_watermark == 8
        else:
            with pytest.raises(IllegalMoveError):
                one.follower.truncated(8)


def test_requests_are_fenced_by_epoch() -> None:
    one = replica()
    assert one.check_epoch(-1) is ErrorCode.not_leader_or_follower
    lead(one, 5)
    assert one.check_epoch(-1) is one.check_epoch(5) is ErrorCode.none
    assert one.check_epoch(4) is ErrorCode.fenced_leader_epoch
    assert one.check_epoch(6) is ErrorCode.unknown_leader_epoch


def test_followers_read_the_whole_log_and_consumers_what_is_committed() -> None:
    one = replica()
    one.lead(5, (LOCAL, 2), (LOCAL, 2), partition_epoch=1, log_end_offset=9, synced_offset=9, now_ms=0)
    assert (one.readable_end(is_replica=True), one.readable_end(is_replica=False)) == (9, 0)
    one.follow(6, leader_id=2)
    assert one.follower is not None
    one.follower.appended(9, 4)
    assert one.readable_end(is_replica=True) == one.readable_end(is_replica=False) == 4
