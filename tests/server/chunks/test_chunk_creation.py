"""The leader ends an active chunk. The controller's responses determine when appends continue."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.chunks.calls import HandedOver
from moldau.cluster.image.image import CHUNK_FEATURE, FeatureLevel, MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.own.chunks.create_chunks import CreateChunksResult, CreateChunksTopicPartition
from moldau.protocol.own.chunks.report_chunks import ReportChunksRequest
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import AppendOutcome
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError, LocalDisk, Machine
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SeededEntropy
from moldau.server.subsystems.chunks import creation
from moldau.server.subsystems.chunks.creation import ChunkCreation
from moldau.server.subsystems.chunks.kind import ChunkedKind
from moldau.storage.log.partition_log import PartitionLog

TOPIC_ID, EPOCH = UUID(int=1), 3
BATCH = build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())])


class Broker:
    """Broker 1, which leads a partition with one record. The test plays the controller and broker 2."""

    def __init__(self, folder: Path) -> None:
        machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())
        self.partition = ClassicPartition(
            ReplicaContext(machine, 1, WaitingRoom(), BrokerTopicMeters(Meters())),
            PartitionKey(TOPIC_ID, 0),
            PartitionLog.open(machine, str(folder / "t-0"), TopicPartition("t", 0)),
            min_in_sync=1,
            high_watermark=0,
        )
        self.answers: list[Callable[[], Any]] = []
        """The controller's actions, one for each request. An action returns a response or raises an
        exception."""
        self.is_controller_silent = False
        self.partition_epoch = 5
        self.image = self._image(-1)
        self.broker_epoch = 7
        self.requests: list[Any] = []
        self.handed_over: list[HandedOver] = []
        self.is_other_broker_silent = False
        registry = SimpleNamespace(get=lambda name, index: self.partition)
        self.creation = ChunkCreation(
            1, machine, cast(Any, registry), cast(Any, self), lambda: self.image, self, self.epoch
        )

    def epoch(self) -> int:
        return self.broker_epoch

    def _image(self, start_offset: int) -> MetadataImage:
        registration = PartitionRegistration(
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=EPOCH,
            partition_epoch=self.partition_epoch,
            directories=(UUID(int=100),),
            start_offset=start_offset,
        )
        brokers = {
            each: BrokerRegistration(
                broker_id=each, epoch=each, incarnation_id=UUID(int=each), endpoints=(), fenced=each == 3
            )
            for each in (1, 2, 3)
        }
        return MetadataImage(
            topics=TopicsImage().updated([Topic("t", TOPIC_ID, (registration,))], []),
            brokers=PersistentMap(brokers),
            features=PersistentMap({CHUNK_FEATURE: FeatureLevel(1)}),
        )

    async def send(self, request: Any, caller: Any = None, deadline: float | None = None) -> Any:
        if isinstance(request, ReportChunksRequest):
            return lost() if self.is_controller_silent else answer()
        self.requests.append(request)
        return self.answers.pop(0)()

    async def hand_over(self, broker_id: int, state: HandedOver) -> None:
        if self.is_other_broker_silent:
            raise KafkaError(ErrorCode.request_timed_out)
        self.handed_over.append(state)

    def show_change(self) -> None:
        """Show an image with another change of the partition, for example a change of the in-sync set."""
        self.partition_epoch += 1
        self.image = self._image(-1)

    def show_border(self) -> None:
        self.image = self._image(1)

    def append(self) -> Any:
        return self.partition.append(memoryview(BATCH), required_acks=1, timeout_ms=1_000)

    async def create(self, *brokers: int, topic: str = "t") -> CreateChunksResult:
        wanted = CreateChunksTopicPartition(topic_name=topic, partition_id=0, broker_ids=brokers or [2])
        return await self.creation.create(wanted)


def answer(code: ErrorCode = ErrorCode.none) -> Any:
    return SimpleNamespace(error_code=code, error_message=None, results=[])


def lost() -> Any:
    raise KafkaError(ErrorCode.not_controller, "the answer is lost")


def refused(code: ErrorCode) -> Callable[[], Any]:
    return lambda: answer(code)


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "RETRY_S", 0)
    monkeypatch.setattr(creation, "POLL_S", 0)


def on_broker(folder: Path, story: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker = Broker(folder)
        broker.partition.become_leader(EPOCH, (1,), (1,), 5)
        assert isinstance(broker.append(), AppendOutcome)
        await story(broker)

    asyncio.run(run())


@pytest.mark.parametrize("attempts", [[answer], [lost, answer], [lost]])
def test_appends_wait_until_the_leadership_is_over_although_the_image_has_the_border(
    tmp_path: Path, attempts: list[Callable[[], Any]]
) -> None:
    """A change of the image is applied to a few partitions at a time."""

    async def story(broker: Broker) -> None:
        *first, last = attempts
        broker.answers = [*first, lambda: (broker.show_border(), last())[1]]
        creating = asyncio.create_task(broker.create())
        await turns(1)
        held = broker.append()
        await turns()
        assert not held.done()
        assert not creating.done()
        broker.partition.end()
        assert (await creating).start_offset == 1
        assert (await held).error is ErrorCode.not_leader_or_follower
        assert broker.partition.log.log_end_offset == 1

    on_broker(tmp_path, story)


@pytest.mark.parametrize(
    "code", [ErrorCode.fenced_leader_epoch, ErrorCode.unknown_server_error, ErrorCode.stale_broker_epoch]
)
def test_appends_stay_stopped_after_a_refusal_if_an_earlier_outcome_is_unknown(
    tmp_path: Path, code: ErrorCode
) -> None:
    """The outcome of the first request is unknown. It is possible that the requested change was committed,
    and that another leader was elected afterwards."""

    async def story(broker: Broker) -> None:
        broker.answers = [lost, *[refused(code)] * 200]
        creating = asyncio.create_task(broker.create())
        await turns(1)
        held = broker.append()
        await turns()
        assert not held.done()
        broker.partition.end()
        assert (await creating).error_code is ErrorCode.not_leader_or_follower
        assert (await held).error is ErrorCode.not_leader_or_follower
        assert broker.partition.log.log_end_offset == 1

    on_broker(tmp_path, story)


@pytest.mark.parametrize("attempts", [[], [lost]])
def test_appends_continue_after_a_refusal_with_the_current_epochs(
    tmp_path: Path, attempts: list[Callable[[], Any]]
) -> None:
    async def story(broker: Broker) -> None:
        broker.answers = [*attempts, refused(ErrorCode.invalid_update_version)]
        creating = asyncio.create_task(broker.create())
        await turns(1)
        held = broker.append()
        assert (await creating).error_code is ErrorCode.invalid_update_version
        assert (await held).error is ErrorCode.none
        assert broker.partition.log.log_end_offset == 2

    on_broker(tmp_path, story)


def test_a_partition_whose_chunk_ends_does_not_move_between_log_folders(tmp_path: Path) -> None:
    """After a move to another folder, the partition would be opened again. The partition would then lead in
    the same epoch, but its appends would no longer be stopped."""

    async def story(broker: Broker) -> None:
        inner = cast(Any, SimpleNamespace(may_suspend=lambda partition: True))
        kind = ChunkedKind(inner, *cast(Any, (None, None, None, None, None)))
        broker.answers = [lost, refused(ErrorCode.invalid_update_version)]
        assert kind.may_suspend(broker.partition)
        creating = asyncio.create_task(broker.create())
        await turns(1)
        assert not kind.may_suspend(broker.partition)
        await creating
        assert kind.may_suspend(broker.partition)

    on_broker(tmp_path, story)


def test_the_ended_chunk_is_durable_before_its_border_is_handed_over(tmp_path: Path) -> None:
    """After the switch, only the replicas of the chunk have its last records. If these records were not
    durable, they could be lost in a crash."""

    async def story(broker: Broker) -> None:
        log = broker.partition.log
        assert log.flushed_offset == 0
        durable = []
        broker.answers = [lambda: (durable.append(log.flushed_offset), lost()), *[lost] * 50]
        creating = asyncio.create_task(broker.create())
        await turns(10)
        assert [each.start_offset for each in broker.handed_over] == [1]
        assert durable == [1]
        broker.partition.end()
        await creating

    on_broker(tmp_path, story)


def test_producers_are_refused_while_the_controller_does_not_answer_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader keeps only a limited number of batches while it waits for the controller. It refuses further
    batches, so their producers retry. No batch is appended during this time."""
    monkeypatch.setattr(creation, "DRAIN_TIMEOUT_S", 0)

    async def story(broker: Broker) -> None:
        broker.answers = [*[lost] * 40, refused(ErrorCode.invalid_update_version)]
        creating = asyncio.create_task(broker.create())
        await turns(1)
        held = broker.append()
        await turns(10)
        assert held.done()
        for refusal in (held, broker.append()):
            assert (await refusal).error is ErrorCode.not_leader_or_follower
        assert not creating.done()
        assert (await creating).error_code is ErrorCode.invalid_update_version
        assert broker.append().error is ErrorCode.none
        assert broker.partition.log.log_end_offset == 2

    on_broker(tmp_path, story)


