"""The driver with a log in memory: one voter, three voters on a network in the process, snapshots, and
failures."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from memory_log import MemoryReplicatedLog
from voter_ids import voters_of

from moldau.protocol.messages.fetch import FetchRequest
from moldau.quorum.core.voters import ReplicaKey, VoterSet
from moldau.quorum.description import to_wire
from moldau.quorum.driver import DriverConfig, QuorumDriver, QuorumIdentity
from moldau.quorum.settings import RaftSettings
from moldau.quorum.snapshot_pruning import SnapshotRetention
from moldau.quorum.state_store import QuorumStateStore
from moldau.quorum.subscriptions import Committed
from moldau.quorum.wire.requests import WireRequest, WireResponse
from moldau.records.batch import parse_header
from moldau.records.record import iter_records
from moldau.runtime import (
    DiskError,
    ErrorCode,
    InlineWorkers,
    KafkaError,
    LocalDisk,
    Machine,
    SeededEntropy,
    SystemClock,
)
from moldau.simulation.world.loop import SimulatedLoop
from moldau.storage.snapshots.replicated_log import SnapshotReader

QUICK = RaftSettings(
    election_timeout_ms=60,
    fetch_timeout_ms=200,
    retry_backoff_ms=5,
    fetch_max_wait_ms=30,
    request_timeout_ms=200,
)


class Recorder:
    """A state machine that records its calls."""

    def __init__(self, news: asyncio.Event) -> None:
        self.news = news
        self.values: list[bytes] = []
        self.next_offset = 0
        self.leaders: list[tuple[int | None, int]] = []
        self.snapshots = 0

    def on_commit(self, committed: Committed) -> None:
        assert committed.base_offset == self.next_offset
        for batch in committed.batches:
            header = parse_header(batch)
            if not header.is_control:
                self.values += [record.value or b"" for record in iter_records(batch)]
        self.next_offset = committed.end_offset
        self.news.set()

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self.snapshots += 1
        self.values = bytes(reader.read(0, 1 << 20)).split(b",")
        self.next_offset = reader.snapshot_id.offset

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))
        self.news.set()


class Network:
    """Calls the handlers of the other drivers directly. Nodes can be disconnected."""

    def __init__(self) -> None:
        self.drivers: dict[int, QuorumDriver] = {}
        self.cut: set[int] = set()
        self.news = asyncio.Event()

    def sender(self, source: int) -> "Link":
        return Link(self, source)


class Link:
    def __init__(self, network: Network, source: int) -> None:
        self.network, self.source = network, source

    async def send(self, node_id: int, message: WireRequest) -> WireResponse:
        await asyncio.sleep(0)
        self._check(node_id)
        answer = await self.network.drivers[node_id].handle_rpc(message)
        self._check(node_id)
        return answer

    def _check(self, node_id: int) -> None:
        if {node_id, self.source} & self.network.cut or node_id not in self.network.drivers:
            raise KafkaError(ErrorCode.network_exception)


class Replica:
    def __init__(self, folder: str, node_id: int, voters: VoterSet, network: Network | None = None) -> None:
        self.log = MemoryReplicatedLog()
        self.machine = Machine(SystemClock(), SeededEntropy(node_id), LocalDisk(), InlineWorkers())
        self.machine.disk.make_dirs(f"{folder}/{node_id}")
        self.store = QuorumStateStore(self.machine.disk, f"{folder}/{node_id}", voters)
        self.node_id, self.voters, self.network = node_id, voters, network
        self.fatal: list[Exception] = []
        self.make()

    def make(self) -> None:
        self.recorder = Recorder(self.network.news if self.network else asyncio.Event())
        self.driver = QuorumDriver(
            self.machine,
            self.log,
            identity=QuorumIdentity(ReplicaKey(self.node_id), self.voters),
            state_store=self.store,
            sender=self.network.sender(self.node_id) if self.network else None,
            config=DriverConfig(raft=QUICK, retention=SnapshotRetention(max_bytes=0)),
            on_fatal=self.fatal.append,
        )
        self.driver.add_listener(self.recorder)
        if self.network:
            self.network.drivers[self.node_id] = self.driver

    async def snapshot(self) -> None:
        offset = self.recorder.next_offset
        writer = self.driver.create_snapshot(offset, self.driver.epoch, 0)
        assert writer is not None
        writer.append([b",".join(self.recorder.values)])
        await writer.freeze()
        await self.driver.snapshot_created()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time, so that a busy machine does not cause a change of leaders."""
    loop = SimulatedLoop(seed=1, time_limit_s=60)
    try:
        loop.run_until_complete(work)
    finally:
        loop.dispose()


async def news(replicas: list[Replica]) -> None:
    """Wait until any replica in the network receives a message."""
    network = replicas[0].network
    assert network is not None
    network.news.clear()
    await network.news.wait()


async def until_leader(replicas: list[Replica]) -> Replica:
    while True:
        for replica in replicas:
            if (
                replica.driver.is_leader
                and (replica.node_id, replica.driver.epoch) in replica.recorder.leaders
            ):
                return replica
        await news(replicas)


