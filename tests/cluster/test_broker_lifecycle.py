"""A controller and a broker, from their start to the controlled shutdown. They use a formatted folder and a
real quorum log."""

import asyncio
import pathlib
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import pytest
from cluster_fakes import SmallConfigPolicy

from moldau.cluster.broker_lifecycle import BrokerIdentity, BrokerLifecycle, LifecycleState, LifecycleTimes
from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.service import ControllerService, LocalControllerChannel
from moldau.cluster.decisions.features import SUPPORTED_FEATURES
from moldau.cluster.decisions.view import ControllerSettings
from moldau.cluster.errors import MetadataError
from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id
from moldau.cluster.image.registrations import Endpoint
from moldau.cluster.metadata_log import MetadataBatch, Value
from moldau.cluster.publisher import MetadataPublisher
from moldau.cluster.quorum_log import QuorumMetadataLog
from moldau.cluster.snapshot_schedule import SnapshotGenerator
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.records.metadata import RECORDS, RegisterBrokerRecord
from moldau.protocol.schema import Message
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.quorum.driver import QuorumDriver, QuorumIdentity
from moldau.quorum.state_store import QuorumStateStore
from moldau.runtime import (
    ErrorCode,
    InlineWorkers,
    KafkaError,
    LocalDisk,
    Machine,
    SeededEntropy,
    SystemClock,
)
from moldau.simulation.world.world import World
from moldau.storage.snapshots.snapshot_log import SnapshotLog

ENTROPY = SeededEntropy(5)
CLUSTER_ID = new_cluster_id(ENTROPY)


class Node:
    """Controller and broker 1 on one folder."""

    def __init__(self, folder: pathlib.Path, incarnation: int) -> None:
        machine = Machine(SystemClock(), SeededEntropy(incarnation), LocalDisk(), InlineWorkers())
        voters = VoterSet([Voter(ReplicaKey(1))])
        path = f"{folder}/{CLUSTER_METADATA_FOLDER}"
        self.log = SnapshotLog.open(machine, path, TopicPartition(CLUSTER_METADATA_TOPIC, 0))
        self.faults: list[MetadataError] = []
        self.publisher = MetadataPublisher(self.faults.append)
        self.driver = QuorumDriver(
            machine,
            self.log,
            identity=QuorumIdentity(ReplicaKey(1), voters),
            state_store=QuorumStateStore(machine.disk, path, voters),
        )
        metadata_log = self.metadata_log = QuorumMetadataLog(self.driver, self.log, 1)
        settings = ControllerSettings(cluster_id=CLUSTER_ID, supported_features=SUPPORTED_FEATURES)
        self.service = ControllerService(
            1,
            Controller(settings, SmallConfigPolicy(), machine.entropy),
            metadata_log,
            self.publisher,
            machine.workers,
        )
        self.snapshots = SnapshotGenerator(metadata_log, self.publisher, bytes_between=10**9, interval_ms=0)
        for listener in (self.publisher, self.service, self.snapshots):
            metadata_log.add_listener(listener)
        self.channel = LocalControllerChannel(self.service)
        self.identity = BrokerIdentity(
            broker_id=1,
            cluster_id=CLUSTER_ID,
            incarnation_id=uuid.UUID(int=1_000_000 + incarnation),
            endpoints=[Endpoint("PLAINTEXT", "localhost", 9092, 0)],
            features=SUPPORTED_FEATURES,
            log_dirs=[uuid.UUID(int=1000)],
        )
        self.lifecycle = self.broker()

    def broker(self, identity: BrokerIdentity | None = None, timeout_ms: int = 5_000) -> BrokerLifecycle:
        return BrokerLifecycle(
            identity or self.identity,
            self.channel,
            SeededEntropy(9),
            lambda: self.publisher.image.provenance.offset,
            times=LifecycleTimes(heartbeat_interval_ms=20, registration_timeout_ms=timeout_ms, retry_ms=2),
        )

    async def start(self) -> None:
        await self.driver.start()
        self.lifecycle.start()
        self.lifecycle.ready()
        await asyncio.wait_for(self.lifecycle.unfenced.wait(), 5)

    async def create(self, name: str) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        response = await self.channel.send(CreateTopicsRequest(topics=[topic]))
        code: ErrorCode = response.topics[0].error_code
        return code

    async def kill(self) -> None:
        await self.lifecycle.stop()
        await self.snapshots.close()
        self.service.close()
        await self.driver.stop()
        self.log.close()