def test_appends_continue_while_no_controller_responds(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.is_controller_silent = True
        assert (await broker.create()).error_code is ErrorCode.not_controller
        assert (broker.requests, broker.handed_over) == ([], [])
        assert broker.append().error is ErrorCode.none

    on_broker(tmp_path, story)


def test_appends_continue_when_the_image_shows_that_the_switch_can_never_succeed(tmp_path: Path) -> None:
    """The responses of the controller are lost again and again, but the records that it commits arrive in the
    broker's image."""

    async def story(broker: Broker) -> None:
        broker.answers = [lost, lost, lambda: (broker.show_change(), lost()), *[lost] * 200]
        assert (await broker.create()).error_code is ErrorCode.invalid_update_version
        assert len(broker.requests) == 3
        assert broker.append().error is ErrorCode.none
        assert broker.partition.log.log_end_offset == 2

    on_broker(tmp_path, story)


def test_each_attempt_has_the_present_broker_epoch(tmp_path: Path) -> None:
    """A broker that registers again gets another epoch. The old epoch would be refused in every attempt."""

    async def story(broker: Broker) -> None:
        broker.answers = [
            lambda: (setattr(broker, "broker_epoch", 9), lost()),
            refused(ErrorCode.stale_broker_epoch),
            refused(ErrorCode.invalid_update_version),
        ]
        assert (await broker.create()).error_code is ErrorCode.invalid_update_version
        assert [each.broker_epoch for each in broker.requests] == [7, 9, 9]

    on_broker(tmp_path, story)


@pytest.mark.parametrize(
    ("brokers", "topic", "code"),
    [
        ((1, 2), "t", ErrorCode.invalid_replication_factor),
        ((3,), "t", ErrorCode.invalid_replica_assignment),
        ((9,), "t", ErrorCode.invalid_replica_assignment),
        ((2,), "nothing", ErrorCode.unknown_topic_or_partition),
    ],
    ids=["a wrong number of brokers", "a fenced broker", "an unknown broker", "an unknown topic"],
)
def test_the_leader_refuses_a_wrong_request_before_any_producer_waits(
    tmp_path: Path, brokers: tuple[int, ...], topic: str, code: ErrorCode
) -> None:
    async def story(broker: Broker) -> None:
        assert (await broker.create(*brokers, topic=topic)).error_code is code
        assert (broker.requests, broker.handed_over) == ([], [])
        assert broker.append().error is ErrorCode.none

    on_broker(tmp_path, story)


@pytest.mark.parametrize("is_leader", [True, False])
def test_an_empty_chunk_and_a_chunk_of_another_leader_cannot_end(tmp_path: Path, is_leader: bool) -> None:
    async def story(broker: Broker) -> None:
        if is_leader:
            broker.show_border()
            assert (await broker.create()).error_code is ErrorCode.invalid_request
        else:
            broker.partition.end()
            assert (await broker.create()).error_code is ErrorCode.not_leader_or_follower
        assert (broker.requests, broker.handed_over) == ([], [])

    on_broker(tmp_path, story)


def test_of_two_creations_at_once_the_second_is_refused(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.answers = [lost, refused(ErrorCode.invalid_update_version)]
        creating = asyncio.create_task(broker.create())
        await turns(1)
        assert (await broker.create()).error_code is ErrorCode.reassignment_in_progress
        assert (await creating).error_code is ErrorCode.invalid_update_version
        assert [each.start_offset for each in broker.handed_over] == [1]
        broker.answers = [refused(ErrorCode.invalid_update_version)]
        assert (await broker.create()).error_code is ErrorCode.invalid_update_version

    on_broker(tmp_path, story)


def test_nothing_changes_if_too_few_brokers_store_the_state_at_the_border(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.is_other_broker_silent = True
        assert (await broker.create()).error_code is ErrorCode.not_enough_replicas
        assert broker.requests == []
        assert broker.append().error is ErrorCode.none
        assert broker.partition.log.log_end_offset == 2

    on_broker(tmp_path, story)


def test_producers_continue_if_the_followers_do_not_catch_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The border is the high watermark, and no record may be after it."""
    monkeypatch.setattr(creation, "DRAIN_TIMEOUT_S", 0.05)

    async def run() -> None:
        broker = Broker(tmp_path)
        broker.partition.become_leader(EPOCH, (1, 2), (1, 2), 5)
        broker.append()
        assert (broker.partition.high_watermark, broker.partition.log.log_end_offset) == (0, 1)
        creating = asyncio.create_task(broker.create())
        await turns(1)
        held = broker.append()
        await turns()
        assert not held.done()
        assert (await creating).error_code is ErrorCode.request_timed_out
        assert (broker.requests, broker.handed_over) == ([], [])
        assert (await held).error is ErrorCode.none
        assert broker.partition.log.log_end_offset == 2

    asyncio.run(run())
