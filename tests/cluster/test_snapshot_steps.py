"""A large snapshot of the metadata is loaded in steps, and the event loop runs between them."""

import asyncio
import uuid
from types import SimpleNamespace

from moldau.cluster.image.image import EMPTY_IMAGE
from moldau.cluster.publisher import RECORDS_A_STEP, MetadataPublisher
from moldau.cluster.quorum_log import QuorumMetadataLog
from moldau.protocol.records.metadata import RECORDS, PartitionRecord, TopicRecord
from moldau.quorum.subscriptions import Subscription, Subscriptions
from moldau.records import Record, build_batch
from moldau.storage.snapshots.replicated_log import LogPosition

PARTITIONS = 10_000


def snapshot_views():
    topic_id = uuid.UUID(int=100)
    values = [RECORDS.encode(TopicRecord(name="many", topic_id=topic_id))]
    values += [
        RECORDS.encode(PartitionRecord(topic_id=topic_id, partition_id=n, replicas=[1], isr=[1], leader=1))
        for n in range(PARTITIONS)
    ]
    for begin in range(0, len(values), 1000):
        rows = values[begin : begin + 1000]
        yield memoryview(build_batch([Record(n, 1, None, bytes(value)) for n, value in enumerate(rows)]))


class SnapshotOnly:
    """A replicated log that contains only a snapshot."""

    start_offset = end_offset = PARTITIONS

    def __init__(self):
        self.snapshot_id = LogPosition(PARTITIONS, 1)
        self.is_open = False

    def latest_snapshot_id(self):
        return self.snapshot_id

    def open_snapshot(self, snapshot_id):
        self.is_open = True
        return self

    def batches(self):
        return snapshot_views()

    def close(self):
        self.is_open = False


def test_a_node_with_very_old_metadata_loads_a_snapshot_in_many_turns():
    async def work():
        log = SnapshotOnly()
        subscriptions = Subscriptions(log, 1)
        metadata = QuorumMetadataLog(SimpleNamespace(add_listener=listeners.append), log, 1)
        publisher = MetadataPublisher(faults.append)
        metadata.add_listener(publisher)
        (listener,) = listeners
        subscriptions._subscriptions.append(Subscription(listener))
        loading = asyncio.create_task(subscriptions.committed(PARTITIONS))
        turns = 0
        while not loading.done():
            assert publisher.image is EMPTY_IMAGE or len(publisher.image.topics) == 1
            await asyncio.sleep(0)
            turns += 1
        await loading
        assert faults == []
        assert len(publisher.image.topics.get("many").partitions) == PARTITIONS
        assert turns > PARTITIONS / RECORDS_A_STEP
        assert not log.is_open

    listeners, faults = [], []
    asyncio.run(work())
