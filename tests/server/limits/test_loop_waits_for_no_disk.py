"""The event loop does not wait for a disk while partitions are created, written to for the first time, or
deleted, or while records are read that are only on the disk."""

import asyncio
import dataclasses
import random
import threading
from collections import Counter

from confluent_kafka import Consumer, TopicPartition
from wire_client import WireClient

from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode
from moldau.runtime.files.disk import File
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.machine import Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config

PARTITIONS = 200
FOLDER_SYNCS_MAX = 10


class WatchedDisk(LocalDisk):
    """Records the operations that wait for a device, if they run in the watched thread."""

    def __init__(self):
        super().__init__()
        self.watched_thread = None
        self.found = []
        self.folder_syncs = Counter()
        self.cold = set()
        self.loads = 0

    def note(self, operation, path):
        if threading.get_ident() == self.watched_thread:
            self.found.append((operation, path))

    def open(self, path, *, create=False, read_only=False):
        return WatchedFile(self, super().open(path, create=create, read_only=read_only))

    def write_all_atomically(self, contents):
        for path in contents:
            self.note("write atomically", path)
        super().write_all_atomically(contents)

    def rename(self, source, target):
        self.note("rename", source)
        super().rename(source, target)

    def remove_tree(self, path):
        self.note("remove", path)
        super().remove_tree(path)

    def sync_dir(self, path):
        self.note("sync folder", path)
        self.folder_syncs[path] += 1
        super().sync_dir(path)


class WatchedFile:
    def __init__(self, disk: WatchedDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync(self):
        self._disk.note("sync", self._file.path)
        self._file.sync()

    def is_cached(self, position, size):
        return self._file.path not in self._disk.cold

    def load(self, position, size):
        self._disk.note("load", self._file.path)
        self._disk.cold.discard(self._file.path)
        self._disk.loads += 1
        self._file.load(position, size)

    def view(self, position, size):
        if self._file.path in self._disk.cold:
            self._disk.note("view", self._file.path)
        return self._file.view(position, size)


def test_the_event_loop_waits_for_no_disk_while_partitions_come_and_go(tmp_path):
    async def scenario():
        disk = WatchedDisk()
        machine = dataclasses.replace(Machine.real(), disk=disk)
        node = ServerNode(development_config(str(tmp_path), 0, {}, diskless=False), machine, format_new=True)
        address = await node.start()
        try:
            disk.watched_thread = threading.get_ident()
            disk.folder_syncs.clear()
            await asyncio.to_thread(use_partitions, str(address))
            disk.watched_thread = None
            assert disk.found == []
            # Many partitions share one sync. In addition, each partition syncs its own folder.
            assert disk.folder_syncs[str(tmp_path)] <= FOLDER_SYNCS_MAX
        finally:
            await node.stop()

    asyncio.run(scenario())


def use_partitions(address):
    batch = build_batch([Record(0, 0, None, b"value", ())])
    with WireClient(address) as client:
        assert client.create_topic("wide", partitions=PARTITIONS).error_code is ErrorCode.none
        rows = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
        topics = [TopicProduceData(name="wide", partition_data=rows)]
        response = client.call((0, 9), ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics))
        assert {row.error_code for row in response.responses[0].partition_responses} == {ErrorCode.none}
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="wide")], timeout_ms=60_000)
        assert client.call((20, 6), request).responses[0].error_code is ErrorCode.none


def test_the_event_loop_waits_for_no_disk_while_a_consumer_reads_old_records(tmp_path):
    async def scenario():
        disk = WatchedDisk()
        machine = dataclasses.replace(Machine.real(), disk=disk)
        node = ServerNode(development_config(str(tmp_path), 0, {}, diskless=False), machine, format_new=True)
        address = await node.start()
        try:
            written = await asyncio.to_thread(write_old_records, str(address))
            await asyncio.to_thread(drop_from_memory, disk, tmp_path / "old-0")
            disk.watched_thread = threading.get_ident()
            assert await asyncio.to_thread(read_all, str(address)) == written
            disk.watched_thread = None
            assert disk.found == []
            assert disk.loads > 2, "the index and the records of more than one segment"
        finally:
            await node.stop()

    asyncio.run(scenario())


def write_old_records(address):
    """Write some segments to a topic. Returns the values of all records."""
    chance = random.Random(1)
    values = [chance.randbytes(10_000) for _ in range(1_000)]
    with WireClient(address) as client:
        client.create_topic("old", **{"segment.bytes": str(3 << 20)})
        for start in range(0, len(values), 50):
            records = [
                Record(number, 0, None, value, ()) for number, value in enumerate(values[start : start + 50])
            ]
            assert client.produce("old", build_batch(records)).error_code is ErrorCode.none
    return values


def drop_from_memory(disk, folder):
    for path in folder.iterdir():
        file = disk.open(str(path))
        file.sync()
        file.forget_pages()
        file.close()
    # Records at the end of the log were written a moment ago, so they are not checked.
    names = sorted(path.stem for path in folder.glob("*.log"))[:-1]
    disk.cold = {str(folder / (name + suffix)) for name in names for suffix in (".log", ".index")}


def read_all(address):
    settings = {"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("old", 0, 0)])
    try:
        return [message.value() for message in consumer.consume(1_000, timeout=60)]
    finally:
        consumer.close()
