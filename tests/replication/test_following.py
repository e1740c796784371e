"""A leader and a follower on real files. The follower fetches, truncates its log where the two logs differ,
and becomes leader."""

import asyncio
import pathlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

import pytest
from replica_files import Replicas, batch

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ACKS_ALL
from moldau.replication.core.policy import FSYNCED, WRITTEN, ReplicaPolicy
from moldau.replication.partition_interface import AppendOutcome, ReadOutcome
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError

P = ParamSpec("P")
T = TypeVar("T")


def test_a_follower_copies_the_log_and_the_watermark(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path)
        pair.lead(1, 3)
        answer = pair.produce(1, b"a", ACKS_ALL)
        assert isinstance(answer, asyncio.Future)
        await pair.fetch(2)
        assert not answer.done()
        await pair.fetch(2)
        assert (await answer).error is ErrorCode.none
        assert pair.partitions[2].high_watermark == 1
        assert pair.content(1) == pair.content(2)

    asyncio.run(scenario())


def test_a_diverged_follower_is_cut_and_follows(tmp_path: pathlib.Path) -> None:
    pair = Replicas(tmp_path)
    pair.lead(1, 3)
    pair.produce(1, b"a")
    asyncio.run(pair.fetch(2))
    pair.produce(1, b"lost")
    pair.lead(2, 4)
    pair.produce(2, b"b")
    assert asyncio.run(pair.fetch(1)).diverging_epoch == (3, 1)
    assert pair.end(1) == 1
    asyncio.run(pair.fetch(1))
    assert pair.content(1) == pair.content(2)
    assert pair.partitions[1].log.leader_epochs.entries == pair.partitions[2].log.leader_epochs.entries


def test_a_replica_that_led_an_epoch_without_records_gets_the_records_of_the_leader(
    tmp_path: pathlib.Path,
) -> None:
    pair = Replicas(tmp_path)
    pair.lead(2, 3)
    pair.produce(2, b"a")
    asyncio.run(pair.fetch(1))
    pair.produce(2, b"b")  # replica 1 does not have this record, but it becomes leader without an append
    pair.lead(1, 4)
    pair.lead(2, 5)
    assert asyncio.run(pair.fetch(1)).diverging_epoch is None
    assert pair.content(1) == pair.content(2)


def test_records_that_were_fetched_in_another_term_are_not_appended(tmp_path: pathlib.Path) -> None:
    pair = Replicas(tmp_path)
    pair.lead(1, 3)
    for epoch, code in ((2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)):
        with pytest.raises(KafkaError) as refused:
            pair.partitions[2].following.append(epoch, batch(b"a"), high_watermark=0, log_start_offset=0)
        assert refused.value.code is code
        with pytest.raises(KafkaError):
            asyncio.run(pair.partitions[2].following.truncate(epoch, 0, 0))
    with pytest.raises(KafkaError) as refused:
        pair.partitions[1].following.position()
    assert refused.value.code is ErrorCode.not_leader_or_follower


def test_a_follower_takes_over_the_start_of_the_log(tmp_path: pathlib.Path) -> None:
    pair = Replicas(tmp_path)
    pair.lead(1, 3)
    for value in (b"a", b"b", b"c"):
        pair.produce(1, value)
    asyncio.run(pair.fetch(2))
    asyncio.run(pair.fetch(2))

    async def delete_and_follow() -> int:
        deletion = asyncio.create_task(pair.partitions[1].delete_records(2))
        await asyncio.sleep(0)
        await pair.fetch(2)
        assert not deletion.done()
        await pair.fetch(2)  # this fetch contains the follower's new start
        return await asyncio.wait_for(deletion, 10)

    assert asyncio.run(delete_and_follow()) == 2
    assert pair.partitions[2].log.log_start_offset == 2
    asyncio.run(pair.partitions[2].following.start_over(3, 3))
    assert (pair.partitions[2].log.log_start_offset, pair.end(2)) == (3, 3)