async def until_applied(replicas: list[Replica], values: list[bytes]) -> None:
    while any(replica.recorder.values != values for replica in replicas):
        await news(replicas)


def test_lone_voter_leads_at_once_and_commits(tmp_path: Any) -> None:
    async def work() -> None:
        replica = Replica(str(tmp_path), 1, voters_of(1))
        await replica.driver.start()
        assert replica.driver.is_leader
        offset = await replica.driver.append([b"a", b"b"])
        assert offset == 2
        assert replica.recorder.values == [b"a", b"b"]
        assert replica.recorder.leaders == [(1, 1)]
        await replica.driver.stop()
        replica.make()
        await replica.driver.start()
        await replica.driver.append([b"c"])
        assert replica.recorder.values == [b"a", b"b", b"c"]
        assert replica.driver.epoch == 2
        await replica.driver.stop()

    run(work())


def test_appends_during_a_flush_share_the_next_batch(tmp_path: Any) -> None:
    async def work() -> None:
        replica = Replica(str(tmp_path), 1, voters_of(1))
        await replica.driver.start()
        await replica.driver.append([b"first"])
        replica.log.disk_is_free.clear()
        slow = replica.driver.append([b"slow"])
        await asyncio.sleep(0.01)
        flushes = replica.log.flushes
        waiting = [replica.driver.append([b"%d" % number]) for number in range(100)]
        await asyncio.sleep(0.01)
        assert not slow.done()
        replica.log.disk_is_free.set()
        offsets = await asyncio.gather(slow, *waiting)
        assert offsets == list(range(2, 103))
        assert replica.log.flushes == flushes + 1
        assert len(replica.log.batches) == 4
        await replica.driver.stop()

    run(work())


def test_three_voters_replicate_and_survive_the_loss_of_the_leader(tmp_path: Any) -> None:
    async def work() -> None:
        network, voters = Network(), voters_of(1, 2, 3)
        replicas = [Replica(str(tmp_path), node_id, voters, network) for node_id in (1, 2, 3)]
        observer = Replica(str(tmp_path), 9, voters, network)
        for replica in [*replicas, observer]:
            await replica.driver.start()
        leader = await until_leader(replicas)
        await leader.driver.append([b"a"])
        await until_applied([*replicas, observer], [b"a"])
        follower = next(replica for replica in replicas if replica is not leader)
        with pytest.raises(KafkaError) as refused:
            await follower.driver.append([b"x"])
        assert refused.value.code is ErrorCode.not_controller
        partition = to_wire(leader.driver.describe()).topics[0].partitions[0]
        assert [state.replica_id for state in partition.current_voters] == [1, 2, 3]
        assert [state.replica_id for state in partition.observers] == [9]

        network.cut.add(leader.node_id)
        lost = leader.driver.append([b"lost"])
        others = [replica for replica in replicas if replica is not leader]
        second = await until_leader(others)
        await second.driver.append([b"b"])
        network.cut.clear()
        await until_applied([*replicas, observer], [b"a", b"b"])
        with pytest.raises(KafkaError):
            await lost
        await second.driver.stop()
        third = await until_leader([replica for replica in replicas if replica is not second])
        assert third.driver.epoch > second.driver.epoch
        for replica in [*replicas, observer]:
            await replica.driver.stop()

    run(work())


def test_late_replica_loads_the_snapshot_and_then_the_log(tmp_path: Any) -> None:
    async def work() -> None:
        network, voters = Network(), voters_of(1)
        leader = Replica(str(tmp_path), 1, voters, network)
        await leader.driver.start()
        for number in range(3):
            await leader.driver.append([b"v%d" % number])
        await leader.snapshot()
        await leader.driver.append([b"v3"])
        await leader.snapshot()
        assert leader.log.start_offset == 5
        await leader.driver.append([b"v4"])
        observer = Replica(str(tmp_path), 2, voters, network)
        await observer.driver.start()
        await until_applied([observer], [b"v0", b"v1", b"v2", b"v3", b"v4"])
        assert observer.recorder.snapshots == 1
        assert observer.recorder.leaders[-1] == (1, 1)
        await observer.driver.stop()
        await leader.driver.stop()

    run(work())


def test_disk_failure_answers_nothing_and_ends_the_replica(tmp_path: Any) -> None:
    async def work() -> None:
        replica = Replica(str(tmp_path), 1, voters_of(1))
        await replica.driver.start()
        await replica.driver.append([b"a"])
        replica.log.failure = DiskError(28, "No space left on device", "log")
        with pytest.raises(KafkaError) as failed:
            await replica.driver.append([b"b"])
        assert failed.value.code is ErrorCode.kafka_storage_error
        assert len(replica.fatal) == 1
        answer = await replica.driver.handle_rpc(FetchRequest())
        assert answer.error_code is ErrorCode.broker_not_available
        await replica.driver.stop()

    run(work())


def test_request_for_another_partition_is_refused(tmp_path: Any) -> None:
    async def work() -> None:
        replica = Replica(str(tmp_path), 1, voters_of(1))
        await replica.driver.start()
        answer = await replica.driver.handle_rpc(FetchRequest())
        assert answer.error_code is ErrorCode.unknown_topic_or_partition
        await replica.driver.stop()

    run(work())
