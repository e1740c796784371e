"""The image shows the border of a chunk. The tests check how a broker then handles the log of the
partition."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from created_logs import get_or_create
from moldau.chunks.calls import ChunkFileFetch, ChunkFilePiece, HandedOver
from moldau.chunks.hand_overs import STATES_MAX, HandOvers
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition_interface import StopReason
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.kind import ChunkedKind, ChunkLogs
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.folders.file_names import HAND_OVERS, LEADER_EPOCHS, is_deleted_folder, is_stray_folder
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.producers.producer_snapshot import encode_producer_snapshot
from moldau.storage.producers.producer_state import BatchMetadata, ProducerEntry

NAME, TOPIC_ID = TopicPartition("t", 0), uuid.UUID(int=9)

PARTITION = PartitionRegistration(
    replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, directories=(uuid.UUID(int=100),)
)


def topic(replica: int = 1, leader: int = 1) -> Topic:
    """A partition whose first chunk has the offsets 0 to 9. Brokers 1 and 2 have this chunk."""
    ended = ChunkRegistration(
        start_offset=0,
        stop_offset=9,
        end_offset=9,
        start_timestamp_ms=-1,
        max_timestamp_ms=-1,
        size_bytes=0,
        epoch=0,
        replicas=(1, 2),
        isr=(1, 2),
    )
    registration = PartitionRegistration(
        replicas=(replica, 3),
        isr=(replica,),
        leader=leader,
        leader_epoch=3,
        partition_epoch=5,
        directories=(uuid.UUID(int=100),) * 2,
        start_offset=10,
        chunks=(ended,),
    )
    return Topic("t", TOPIC_ID, (registration,))


class Broker:
    """Broker 1 with its logs and chunks. The kind of classic partitions is a fake."""

    def __init__(self, box: Any) -> None:
        self.disk = box.disk
        self.clock = box.clock
        self.logs = LogManager(box.machine, ["/data"])
        self.store = ChunkStore(box.machine, self.logs)
        self.hand_overs = HandOvers(box.machine, self.logs.directories[0])
        self.chunks = ChunkLogs(1, self.logs, self.store, self.hand_overs)
        self.topic = topic()
        self.tasks: list[Coroutine[Any, Any, None]] = []
        image = SimpleNamespace(topics=SimpleNamespace(get_by_id=lambda topic_id: self.topic))
        inner = SimpleNamespace(close=self._closed, log_config=lambda topic: None)
        self.kind = ChunkedKind(
            cast(Any, inner),
            self.chunks,
            cast(Any, self),
            cast(Any, None),
            lambda: cast(Any, image),
            self.tasks.append,
        )

        self.files: dict[str, bytes] = {}
        """The files of the chunk on other brokers. If there are no files, no broker with the chunk is
        alive."""

    async def handed_over(self, *wanted: Any) -> None: ...

    async def fetch_file(self, chunk: ChunkRegistration, wanted: ChunkFileFetch) -> ChunkFilePiece:
        if not self.files:
            raise KafkaError(ErrorCode.kafka_storage_error, "no broker with the chunk is alive")
        sizes = {name: len(content) for name, content in self.files.items()}
        return ChunkFilePiece(sizes, self.files.get(wanted.name, b"")[wanted.position :])

    def _closed(self, partition: Any, reason: StopReason) -> None:
        if reason.removes_replica:
            self.logs.delete(NAME)

    async def log(self, count: int) -> PartitionLog:
        """Create the log of the partition, with ``count`` records."""
        log = await get_or_create(self.logs, NAME, LogConfig(), TOPIC_ID)
        for number in range(count):
            batch = build_batch([Record(0, self.clock.time_ms + number, None, b"v", ())])
            log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
        return log

    def folders(self, is_of: Callable[[str], bool]) -> int:
        return sum(map(is_of, self.disk.list("/data")))


def on_broker(box: Any, story: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker = Broker(box)
        await broker.logs.start(lambda _: LogConfig())
        await story(broker)
        await broker.logs.stop()

    asyncio.run(run())


def test_an_exchanged_log_is_reported_because_its_chunk_may_be_removed_meanwhile(box: Any) -> None:
    async def story(broker: Broker) -> None:
        await broker.log(10)
        seen: list[tuple[Topic, int]] = []
        broker.kind.on_exchanged = lambda topic: seen.append((topic, len(list(broker.store))))
        await broker.kind.exchange(broker.topic, 0)
        assert seen == [(broker.topic, 1)]

    on_broker(box, story)


def test_the_incomplete_log_of_a_chunk_is_kept_as_a_stray_folder(box: Any) -> None:
    """The log is incomplete, but it must be kept. It is possible that all brokers of the chunk have lost its
    last records together. Then no broker has a complete log."""

    async def story(broker: Broker) -> None:
        await broker.log(9)
        await broker.kind.exchange(broker.topic, 0)
        await broker.logs.settled()
        assert broker.logs.get(NAME) is None
        assert broker.folders(is_stray_folder) == 1
        assert broker.folders(is_deleted_folder) == 0

    on_broker(box, story)


def test_the_incomplete_log_of_a_broker_that_leaves_is_kept_as_a_stray_folder(box: Any) -> None:
    async def story(broker: Broker) -> None:
        await broker.log(9)
        broker.topic = topic(replica=2, leader=2)
        partition = cast(Any, SimpleNamespace(key=SimpleNamespace(topic_id=TOPIC_ID, partition=0)))
        broker.kind.close(partition, StopReason.REPLICA_REMOVED)
        await broker.logs.settled()
        assert broker.logs.get(NAME) is None
        assert broker.folders(is_stray_folder) == 1
        assert broker.folders(is_deleted_folder) == 0

    on_broker(box, story)


@pytest.mark.parametrize("epochs", [b"", b"0\n1\n2 0\n"])
def test_a_leader_without_the_state_begins_at_the_border(box: Any, epochs: bytes) -> None:
    """The leader may lack the state at the border. This happens if it was not in sync when it was elected, or
    if it has lost its first log folder."""

    async def story(broker: Broker) -> None:
        log = await broker.log(0)
        broker.files = {LEADER_EPOCHS: epochs} if epochs else {}
        assert broker.kind.must_exchange(broker.topic, 0)
        await broker.kind.exchange(broker.topic, 0)
        assert not broker.kind.must_exchange(broker.topic, 0)
        assert (log.log_start_offset, log.log_end_offset) == (0, 10)
        assert [each.epoch for each in log.leader_epochs.entries] == ([2] if epochs else [])

    on_broker(box, story)


def state(leader_epoch: int, start_offset: int) -> HandedOver:
    snapshot = encode_producer_snapshot([])
    return HandedOver(TOPIC_ID, 0, 1, leader_epoch, start_offset, 0, snapshot, [])


def test_a_state_has_all_remembered_batches_of_a_producer(box: Any) -> None:
    """If the responses to the last batches of a producer were lost, the producer sends these batches again
    after the border."""

    async def story(broker: Broker) -> None:
        batches = [BatchMetadata(number, 100 + number, 0, 5 + number) for number in range(5)]
        entries = [ProducerEntry(7, 1, 2, 9, 103, batches), ProducerEntry(8, 0, 3, 11)]
        await broker.hand_overs.keep(
            state(1, 10)._replace(producer_snapshot=encode_producer_snapshot(entries))
        )
        found = broker.hand_overs.at(TOPIC_ID, 0, 10)
        assert found is not None
        assert list(found.producers) == entries
        assert list(found.producers[0].batches) == [*batches[:4], batches[4]._replace(timestamp=9)]
        log = await broker.log(0)
        await log.begin_behind_remote(found)
        kept = log.producers.state.entry(7)
        assert kept is not None
        assert [batch.last_sequence for batch in kept.batches] == [0, 1, 2, 3, 4]

    on_broker(box, story)


def test_a_creation_that_fails_does_not_replace_the_state_of_a_border(box: Any) -> None:
    async def story(broker: Broker) -> None:
        kept = broker.hand_overs
        for each in (state(1, 10), state(2, 15), state(2, 17)):
            await kept.keep(each)
        loaded = HandOvers(box.machine, broker.logs.directories[0])
        await loaded.load()
        for states in (kept, loaded):
            assert [states.at(TOPIC_ID, 0, each) is not None for each in (10, 15, 17)] == [True, False, True]
            assert list(states) == [(TOPIC_ID, 0)]
        with pytest.raises(KafkaError):
            await kept.keep(state(1, 19))
        for epoch in range(3, 20):
            await kept.keep(state(epoch, epoch + 20))
        assert len(broker.disk.list(f"/data/{HAND_OVERS}")) == STATES_MAX
        await kept.forget(TOPIC_ID, 0)
        assert broker.disk.list(f"/data/{HAND_OVERS}") == []

    on_broker(box, story)


class TurningWorkers:
    """Runs each function on the event loop, one turn later."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)