def test_a_time_out_ends_the_wait_for_followers_but_not_the_deletion(tmp_path: pathlib.Path) -> None:
    pair = Replicas(tmp_path)
    pair.lead(1, 3)
    pair.produce(1, b"a")
    asyncio.run(pair.fetch(2))
    asyncio.run(pair.fetch(2))
    with pytest.raises(KafkaError) as refused:
        asyncio.run(pair.partitions[1].delete_records(1, timeout_s=0))
    assert refused.value.code is ErrorCode.request_timed_out
    assert pair.partitions[1].log.log_start_offset == 1


@pytest.mark.parametrize("flush_messages", [1, None])
def test_a_flushed_follower_sends_a_new_start_only_after_the_start_is_durable(
    tmp_path: pathlib.Path, flush_messages: int | None
) -> None:
    """DeleteRecords ends when the follower has sent the new start. After a loss of power, a follower that has
    only the old start could become the leader and return the deleted records."""
    pair = Replicas(tmp_path)
    pair.lead(1, 3)
    follower = pair.partitions[2]
    if flush_messages is not None:
        follower.log.config = replace(follower.log.config, flush_messages=flush_messages)
    saves: list[int] = []

    async def checkpoint() -> None:
        saves.append(follower.log.log_start_offset)

    follower.log.start.checkpoint = checkpoint

    async def story() -> None:
        for value in (b"a", b"b", b"c"):
            pair.produce(1, value)
        await pair.fetch(2)
        await follower.following.synced()
        assert not saves
        assert follower.following.is_synced(follower.following.position())
        await pair.fetch(2)
        pair.partitions[1].log.update_log_start_offset(2)
        await pair.fetch(2)
        assert follower.following.is_synced(follower.following.position()) == (flush_messages is None)
        await follower.following.synced()
        assert saves == [2]
        assert follower.following.is_synced(follower.following.position())

    asyncio.run(story())


def test_a_follower_of_a_synced_log_fetches_on_after_the_start_has_moved(tmp_path: pathlib.Path) -> None:
    """The broker's ``log.flush.interval.messages`` also applies to logs that are synced anyway."""
    pair = Replicas(tmp_path, FSYNCED)
    pair.lead(1, 3)
    follower = pair.partitions[2]
    follower.log.config = replace(follower.log.config, flush_messages=1)

    async def story() -> None:
        for value in (b"a", b"b", b"c"):
            pair.append_own(1, value)
        await pair.settled()
        await pair.fetch(2)
        await pair.settled()
        follower.log.update_log_start_offset(2)
        await follower.following.synced()
        assert follower.following.is_synced(follower.following.position())

    asyncio.run(story())


def test_a_follower_takes_over_the_start_of_a_log_whose_leader_was_elected_uncleanly(
    tmp_path: pathlib.Path,
) -> None:
    pair = Replicas(tmp_path)
    pair.lead(1, 3, in_sync=(1,))
    for value in (b"a", b"b", b"c", b"d"):
        pair.produce(1, value)
    # The log of replica 2 begins in the middle of the log of its leader.
    asyncio.run(pair.partitions[2].following.start_over(3, 3))
    asyncio.run(pair.fetch(2))
    assert pair.end(2) == 4
    pair.lead(2, 4, in_sync=(2,))
    assert pair.partitions[2].high_watermark == pair.partitions[2].log.log_start_offset == 3
    asyncio.run(pair.fetch(1))
    assert pair.partitions[1].log.log_start_offset == 3


def test_a_synced_log_acknowledges_what_is_on_both_disks(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path, FSYNCED)
        pair.lead(1, 3)
        leader, follower = pair.partitions[1], pair.partitions[2]
        answer = leader.committed(pair.append_own(1, b"a"), 60_000)
        await pair.fetch(2)
        assert pair.end(2) == 1
        assert follower.following.acknowledged_offset() == 0, "the copy is written, not synced"
        await pair.fetch(2)
        await leader.settled()
        assert not answer.done()
        await follower.settled()
        assert follower.following.acknowledged_offset() == 1
        await pair.fetch(2)
        assert (await answer).error is ErrorCode.none
        assert leader.high_watermark == 1

    asyncio.run(scenario())


