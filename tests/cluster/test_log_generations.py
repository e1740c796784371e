"""The generations of a log. They are the leader epochs of diskless records."""

import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.image.log_generations import LogGenerations
from moldau.protocol.records import metadata as r

STARTS = st.lists(st.integers(0, 40), max_size=5).map(lambda starts: LogGenerations(tuple(sorted(starts))))


@given(STARTS, st.integers(0, 50))
def test_an_offset_is_in_the_generation_that_has_begun_and_not_ended(
    generations: LogGenerations, offset: int
) -> None:
    epoch = generations.epoch_for_offset(offset)
    assert epoch == sum(start <= offset for start in generations.starts)
    end = generations.end_of_epoch(epoch)
    assert end is None or offset < end


@given(STARTS, st.integers(0, 50), st.integers(0, 30))
def test_the_generations_within_a_range_give_each_offset_its_epoch(
    generations: LogGenerations, base_offset: int, count: int
) -> None:
    within = generations.within(base_offset, base_offset + count)
    assert within[0][1] == base_offset
    for offset in range(base_offset, base_offset + count + 1):
        found = max(epoch for epoch, start in within if start <= offset)
        assert found == generations.epoch_for_offset(offset)
    assert [epoch for epoch, _ in within] == sorted({epoch for epoch, _ in within})


def test_generations_survive_a_snapshot_of_the_metadata() -> None:
    topic_id = uuid.UUID(int=5)
    partition = r.PartitionRecord(
        partition_id=0,
        topic_id=topic_id,
        replicas=[1],
        isr=[1],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        owner=0,
        generation_starts=[7, 12],
    )
    records = [r.TopicRecord(name="t", topic_id=topic_id), partition]
    image = MetadataDelta().replay_all(records).apply()
    again = [r.RECORDS.decode(encode_record(record, 30)) for record in to_records(image)]
    found = MetadataDelta().replay_all(again).apply().topics.partition(topic_id, 0)
    assert found is not None
    assert found.generations == LogGenerations((7, 12))
    changed = r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=-1)
    later = MetadataDelta(image).replay_all([changed]).apply().topics.partition(topic_id, 0)
    assert later is not None
    assert replace(later, leader=1).generations == found.generations
