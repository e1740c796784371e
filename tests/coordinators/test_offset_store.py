"""Committed offsets, and offsets in open transactions."""

from moldau.coordinators.effects import BatchKind
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.records import CommittedOffset, OffsetRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import OFFSETS_A_TURN, GroupShard
from moldau.coordinators.groups.tally import GroupTally
from moldau.runtime import ErrorCode

PLAIN, TRANSACTION = BatchKind(), BatchKind(7, 0, transactional=True)


def record(offset: int) -> OffsetRecord:
    return OffsetRecord("g", "orders", 0, CommittedOffset(offset, -1, "", 1))


def fetched(shard: GroupShard, *, require_stable: bool) -> tuple[int, ErrorCode]:
    (topic,) = shard.offsets.fetch("g", [("orders", [0])], lambda topic: None, require_stable=require_stable)
    return topic.partitions[0].committed_offset, topic.partitions[0].error_code


def test_an_open_transactions_offset_is_unstable_until_it_ends() -> None:
    shard = GroupShard(GroupSettings())
    shard.replay(0, record(1), PLAIN)
    shard.replay(1, record(2), TRANSACTION)
    assert fetched(shard, require_stable=False) == (1, ErrorCode.none)
    assert fetched(shard, require_stable=True) == (-1, ErrorCode.unstable_offset_commit)
    shard.replay_marker(7, 0, True)
    assert fetched(shard, require_stable=True) == (2, ErrorCode.none)


def test_an_aborted_transaction_leaves_no_trace() -> None:
    shard = GroupShard(GroupSettings())
    shard.replay(0, record(2), TRANSACTION)
    shard.replay_marker(7, 0, False)
    assert fetched(shard, require_stable=True) == (-1, ErrorCode.none)
    assert not shard.offsets.store.has("g")


def test_the_later_record_wins_whenever_its_transaction_ends() -> None:
    shard = GroupShard(GroupSettings())
    shard.replay(0, record(2), TRANSACTION)
    shard.replay(1, record(3), PLAIN)
    shard.replay_marker(7, 0, True)
    assert fetched(shard, require_stable=True) == (3, ErrorCode.none)


def test_a_tombstone_ends_open_transactions_offsets_too() -> None:
    store = OffsetStore()
    value = CommittedOffset(1, -1, "", 1)
    store.put("g", ("orders", 0), value, 0, 7, True)
    assert store.partitions("g") == [("orders", 0)]
    store.remove("g", ("orders", 0))
    assert not store.is_unstable("g", "orders", 0)
    assert store.end_transaction(7, True) == ["g"]
    assert store.get("g", "orders", 0) is None


def test_groups_with_open_transactions_do_not_expire() -> None:
    shard = GroupShard(GroupSettings(offsets_retention_ms=10))
    shard.replay(0, record(2), TRANSACTION)
    assert shard.expire(1_000_000).records == []
    shard.replay_marker(7, 0, False)
    assert len(shard.expire(1_000_000).records) == 1


def test_expired_offsets_are_counted() -> None:
    tally = GroupTally()
    shard = GroupShard(GroupSettings(offsets_retention_ms=10), tally)
    for partition in range(3):
        value = CommittedOffset(1, -1, "", 1)
        shard.replay(partition, OffsetRecord("g", "orders", partition, value), PLAIN)
    assert shard.offsets.store.count == 3
    shard.expire(5)
    assert tally.offset_expirations == 0
    assert len(shard.expire(1_000).records) == 4  # the group is removed with its offsets
    assert (tally.offset_expirations, tally.offset_deletions, tally.offset_commits) == (3, 0, 0)


def test_many_offsets_of_a_group_expire_in_parts() -> None:
    shard = GroupShard(GroupSettings(offsets_retention_ms=10))
    count = 2 * OFFSETS_A_TURN + 500
    for partition in range(count):
        value = CommittedOffset(1, -1, "", 1)
        shard.replay(partition, OffsetRecord("g", "orders", partition, value), PLAIN)
    parts = []
    while shard.classic.by_id:
        effects = shard.expire(1_000_000)
        parts.append(len(effects.records))
        for each in effects.records:
            shard.replay(count, each, PLAIN)
    assert parts == [OFFSETS_A_TURN, OFFSETS_A_TURN, 501]
