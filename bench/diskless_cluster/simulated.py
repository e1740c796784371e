"""A large diskless partition that needs little disk space.

One object with batches is written. All further objects are hard links to its file, and each of them is
committed at the coordinator like an uploaded object. So the coordinator, the caches and readers see as many
objects, batches and bytes as in a real partition of this size, and all records can be read.
"""

import os
import time
import uuid
from typing import Final

from bench.cluster.nodes import wait_until
from bench.diskless_cluster.nodes import COORDINATORS_TOPIC, RackNodes
from bench.diskless_cluster.sizes import RECORD_SIZE
from bench.partitions import Connection
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.wal import footer_size_bytes, write_tail
from moldau.protocol.own.diskless.commit_file import DisklessCommitBatch, DisklessCommitFileRequest
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.errors import ErrorCode

COMMIT_FILE: Final = (11642, 0)
BATCHES: Final = 8
"""Batches of an object; each has 1,000 records of 1 KiB."""
BATCH_RECORDS: Final = 1_000
LOAD_TIMEOUT_S: Final = 30.0


class SimulatedObjects:
    """Objects with the same bytes, for partition 0 of a topic. Coordinator 0 has this partition."""

    def __init__(self, nodes: RackNodes, topic_id: uuid.UUID) -> None:
        self._nodes, self._topic_id = nodes, topic_id
        now_ms = time.time_ns() // 1_000_000
        value = bytes(RECORD_SIZE)
        batch = build_batch([Record(at, now_ms, None, value, ()) for at in range(BATCH_RECORDS)])
        self._batch_bytes, self._timestamp_ms = len(batch), now_ms
        self._content = self._built(bytes(batch), now_ms)
        self._first: str | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the batches of an object."""
        return BATCHES * self._batch_bytes

    def _built(self, batch: bytes, now_ms: int) -> bytes:
        data_bytes = BATCHES * len(batch)
        content = bytearray(batch * BATCHES + bytes(footer_size_bytes(1, BATCHES)))
        headers = [parse_header(batch)] * BATCHES
        runs = [(self._topic_id, 0, 0, headers)]
        size = write_tail(content, data_bytes, runs, created_ms=now_ms, broker_id=self._nodes.brokers[0])
        return bytes(content[:size])

    def commit(self, count: int) -> None:
        """Store and commit objects, one after the other."""
        leader = self._nodes.partitions_of(COORDINATORS_TOPIC)[0].leader_id
        connection = Connection(self._nodes.address(leader))
        for _ in range(count):
            self._commit_one(connection)
        connection.close()

    def _commit_one(self, connection: Connection) -> None:
        now_ms, writer = time.time_ns() // 1_000_000, self._nodes.brokers[0]
        key = new_object_key(now_ms, writer, SystemEntropy(), size_bytes=len(self._content))
        path = self._nodes.objects / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._first is None:
            path.write_bytes(self._content)
            self._first = str(path)
        else:
            os.link(self._first, path)
        request, deadline_s = self._request(key, now_ms), time.monotonic() + LOAD_TIMEOUT_S
        answer = connection.call(COMMIT_FILE, request)
        while answer.error_code is ErrorCode.coordinator_load_in_progress and time.monotonic() < deadline_s:
            time.sleep(0.05)
            answer = connection.call(COMMIT_FILE, request)
        codes = {answer.error_code, *(each.error_code for each in answer.batches)}
        if codes != {ErrorCode.none}:
            raise RuntimeError(f"{key} is not committed: {codes} {answer.error_message}")

    def _request(self, key: str, now_ms: int) -> DisklessCommitFileRequest:
        batches = [
            DisklessCommitBatch(
                topic_id=self._topic_id,
                partition_index=0,
                byte_offset=number * self._batch_bytes,
                size=self._batch_bytes,
                last_offset=BATCH_RECORDS - 1,
                batch_max_timestamp=self._timestamp_ms,
            )
            for number in range(BATCHES)
        ]
        return DisklessCommitFileRequest(
            object_key=key,
            file_size=len(self._content),
            created_ms=now_ms,
            uploader_broker_id=self._nodes.brokers[0],
            owner_ids=[0],
            batches=batches,
        )


def fill(nodes: RackNodes, topic_id: uuid.UUID, size_bytes: int) -> int:
    """Commit simulated objects of this total size to a partition. Returns the number of objects."""
    objects = SimulatedObjects(nodes, topic_id)
    count = size_bytes // objects.size_bytes
    objects.commit(count)
    wait_until(lambda: not nodes.lag())
    return count