def test_unsynced_records_of_an_earlier_process_are_synced_before_they_are_acknowledged(
    tmp_path: pathlib.Path,
) -> None:
    """A follower starts a sync by itself only if it appends records. So records that an earlier process has
    appended need a separate sync."""

    async def scenario() -> None:
        before = Replicas(tmp_path, WRITTEN)
        before.lead(1, 3)
        before.produce(1, b"a")
        await before.fetch(2)
        for each in before.partitions.values():
            each.log.segments.close()
        pair = Replicas(tmp_path, FSYNCED)
        pair.lead(1, 4)
        following = pair.partitions[2].following
        assert (following.position().offset, following.acknowledged_offset()) == (1, 0)
        await following.synced()
        assert following.acknowledged_offset() == 1

    asyncio.run(scenario())


def test_clients_cannot_append_to_or_shorten_a_log_of_the_cluster(tmp_path: pathlib.Path) -> None:
    policy = ReplicaPolicy(FSYNCED.durability, clients_append=False, clients_shorten=False)
    pair = Replicas(tmp_path, policy, min_in_sync=1)

    async def scenario() -> None:
        pair.lead(1, 3)
        answer = pair.produce(1, b"a")
        assert isinstance(answer, AppendOutcome)
        assert answer.error is ErrorCode.topic_authorization_failed
        assert pair.partitions[1].stage(memoryview(batch(b"a")), 1) is None
        with pytest.raises(KafkaError) as refused:
            await pair.partitions[1].delete_records(0)
        assert refused.value.code is ErrorCode.policy_violation

    asyncio.run(scenario())


def test_a_leader_that_resigns_sends_its_producers_away(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path)
        pair.lead(1, 3)
        answer = pair.produce(1, b"a", ACKS_ALL)
        assert isinstance(answer, asyncio.Future)
        pair.lead(2, 4)
        assert (await answer).error is ErrorCode.not_leader_or_follower
        # Old metadata name epoch 3, but the replica is already in epoch 4.
        pair.partitions[2].become_leader(3, pair.ids, pair.ids)
        assert pair.partitions[2].leader_epoch == 4

    asyncio.run(scenario())


def test_a_replica_leads_once_its_log_is_cut(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path)
        pair.lead(1, 3)
        pair.produce(1, b"a")
        pair.produce(1, b"b")
        pair.lead(2, 4)
        former = pair.partitions[1]
        cutting = asyncio.ensure_future(former.following.truncate(4, 3, 0))
        await asyncio.sleep(0)
        former.resign(5)
        former.become_leader(6, pair.ids, pair.ids)
        assert not former.is_leader
        await cutting
        assert (former.is_leader, former.leader_epoch, pair.end(1)) == (True, 6, 0)

    asyncio.run(scenario())


def test_a_synced_log_is_not_cut_below_its_watermark(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path, FSYNCED, min_in_sync=1)
        pair.lead(1, 3)
        leader = pair.partitions[1]
        pair.append_own(1, b"a")
        await pair.fetch(2)
        await leader.settled()
        await pair.partitions[2].settled()
        await pair.fetch(2)
        await pair.fetch(2)
        assert pair.partitions[2].high_watermark == 1
        with pytest.raises(ValueError, match="below the watermark"):
            await pair.partitions[2].following.truncate(3, 2, 0)
        assert pair.end(2) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", [WRITTEN, FSYNCED], ids=["written", "fsynced"])
def test_histories_of_three_replicas_end_with_equal_logs(
    tmp_path: pathlib.Path, policy: ReplicaPolicy, seed: int
) -> None:
    """Any replica may be elected at any time, because all of them are in sync."""
    chance = random.Random(seed)

    async def scenario() -> None:
        replicas = Replicas(tmp_path, policy, count=3, min_in_sync=1)
        leader = epoch = 1
        replicas.lead(leader, epoch)
        committed = b""
        for step in range(120):
            dice = chance.random()
            if dice < 0.35:
                replicas.append_own(leader, b"%d" % step)
            elif dice < 0.8:
                await replicas.fetch(chance.choice([id for id in replicas.ids if id != leader]))
            elif dice < 0.9:
                await replicas.settled()
            else:
                leader, epoch = chance.choice(replicas.ids), epoch + 1
                replicas.lead(leader, epoch)
            known = replicas.content(leader, replicas.partitions[leader].high_watermark)
            assert known.startswith(committed) or committed.startswith(known)
            committed = max(committed, known, key=len)
            for id, partition in replicas.partitions.items():
                assert committed.startswith(replicas.content(id, partition.high_watermark))
        for _ in range(120):
            await replicas.settled()
            for follower in set(replicas.ids) - {leader}:
                await replicas.fetch(follower)
        assert len({replicas.content(id) for id in replicas.ids}) == 1
        assert {each.high_watermark for each in replicas.partitions.values()} == {replicas.end(leader)}

    asyncio.run(scenario())


