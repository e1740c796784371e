"""Inactive chunks in the metadata image, and the fields of partitions with chunks."""

import uuid
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.image.delta import MetadataDelta, image_of
from moldau.cluster.image.directories import MIGRATING_DIRECTORY
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.records import metadata as r

TOPIC_ID = uuid.UUID(int=1000)
FOLDERS = [uuid.UUID(int=2001), uuid.UUID(int=2002)]
PARTITION = r.PartitionRecord(
    partition_id=0,
    topic_id=TOPIC_ID,
    replicas=[1, 2],
    isr=[1, 2],
    leader=1,
    leader_epoch=4,
    partition_epoch=9,
)


def _chunk(start: int, end: int) -> r.ChunkRecord:
    return r.ChunkRecord(
        partition_id=0,
        topic_id=TOPIC_ID,
        start_offset=start,
        start_timestamp=start * 100,
        stop_offset=end,
        end_offset=end,
        chunk_epoch=0,
        replicas=[1, 2],
        directories=FOLDERS,
        isr=[1, 2],
        max_timestamp=end * 100,
        size_bytes=77,
    )


def _image(*borders: int) -> MetadataImage:
    """A partition with an inactive chunk between each pair of adjacent borders. The active chunk begins at
    the last border."""
    chunks = [_chunk(start, end - 1) for start, end in pairwise(borders)]
    change = r.PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC_ID, leader=1, start_offset=borders[-1], start_timestamp=5
    )
    return image_of([r.TopicRecord(name="t", topic_id=TOPIC_ID), PARTITION, *chunks, change])


def _partition(image: MetadataImage) -> PartitionRegistration:
    partition = image.topics.partition(TOPIC_ID, 0)
    assert partition is not None
    return partition


def test_a_partition_without_chunks_has_none() -> None:
    partition = _partition(image_of([r.TopicRecord(name="t", topic_id=TOPIC_ID), PARTITION]))
    assert (partition.start_offset, partition.start_timestamp_ms, partition.chunks) == (-1, -1, ())
    assert partition.chunk_at(0) is None


def test_records_of_partitions_have_the_bytes_that_kafka_reads_in_version_2() -> None:
    """Records of partitions without chunks do not contain Moldau's own tags."""
    change = r.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=3)
    assert (
        encode_record(change, 29).hex()
        == "010502" + "00000001" + TOPIC_ID.hex + "01" + "01" + "04" + "00000003"
    )


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted), st.integers(-1, 70))
def test_an_offset_is_in_the_chunk_between_its_borders(borders: list[int], offset: int) -> None:
    partition = _partition(_image(*borders))
    found = partition.chunk_at(offset)
    if found is None:
        assert offset < borders[0] or offset >= borders[-1] == partition.start_offset
    else:
        assert found.start_offset <= offset <= found.end_offset == found.stop_offset


@given(st.permutations([0, 10, 20, 30]))
def test_chunks_are_ordered_by_their_offsets_with_any_order_of_records(starts: list[int]) -> None:
    records = [_chunk(start, start + 9) for start in starts]
    image = image_of(records, image_of([r.TopicRecord(name="t", topic_id=TOPIC_ID), PARTITION]))
    assert [chunk.start_offset for chunk in _partition(image).chunks] == [0, 10, 20, 30]


def test_a_snapshot_in_bytes_has_the_chunks_after_their_partition() -> None:
    image = _image(0, 10, 25, 40)
    records = list(to_records(image))
    assert [type(record).__name__ for record in records] == [
        "TopicRecord",
        "PartitionRecord",
        "ChunkRecord",
        "ChunkRecord",
        "ChunkRecord",
    ]
    again = image_of(r.RECORDS.decode(encode_record(record, 29)) for record in records)
    assert again == image
    chunk = _partition(again).chunks[1]
    assert (chunk.start_timestamp_ms, chunk.max_timestamp_ms, chunk.size_bytes) == (1000, 2400, 77)
    assert chunk.directory_of(2) == FOLDERS[1]
    assert chunk.directory_of(3) == MIGRATING_DIRECTORY
    assert (_partition(again).start_offset, _partition(again).start_timestamp_ms) == (40, 5)


def test_a_change_of_a_chunk_leaves_the_partition_and_the_other_chunks() -> None:
    image = _image(0, 10, 25)
    change = r.ChunkChangeRecord(
        partition_id=0,
        topic_id=TOPIC_ID,
        start_offset=10,
        chunk_epoch=1,
        replicas=[1, 2, 3],
        adding_replicas=[3],
    )
    delta = MetadataDelta(image).replay_all([change])
    assert list(delta.topics.changed) == [TOPIC_ID], "subscribers see the partition"
    before, after = _partition(image), _partition(delta.apply())
    assert (after.partition_epoch, after.leader_epoch) == (before.partition_epoch, before.leader_epoch)
    assert after.chunks[0] is before.chunks[0]
    moved = after.chunks[1]
    assert (moved.epoch, moved.replicas, moved.isr, moved.is_moving) == (1, (1, 2, 3), (1, 2), True)
    assert moved.directories == before.chunks[1].directories


def test_a_chunk_without_replicas_is_removed() -> None:
    gone = r.ChunkChangeRecord(partition_id=0, topic_id=TOPIC_ID, start_offset=0, chunk_epoch=1, replicas=[])
    after = _partition(image_of([gone], _image(0, 10, 25)))
    assert [chunk.start_offset for chunk in after.chunks] == [10]
    assert after.start_offset == 25


def test_a_change_without_a_start_keeps_it() -> None:
    change = r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1])
    after = _partition(image_of([change], _image(0, 10)))
    assert (after.start_offset, after.start_timestamp_ms, len(after.chunks)) == (10, 5, 1)


def test_level_0_of_the_feature_forgets_where_active_chunks_begin() -> None:
    """At level 0 it is possible that a controller of Kafka writes snapshots, and such snapshots do not
    contain the fields of chunks. All nodes must have the same image, so Moldau's nodes remove the fields,
    too."""
    gone = r.ChunkChangeRecord(partition_id=0, topic_id=TOPIC_ID, start_offset=0, chunk_epoch=1, replicas=[])
    level = r.FeatureLevelRecord(name="moldau.chunk.version", feature_level=1)
    image = image_of([level, gone], _image(0, 10))
    assert _partition(image).start_offset == 10
    off = image_of([r.FeatureLevelRecord(name="moldau.chunk.version", feature_level=0)], image)
    assert (_partition(off).start_offset, _partition(off).start_timestamp_ms) == (-1, -1)
    assert image_of(to_records(off)) == off
    assert image_of([r.RemoveTopicRecord(topic_id=TOPIC_ID)], image).topics == EMPTY_IMAGE.topics
