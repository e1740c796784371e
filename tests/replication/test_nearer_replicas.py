"""Followers serve consumers (KIP-392), and DeleteRecords waits for them."""

import asyncio
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.leading import nearest_replica
from moldau.replication.partition_interface import ReadOutcome, ReadRequest
from moldau.replication.throttling import ReplicationQuota
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.partition_log import PartitionLog

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))


class Listener:
    """A metadata view with three active brokers. It sends the consumers of each rack to the replica whose id
    is the rack's number."""

    def __init__(self) -> None:
        self.active_brokers: Mapping[int, int] = {1: 10, 2: 20, 3: 30}
        self.asked: list[dict[int, int]] = []
        self.leader_quota = ReplicationQuota(1)

    def role_changed(self, partition: ClassicPartition) -> None: ...

    def outsider_fetched(self, partition: ClassicPartition) -> None: ...

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int]) -> int:
        self.asked.append(dict(end_offsets))
        return int(client_rack) if int(client_rack) in end_offsets else -1


def partition_at(folder: pathlib.Path, listener: Listener, local_id: int = 1) -> ClassicPartition:
    machine = Machine.real()
    return ClassicPartition(
        ReplicaContext(
            machine,
            local_id,
            WaitingRoom(),
            BrokerTopicMeters(Meters("kafka.server", "KafkaServer")),
            listener=listener,
        ),
        PartitionKey(UUID(int=1), 0),
        PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0)),
        min_in_sync=1,
        high_watermark=0,
    )


def led(folder: pathlib.Path, listener: Listener) -> ClassicPartition:
    """Ten records of leader 1. Follower 2 has all of them. Follower 3 has five of them, and is not in
    sync."""
    partition = partition_at(folder, listener)
    partition.become_leader(5, (1, 2, 3), (1, 2))
    for _ in range(10):
        partition.append(BATCH, required_acks=1, timeout_ms=1000)
    fetch(partition, 2, 10)
    fetch(partition, 3, 5)
    return partition


def fetch(partition: ClassicPartition, replica_id: int, offset: int, log_start_offset: int = 0) -> None:
    request = ReadRequest(
        offset,
        1 << 20,
        last_fetched_epoch=5,
        replica_id=replica_id,
        broker_epoch=replica_id * 10,
        log_start_offset=log_start_offset,
    )
    outcome = partition.read(request)
    assert isinstance(outcome, ReadOutcome)
    assert outcome.error is ErrorCode.none


def consume(partition: ClassicPartition, offset: int, rack: str | None, epoch: int = 5) -> ReadOutcome:
    request = ReadRequest(offset, 1 << 20, client_rack=rack, current_leader_epoch=epoch)
    outcome = partition.read(request)
    assert isinstance(outcome, ReadOutcome)
    return outcome


