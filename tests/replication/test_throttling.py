"""The rate limit that throttled replicas share (KIP-73), and a leader's responses to followers that exceed
this rate."""

import pathlib
from collections.abc import Mapping
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
from moldau.replication.partition_interface import ReadOutcome, ReadRequest
from moldau.replication.throttling import UNLIMITED, ReplicationQuota
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import Machine
from moldau.storage.log.partition_log import PartitionLog

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 100, ())]))


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [((), []), (("*",), [0, 1, 2]), (("0:7", "1:8", "2:7"), [0, 2]), (("0:8",), [])],
)
def test_a_config_names_replicas_of_brokers(replicas: tuple[str, ...], throttled: list[int]) -> None:
    quota = ReplicationQuota(7)
    quota.throttle("t", ("*",))
    quota.throttle("t", replicas)
    assert [index for index in range(3) if quota.is_throttled("t", index)] == throttled
    assert not quota.is_throttled("other", 0)


def test_the_rate_is_an_average_over_windows_that_have_begun() -> None:
    quota = ReplicationQuota(7, window_count=11, window_s=1)
    assert quota.bytes_per_second == UNLIMITED
    quota.record(10_000, 100.0)
    assert not quota.is_exceeded(100.0)
    quota.bytes_per_second = 1_000
    assert quota.is_exceeded(100.0)
    assert quota.is_exceeded(109.0)
    assert not quota.is_exceeded(110.5)
    quota.record(1, 110.5)
    assert not quota.is_exceeded(111.0), "bytes of eleven seconds ago count no more"


class Throttled:
    """The listener of a replica. While the replica leads, the quota of the listener throttles the responses
    to its followers."""

    active_brokers: Mapping[int, int] = {1: 1, 2: 1, 3: 1}

    def __init__(self) -> None:
        self.leader_quota = ReplicationQuota(1)
        self.leader_quota.throttle("t", ("0:1",))

    def role_changed(self, partition: ClassicPartition) -> None: ...

    def outsider_fetched(self, partition: ClassicPartition) -> None: ...

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int]) -> int:
        return -1


def test_a_leader_sends_no_records_to_throttled_followers_out_of_sync(tmp_path: pathlib.Path) -> None:
    listener, machine = Throttled(), Machine.real()
    partition = ClassicPartition(
        ReplicaContext(
            machine,
            1,
            WaitingRoom(),
            BrokerTopicMeters(Meters("kafka.server", "KafkaServer")),
            listener=listener,
            monotonic_ms=lambda: 50_000,
        ),
        PartitionKey(UUID(int=1), 0),
        PartitionLog.open(machine, str(tmp_path / "t-0"), TopicPartition("t", 0)),
        min_in_sync=1,
        high_watermark=0,
    )
    partition.become_leader(3, (1, 2, 3), (1, 2))
    partition.append(BATCH, required_acks=1, timeout_ms=1000)

    def fetch(**more: Any) -> ReadOutcome:
        outcome = partition.read(ReadRequest(0, 1 << 20, **more))
        assert isinstance(outcome, ReadOutcome)
        return outcome

    given = fetch(replica_id=3)
    assert (given.size_bytes, given.is_throttled) == (len(BATCH), True)
    listener.leader_quota.bytes_per_second = 10
    listener.leader_quota.record(1_000, 50.0)
    withheld = fetch(replica_id=3)
    assert (withheld.size_bytes, withheld.is_cut) == (0, False)
    assert (withheld.high_watermark, withheld.log_start_offset) == (given.high_watermark, 0)
    assert fetch(replica_id=2).size_bytes == len(BATCH), "in sync: it is given all, and its bytes count"
    partition.become_leader(4, (1, 2, 3), (1,))
    assert fetch().size_bytes == len(BATCH), "consumers are not throttled"
    listener.leader_quota.throttle("t", ())
    assert fetch(replica_id=3)[1:3] == (given.views, given.size_bytes)
