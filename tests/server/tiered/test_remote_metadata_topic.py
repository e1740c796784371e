"""``__remote_log_metadata`` with a partition on the real disk: events that were written, and events whose
outcome is unknown."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from bombs import large_record, tiny_records
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC, InternalTopic
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records import Compression, Record, build_batch
from moldau.records.batch import HEADER_SIZE_BYTES, parse_header, set_base_offset_and_epoch
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.policy import policy_of
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.machine import OPENING
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.subsystems.tiered.metadata_peers import MetadataPeers
from moldau.server.subsystems.tiered.metadata_topic import ClusterMetadataTopic, HostedMetadataTopic
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.calls import AppendEventCall, EventOffsetsCall
from moldau.tiered.metadata.lifecycle import RemotePartitionDeleteState
from moldau.tiered.metadata.manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.records import encode_event
from moldau.tiered.metadata.segments import RemotePartitionDeleteMetadata, TopicIdPartition
from moldau.tiered.metadata.topic import EventWriter
from moldau.tiered.storage.storage_manager import RemoteStorageError

NAME = REMOTE_LOG_METADATA_TOPIC
TOPIC_ID = UUID(int=9)
EVENT = encode_event(
    RemotePartitionDeleteMetadata(
        TopicIdPartition(UUID(int=7), "t", 0), RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 1, 1
    )
)


class House:
    """A broker with partition 0 of the topic, as leader or follower. Another broker has partition 1."""

    def __init__(self, folder: Path, partition_count: int = 2) -> None:
        self.machine = Machine.real()
        self.refusal: KafkaError | None = None
        partitions = tuple(
            PartitionRegistration(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
            for _ in range(2)
        )
        topics = TopicsImage().updated([Topic(NAME, TOPIC_ID, partitions)], [])
        self.log = PartitionLog.open(self.machine, str(folder / f"{NAME}-0"), TopicPartition(NAME, 0))
        self.partition = ClassicPartition(
            ReplicaContext(
                self.machine, 1, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
            ),
            PartitionKey(TOPIC_ID, 0),
            self.log,
            min_in_sync=1,
            high_watermark=0,
            policy=policy_of(NAME),
        )
        self.image = MetadataImage(topics=topics)
        view = ClusterView("cluster", 1, lambda: self.image)
        machine = self.machine
        self.topic = HostedMetadataTopic(machine, view)
        self.cluster = ClusterMetadataTopic(
            view,
            InternalTopic(NAME, partition_count, 1, ""),
            self._ensure,
            self.topic,
            MetadataPeers(view, "PLAINTEXT", machine.entropy, machine.unexpected),
            machine.opening,
        )
        self.changes: list[tuple[int, bool]] = []
        """Each change of leadership: the partition, and whether it is led now."""
        entry = CoordinatorEntry(
            topic=InternalTopic(NAME, partition_count, 1, ""),
            leaders=self.topic,
            on_change=lambda index: self.changes.append((index, self.topic.leads(index))),
        )
        self.coordinators = CoordinatorRegistry([entry])

    async def _ensure(self, topic: InternalTopic) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def flushed(self, offset: int) -> None:
        """Wait until the appended events are on the disk."""
        await asyncio.sleep(0)  # Let the pending append run before the sync.
        assert await self.log.flush() >= offset

    def lead(self, epoch: int = 4, *, replicas: tuple[int, ...] = (1,)) -> None:
        self.partition.become_leader(epoch, replicas, replicas)
        self.coordinators.leads(self.partition, epoch)

    def show_tiered(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """Apply metadata in which a tiered partition has this leader epoch."""
        known = PartitionRegistration(
            replicas=(1,), isr=(1,), leader=1, leader_epoch=leader_epoch, partition_epoch=leader_epoch
        )
        topic = Topic(partition.topic, partition.topic_id, (known,))
        self.image = MetadataImage(topics=self.image.topics.updated([topic], []))

    def resign(self, epoch: int) -> None:
        self.partition.resign(epoch)
        self.coordinators.no_longer_leads(NAME, TOPIC_ID, 0, epoch)


@contextlib.asynccontextmanager
async def housed(folder: Path, partition_count: int = 2) -> AsyncIterator[House]:
    house = House(folder, partition_count)
    try:
        yield house
    finally:
        house.log.close()
        house.machine.workers.close()


def test_written_events_are_durable_and_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead()
            topic = house.topic
            assert topic.leads(0)
            assert [await topic.append(0, b"event-%d" % number) for number in range(3)] == [0, 1, 2]
            assert house.log.flushed_offset == 3
            assert await topic.offsets(0, 4) == (0, 3, 3, 3)
            assert await topic.offsets(0, 5) == (0, 3, 3, -1)
            found = await topic.read(0, 1, 1 << 20)
            assert (list(found.records), found.next_offset) == ([(1, b"event-1"), (2, b"event-2")], 3)
            assert found.epoch == 4
            assert await topic.read(0, 3, 1 << 20) == ([], 3, -1, 0)
            waiting = asyncio.ensure_future(topic.wait_beyond(0, 3))
            await asyncio.sleep(0)
            assert not waiting.done()
            await topic.append(0, b"event-3")
            await waiting

    asyncio.run(main())


def test_only_committed_events_are_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead(replicas=(1, 2))
            appending = asyncio.ensure_future(house.topic.append(0, b"event"))
            await house.flushed(1)
            assert (await house.topic.offsets(0))[:3] == (0, 0, 1)
            assert await house.topic.read(0, 0, 1 << 20) == ([], 0, -1, 0)
            assert not appending.done()
            house.lead(replicas=(1,))  # the other replica left the in-sync set
            assert await appending == 0

    asyncio.run(main())


def test_a_leader_that_resigns_does_not_know_the_outcome_of_its_append(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead(replicas=(1, 2))
            appending = asyncio.ensure_future(house.topic.append(0, b"event"))
            await house.flushed(1)
            house.resign(5)
            with pytest.raises(RemoteMetadataUnknownOutcomeError, match="the event at 0 of"):
                await appending
            with pytest.raises(RemoteMetadataNotReadyError, match="not led by this broker"):
                await house.topic.append(0, b"event")
            assert not house.topic.leads(0)

    asyncio.run(main())


def test_late_changes_of_an_earlier_epoch_do_not_end_the_term(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead(epoch=4)
            house.coordinators.no_longer_leads(NAME, TOPIC_ID, 0, 3)
            house.coordinators.leads(house.partition, 3)
            assert house.changes == [(0, True)]
            assert await house.topic.append(0, b"event") == 0
            waiting = asyncio.ensure_future(house.topic.wait_beyond(0, 1))
            await asyncio.sleep(0)
            house.resign(5)
            await waiting
            house.lead(epoch=6)
            assert house.changes == [(0, True), (0, False), (0, True)]
            assert await house.topic.append(0, b"event") == 1

    asyncio.run(main())


def test_a_disk_that_fails_leaves_the_outcome_open_or_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead()
            await house.topic.append(0, b"event")
            with contextlib.suppress(KafkaError):
                house.log.fail("writing", OSError(5, "I/O error"))
            for call in (house.topic.append(0, b"event"), house.topic.read(0, 0, 1 << 20)):
                with pytest.raises(RemoteStorageError) as caught:
                    await call
                assert not isinstance(caught.value, RemoteMetadataUnknownOutcomeError)

    asyncio.run(main())


def test_calls_for_a_partition_of_another_leader_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead()
            for call in (
                house.topic.append(1, b"event"),
                house.topic.read(1, 0, 1),
                house.topic.wait_beyond(1, 0),
            ):
                with pytest.raises(RemoteMetadataNotReadyError, match=f"{NAME}-1 is not led by this broker"):
                    await call

    asyncio.run(main())


def test_events_of_a_leader_whose_epoch_has_passed_are_refused(tmp_path: Path) -> None:
    """The events are refused in two cases: this topic has an event of a newer leader, or the metadata contain
    a newer leader."""

    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead()
            topic = house.topic
            partition = TopicIdPartition(UUID(int=7), "tiered", 0)

            async def write(epoch: int) -> int:
                return await topic.append(0, b"event", EventWriter(partition, epoch))

            assert [await write(epoch) for epoch in (3, 3, 5)] == [0, 1, 2]
            with pytest.raises(RemoteStorageError, match="led in epoch 5: this is an event of epoch 4"):
                await write(4)
            other = EventWriter(TopicIdPartition(UUID(int=8), "other", 0), 0)
            assert await topic.append(0, b"event", other) == 3
            house.show_tiered(partition, leader_epoch=8)
            with pytest.raises(RemoteStorageError, match="led in epoch 8"):
                await write(7)
            assert await write(8) == 4

    asyncio.run(main())


def test_a_call_of_another_broker_is_served_only_in_its_leader_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            house.lead(epoch=4)
            topic = house.topic

            def call(metadata_epoch: int, epoch: int) -> AppendEventCall:
                return AppendEventCall(0, metadata_epoch, UUID(int=7), 0, epoch, EVENT)

            assert await topic.append_event(call(4, 6)) == 0
            assert await topic.event_offsets(EventOffsetsCall(0, 4, 4)) == (0, 1, 1, 1)
            for epoch, code in ((3, ErrorCode.fenced_leader_epoch), (5, ErrorCode.unknown_leader_epoch)):
                with pytest.raises(KafkaError) as caught:
                    await topic.append_event(call(epoch, 6))
                assert caught.value.code is code
            with pytest.raises(KafkaError) as caught:
                await topic.append_event(call(4, 5))
            assert caught.value.code is ErrorCode.fenced_leader_epoch
            for event, index in ((b"event", 0), (b"", 0), (EVENT[:-1], 0), (EVENT, 1)):
                with pytest.raises(KafkaError, match="The event") as caught:
                    await topic.append_event(AppendEventCall(0, 4, UUID(int=7), index, 6, event))
                assert caught.value.code is ErrorCode.invalid_request
            assert await topic.event_offsets(EventOffsetsCall(0, 4, 4)) == (0, 1, 1, 1)
            house.resign(5)
            with pytest.raises(KafkaError) as caught:
                await topic.event_offsets(EventOffsetsCall(0, 4, 4))
            assert caught.value.code is ErrorCode.not_leader_or_follower

    asyncio.run(main())


def test_the_topic_has_as_many_partitions_as_are_configured(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            assert await house.cluster.ensure() == (TOPIC_ID, 2)
            house.refusal = KafkaError(ErrorCode.coordinator_not_available, "no controller")
            with pytest.raises(RemoteStorageError, match="no controller") as caught:
                await house.cluster.ensure()
            assert caught.value.transient
        async with housed(tmp_path / "other", 50) as house:
            with pytest.raises(
                RemoteStorageError, match=r"2 partitions, but .*num\.partitions is 50"
            ) as caught:
                await house.cluster.ensure()
            assert not caught.value.transient

    asyncio.run(main())


def planted(*batches: bytes) -> bytes:
    """Adjacent batches, with offsets that a leader of epoch 3 assigned."""
    content, offset = bytearray(), 0
    for batch in batches:
        copy = bytearray(batch)
        set_base_offset_and_epoch(copy, 0, offset, 3)
        offset = parse_header(copy).last_offset + 1
        content += copy
    return bytes(content)


def event_batch(value: bytes) -> bytes:
    return build_batch([Record(0, 1, None, value)])


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_a_planted_batch_that_opens_to_millions_of_records_is_skipped(
    codec: Compression, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            bomb = tiny_records(codec, 300_000, 1)
            house.log.append_as_follower(planted(event_batch(b"before"), bomb, event_batch(b"after")))
            house.lead()
            assert await house.topic.append(0, b"newest") == 300_002
            found = await house.topic.read(0, 0, 1 << 20)
            assert found.records[:2] == [(0, b"before"), (300_001, b"after")]
            assert (found.next_offset >= 300_002, found.unreadable) == (True, 1)
            assert "the batch at offset 1 of __remote_log_metadata-0 is skipped" in caplog.text

    asyncio.run(main())


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, 5, 7])
def test_a_batch_whose_records_cannot_be_parsed_does_not_end_reading(codec: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            garbage = bytearray(event_batch(bytes(20)))
            garbage[HEADER_SIZE_BYTES:] = b"\xff" * (len(garbage) - HEADER_SIZE_BYTES)
            garbage[22] = codec
            garbage[17:21] = crc32c(bytes(garbage[21:])).to_bytes(4, "big")
            house.log.append_as_follower(planted(bytes(garbage), event_batch(b"after")))
            house.lead()
            assert await house.topic.append(0, b"newest") == 2
            found = await house.topic.read(0, 0, 1 << 20)
            assert (found.records[0], found.unreadable) == ((1, b"after"), 1)

    asyncio.run(main())


def test_a_read_of_many_batches_that_open_large_ends_early_and_continues(tmp_path: Path) -> None:
    async def main() -> None:
        async with housed(tmp_path) as house:
            large = large_record(Compression.ZSTD, 700_000, 1)
            house.log.append_as_follower(planted(*[large] * 6))
            house.lead()
            assert await house.topic.append(0, b"newest") == 6
            ends = [0]
            for _ in range(3):
                found = await house.topic.read(0, ends[-1], 1 << 20)
                ends.append(found.next_offset)
            assert ends == [0, 2, 4, 6]

    asyncio.run(main())


def test_only_small_plain_batches_are_read_on_the_loop(tmp_path: Path) -> None:
    def opening_threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith(OPENING)]

    async def main() -> None:
        async with housed(tmp_path) as house:
            small, compressed = event_batch(b"event"), tiny_records(Compression.ZSTD, 1000, 1)
            house.log.append_as_follower(planted(small, compressed))
            house.lead()
            assert await house.topic.append(0, b"newest") == 1001
            before = opening_threads()
            assert len((await house.topic.read(0, 0, 1)).records) == 1
            assert opening_threads() == before
            await house.topic.read(0, 1, 1 << 20)
            assert len(opening_threads()) == len(before) + 1

    asyncio.run(main())