class SlowWorkers(InlineWorkers):
    """Waits some iterations of the event loop before and after each function."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._turns()
        found = function(*args, **kwargs)
        await self._turns()
        return found

    async def _turns(self) -> None:
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(6))
def test_a_record_counts_when_it_is_durable_even_if_the_log_is_truncated_during_syncs(
    tmp_path: pathlib.Path, seed: int
) -> None:
    """While syncs are in progress, epochs change, and logs are truncated and grow again."""
    chance = random.Random(seed)

    async def scenario() -> None:
        replicas = Replicas(tmp_path, FSYNCED, count=3, min_in_sync=1, workers=SlowWorkers(chance))
        partitions = replicas.partitions.values()
        fetches: dict[int, asyncio.Task[ReadOutcome]] = {}
        leader = epoch = 1
        replicas.lead(leader, epoch)
        for step in range(600):
            dice, follower = chance.random(), chance.choice(replicas.ids)
            if dice >= 0.97:
                leader, epoch = chance.choice(replicas.ids), epoch + 1
                replicas.lead(leader, epoch)
            elif not replicas.partitions[leader].is_leader:
                pass  # the log of this replica is being truncated
            elif dice < 0.3:
                replicas.append_own(leader, b"%d" % step)
            elif follower != leader and (follower not in fetches or fetches[follower].done()):
                fetches[follower] = asyncio.ensure_future(replicas.fetch(follower))
            await asyncio.sleep(0)
            watermark = max(each.high_watermark for each in partitions)
            assert all(each.log.flushed_offset >= watermark for each in partitions)
        await asyncio.gather(*fetches.values())
        await replicas.settled()
        assert watermark > 20

    asyncio.run(scenario())


def test_a_record_after_a_truncation_is_synced(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        pair = Replicas(tmp_path, FSYNCED)
        pair.lead(1, 3)
        for value in (b"a", b"b", b"c"):
            pair.append_own(1, value)
        await pair.settled()
        pair.lead(2, 4)
        pair.append_own(2, b"d")
        assert (await pair.fetch(1)).diverging_epoch is not None
        await pair.fetch(1)
        await pair.settled()
        assert (pair.end(1), pair.partitions[1].following.acknowledged_offset()) == (1, 1)

    asyncio.run(scenario())


def test_a_follower_begins_with_the_batch_in_which_the_log_of_its_leader_begins(
    tmp_path: pathlib.Path,
) -> None:
    """DeleteRecords may move the start of a log into the middle of a batch. The leader then sends the whole
    batch."""

    async def scenario() -> None:
        pair = Replicas(tmp_path)
        pair.lead(1, 3)
        three = build_batch([Record(number, 1_700_000_000_000, b"k", b"v", ()) for number in range(3)])
        pair.partitions[1].append(memoryview(three), required_acks=1, timeout_ms=60_000)
        await pair.fetch(2)
        await pair.fetch(2)
        content = pair.content(1)
        pair.partitions[1].log.update_log_start_offset(2)
        following = pair.partitions[2].following
        assert not following.begins_inside(content)
        await following.start_over(3, 2)
        assert following.begins_inside(content)
        with pytest.raises(KafkaError):
            following.append(3, content, high_watermark=3, log_start_offset=2)
        await following.begin_with(3, content, high_watermark=3, log_start_offset=2)
        log = pair.partitions[2].log
        assert (log.log_start_offset, log.log_end_offset) == (2, 3)
        assert b"".join(log.read(2, 1 << 20).views) == content
        assert pair.partitions[2].high_watermark == 3

    asyncio.run(scenario())