def test_a_new_log_waits_until_the_folder_of_the_old_one_has_another_name(box: Any) -> None:
    """While a log becomes a chunk, its partition returns to the broker, or a new topic gets the same name."""

    async def story(broker: Broker) -> None:
        await broker.log(10)
        object.__setattr__(box.machine, "workers", TurningWorkers())
        here, new = broker.topic, Topic("t", uuid.UUID(int=10), (PARTITION,))
        broker.topic = topic(replica=2, leader=2)
        partition = cast(Any, SimpleNamespace(key=SimpleNamespace(topic_id=TOPIC_ID, partition=0)))
        assert not broker.kind.must_exchange(new, 0)
        broker.kind.close(partition, StopReason.REPLICA_REMOVED)
        carving = asyncio.create_task(broker.tasks.pop())
        while broker.logs.get(NAME) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert "t-0" in broker.disk.list("/data")
        assert broker.kind.must_exchange(here, 0)
        assert broker.kind.must_exchange(new, 0)
        await broker.kind.exchange(new, 0)
        assert "t-0" not in broker.disk.list("/data")
        assert list(broker.store) == [ChunkId(TOPIC_ID, 0, 0)]
        await carving
        assert not broker.kind.must_exchange(here, 0)
        assert not broker.kind.must_exchange(new, 0)

    on_broker(box, story)