class Records:
    """All records of the log by their offsets."""

    def __init__(self) -> None:
        self.by_offset: dict[int, Message] = {}

    def on_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]) -> None:
        assert end_offset == 0

    def on_commit(self, batches: Sequence[MetadataBatch]) -> None:
        for batch in batches:
            self.by_offset.update(enumerate(map(RECORDS.decode, batch.values), batch.base_offset))

    def on_leader(self, leader_id: int, epoch: int) -> None:
        pass


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, so that a busy machine does not shorten any time limit."""
    with World(1) as world:
        world.run(test)


def _format(folder: pathlib.Path) -> None:
    request = FormatRequest(
        cluster_id=CLUSTER_ID, node_id=1, log_dirs=[str(folder)], metadata_dir=str(folder)
    )
    format_storage(LocalDisk(), ENTROPY, request, 1)


def test_a_node_starts_stops_and_comes_back(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        _format(tmp_path)
        first = Node(tmp_path, 1)
        await first.start()
        assert await first.create("orders") is ErrorCode.none
        assert first.publisher.image.metadata_version == 29
        assert await first.lifecycle.controlled_shutdown(5_000)
        assert first.lifecycle.state is LifecycleState.NOT_RUNNING
        first.snapshots.generate()
        await asyncio.sleep(0)
        before = first.publisher.image
        await first.kill()

        second = Node(tmp_path, 2)
        await second.start()
        topic = second.publisher.image.topics.get("orders")
        old = before.topics.get("orders")
        assert topic is not None
        assert old is not None
        assert topic.topic_id == old.topic_id
        assert topic.partitions[0].leader == 1
        assert topic.partitions[0].leader_epoch > old.partitions[0].leader_epoch
        assert await second.create("orders") is ErrorCode.topic_already_exists
        assert second.faults == []
        await second.kill()

    run(test())


class PatientChannel:
    """A controller that unfences a broker. When the broker first requests a shutdown, every request fails for
    ``away_s`` seconds. After that, the controller agrees to the shutdown."""

    def __init__(self, away_s: float) -> None:
        self._away_s = away_s
        self._back_s: float | None = None

    async def send(self, request: Message) -> Any:
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(broker_epoch=5)
        assert isinstance(request, BrokerHeartbeatRequest)
        now_s = asyncio.get_running_loop().time()
        if request.want_shut_down:
            self._back_s = self._back_s or now_s + self._away_s
            if now_s < self._back_s:
                raise KafkaError(ErrorCode.not_controller)
        return BrokerHeartbeatResponse(is_fenced=False, should_shut_down=request.want_shut_down)


@pytest.mark.parametrize(("away_s", "agrees"), [(0.0, True), (4.0, True), (5.0, False), (400.0, False)])
def test_a_broker_that_stops_repeats_its_request_while_a_controller_may_respond(
    away_s: float, agrees: bool
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        identity = BrokerIdentity(
            broker_id=1,
            cluster_id=CLUSTER_ID,
            incarnation_id=ENTROPY.uuid4(),
            endpoints=(),
            features=(),
            log_dirs=(),
        )
        lifecycle = BrokerLifecycle(identity, PatientChannel(away_s), ENTROPY, lambda: 9)
        lifecycle.start()
        lifecycle.ready()
        await lifecycle.unfenced.wait()
        began_s = loop.time()
        assert await lifecycle.controlled_shutdown(300_000, 4_500) is agrees
        assert loop.time() - began_s == pytest.approx(min(away_s, 4.5), abs=0.1)

    run(test())


def test_a_killed_node_comes_back_immediately(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        _format(tmp_path)
        first = Node(tmp_path, 1)
        await first.start()
        assert await first.create("orders") is ErrorCode.none
        await first.kill()
        second = Node(tmp_path, 2)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await second.start()
        assert loop.time() - started < 4
        topic = second.publisher.image.topics.get("orders")
        assert topic is not None
        assert topic.partitions[0].leader == 1
        await second.kill()

    run(test())


def test_broker_epochs_are_offsets_of_the_real_log(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        _format(tmp_path)
        node = Node(tmp_path, 1)
        await node.start()
        records = Records()
        node.metadata_log.add_listener(records)
        registration = records.by_offset[node.lifecycle.broker_epoch]
        assert isinstance(registration, RegisterBrokerRecord)
        assert registration.broker_epoch == node.lifecycle.broker_epoch
        assert node.publisher.image.brokers[1].epoch == node.lifecycle.broker_epoch
        await node.kill()

    run(test())


def test_a_forgotten_broker_registers_again(tmp_path: pathlib.Path) -> None:
    async def test() -> None:
        _format(tmp_path)
        node = Node(tmp_path, 1)
        await node.start()
        epoch = node.lifecycle.broker_epoch
        await node.channel.send(UnregisterBrokerRequest(broker_id=1))
        image = node.publisher
        await asyncio.wait_for(
            image.until(lambda: 1 in image.image.brokers and not image.image.brokers[1].fenced), 5
        )
        assert node.lifecycle.broker_epoch > epoch
        await node.kill()

    run(test())


def test_a_stop_that_others_have_announced_does_not_end_a_broker(tmp_path: pathlib.Path) -> None:
    """Another program can send a request for a controlled shutdown with the broker's id. In an earlier
    version, the broker then sent no more heartbeats, and its partitions had no leader until a restart."""

    async def test() -> None:
        _format(tmp_path)
        node = Node(tmp_path, 1)
        await node.start()
        assert await node.create("orders") is ErrorCode.none
        forged = BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=node.lifecycle.broker_epoch, want_shut_down=True
        )
        await node.channel.send(forged)
        await asyncio.sleep(1)
        broker = node.publisher.image.brokers.get(1)
        assert broker is not None
        assert broker.is_active
        topic = node.publisher.image.topics.get("orders")
        assert topic is not None
        assert topic.partitions[0].leader == 1
        assert await node.lifecycle.controlled_shutdown(5_000)
        await node.kill()

    run(test())


def test_a_second_broker_with_the_same_id_reports_this_and_stops(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")

    async def test() -> None:
        _format(tmp_path)
        node = Node(tmp_path, 1)
        await node.start()
        identity = BrokerIdentity(
            broker_id=1,
            cluster_id=CLUSTER_ID,
            incarnation_id=uuid.UUID(int=77),
            endpoints=(),
            features=SUPPORTED_FEATURES,
            log_dirs=[uuid.UUID(int=2000)],
        )
        impostor = node.broker(identity, timeout_ms=300)
        ended = impostor.start()
        await asyncio.sleep(0.2)
        said = "Broker 1 is not registered: duplicate broker registration. Another broker with this id"
        assert said in str(impostor.problem())
        assert len([line for line in caplog.messages if line.startswith(said)]) == 1
        with pytest.raises(KafkaError, match=r"duplicate broker registration.*node.id is used by two nodes"):
            await ended
        assert not node.publisher.image.brokers[1].fenced
        await impostor.stop()
        await node.kill()

    run(test())


class ScriptedController:
    """A controller that accepts every registration, and fences the broker when the test requests this."""

    def __init__(self) -> None:
        self.fences = False

    async def send(self, request: Message, caller: Any = None, deadline: float | None = None) -> Any:
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(broker_epoch=5)
        return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=self.fences)


def test_a_fenced_broker_reports_that_it_is_fenced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    controller = ScriptedController()

    async def test() -> None:
        broker = BrokerLifecycle(
            BrokerIdentity(
                broker_id=1,
                cluster_id=CLUSTER_ID,
                incarnation_id=uuid.UUID(int=1),
                endpoints=[],
                features=[],
                log_dirs=[],
            ),
            controller,
            SeededEntropy(1),
            lambda: 10,
        )
        broker.start()
        broker.ready()
        await broker.unfenced.wait()
        assert broker.problem() is None
        controller.fences = True
        await asyncio.sleep(10)
        assert broker.problem() == "the controller has fenced this broker"
        controller.fences = False
        await asyncio.sleep(10)
        assert broker.problem() is None
        await broker.stop()

    with World(1) as world:
        world.run(test())
    assert caplog.messages[-2:] == ["broker 1 is fenced by the controller", "broker 1 is unfenced"]