async def turns(partition: ClassicPartition) -> None:
    """Let tasks that wait for the disk continue."""
    await partition.log.persist_start()
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_leader_sends_consumers_to_in_sync_followers_that_have_the_offset(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        listener = Listener()
        partition = led(tmp_path, listener)
        sent = consume(partition, 3, "2")
        assert (sent.preferred_read_replica, sent.size_bytes, sent.high_watermark) == (2, 0, 10)
        assert consume(partition, 3, "3").size_bytes > 0  # replica 3 is not in sync
        assert listener.asked == [{2: 10}, {2: 10}]
        for rack in ("", None):
            served = consume(partition, 3, rack)
            assert (served.preferred_read_replica, served.size_bytes > 0) == (-1, True)
        fetch(partition, 2, 10, log_start_offset=4)
        assert consume(partition, 3, "2").size_bytes > 0  # this offset is no longer in the log of the replica

    run(test)


def test_a_follower_serves_consumers_up_to_the_watermark_of_its_leader(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        leader = led(tmp_path / "leader", Listener())
        views = leader.log.read(0, 1 << 20, upper_bound_offset=10).views
        follower = partition_at(tmp_path / "follower", Listener(), local_id=2)
        follower.follow(5, 1)
        copied = b"".join(bytes(view) for view in views)
        follower.following.append(5, copied, high_watermark=7, log_start_offset=0)
        served = consume(follower, 0, "2")
        assert (served.error, served.high_watermark) == (ErrorCode.none, 7)
        assert served.size_bytes == sum(map(len, views)) * 7 // 10
        assert consume(follower, 7, "").size_bytes == 0
        assert consume(follower, 11, "").error is ErrorCode.offset_out_of_range
        assert consume(follower, 0, "", epoch=4).error is ErrorCode.fenced_leader_epoch
        assert consume(follower, 0, "", epoch=6).error is ErrorCode.unknown_leader_epoch
        assert consume(follower, 0, None).error is ErrorCode.not_leader_or_follower
        follower.resign(6)
        assert consume(follower, 0, "", epoch=-1).error is ErrorCode.not_leader_or_follower

    run(test)


def test_a_follower_does_not_say_that_an_offset_after_its_log_is_out_of_range(tmp_path: pathlib.Path) -> None:
    """A consumer that sends no epoch may believe that this broker still leads. It has perhaps read records
    that this follower does not have yet."""

    async def test() -> None:
        follower = partition_at(tmp_path, Listener(), local_id=2)
        follower.follow(5, 1)
        assert consume(follower, 3, "", epoch=-1).error is ErrorCode.not_leader_or_follower
        assert consume(follower, 0, "", epoch=-1).error is ErrorCode.none

    run(test)


def test_records_are_deleted_once_all_active_followers_have_deleted_them(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        listener = Listener()
        partition = led(tmp_path, listener)
        deleted = asyncio.ensure_future(partition.delete_records(4))
        await turns(partition)
        assert not deleted.done()
        fetch(partition, 2, 10, log_start_offset=4)
        await turns(partition)
        assert not deleted.done()
        fetch(partition, 3, 5, log_start_offset=5)
        assert await deleted == 4

        again = asyncio.ensure_future(partition.delete_records(-1))
        await turns(partition)
        assert not again.done()
        fetch(partition, 2, 10, log_start_offset=10)
        listener.active_brokers = {1: 10, 2: 20}  # broker 3 is fenced
        partition.leading.brokers_changed()
        assert await again == 10

    run(test)


def test_a_follower_that_has_not_fetched_since_a_deletion_does_not_join(tmp_path: pathlib.Path) -> None:
    """The follower would join with the old start of its log. As the next leader it would return the deleted
    records."""

    async def test() -> None:
        listener = Listener()
        partition = led(tmp_path, listener)
        fetch(partition, 3, 10)
        listener.active_brokers = {1: 10}
        partition.leading.committed(5, (1,), 1)
        partition.leading.brokers_changed()
        assert await partition.delete_records(4) == 4

        listener.active_brokers = {1: 10, 2: 20, 3: 30}
        partition.leading.brokers_changed()
        assert partition.leading.propose(30_000, 10) is None
        fetch(partition, 2, 10, log_start_offset=4)
        joining = partition.leading.propose(30_000, 10)
        assert joining is not None
        assert joining.in_sync == {1, 2}

    run(test)


def test_a_deletion_ends_with_the_leadership(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        partition = led(tmp_path, Listener())
        deleted = asyncio.ensure_future(partition.delete_records(4))
        await turns(partition)
        partition.follow(6, 2)
        with pytest.raises(KafkaError) as failed:
            await deleted
        assert failed.value.code is ErrorCode.not_leader_or_follower

    run(test)


def test_of_the_followers_in_a_rack_the_one_with_most_records_serves() -> None:
    racks = {2: "a", 3: "a", 4: "b", 5: None}
    assert nearest_replica("a", {2: 10, 3: 12, 4: 20, 5: 20}, racks) == 3
    assert nearest_replica("a", {2: 10, 3: 10}, racks) == 2
    assert nearest_replica("c", {2: 10, 3: 10}, racks) == -1
    assert nearest_replica("a", {6: 10}, racks) == -1
