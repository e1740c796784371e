"""A log that has to sync only one log file needs no worker thread. In all other cases, a worker syncs all
files."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import DiskError, ErrorCode, InlineWorkers, KafkaError, Machine, SeededEntropy
from moldau.runtime.files.disk import File
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

P = ParamSpec("P")
T = TypeVar("T")


class Routes(InlineWorkers):
    """Workers, and syncs without workers. Notes which of the two a log uses."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.failure: BaseException | None = None
        """Raised instead of the next work."""

    def _meet(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.used.append("worker")
        self._meet()
        return await super().run(function, *args, **kwargs)

    async def sync(self, file: File, then: Callable[[], None]) -> None:
        self.used.append("file")
        self._meet()
        file.sync()
        then()


class House:
    """A log with an index entry for every 1,000 bytes. It has one record, and was never flushed."""

    def __init__(self, box: Any) -> None:
        self.routes = Routes()
        machine = Machine(
            box.clock, SeededEntropy(1), box.disk, self.routes, syncs_with=lambda _: self.routes
        )
        config = LogConfig(index_interval_bytes=1_000, segment_bytes=10_000)
        self.log = PartitionLog.open(machine, "/data/t-0", TopicPartition("t", 0), config)
        self._time_ms = box.clock.time_ms
        self.append(1)

    def append(self, size: int, epoch: int = 0) -> None:
        batch = build_batch([Record(0, self._time_ms, None, bytes(size), ())])
        self.log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**7), epoch)

    def route(self) -> list[str]:
        """Flush the log. Returns what the log used for this."""
        self.routes.used.clear()
        assert asyncio.run(self.log.flush()) == self.log.log_end_offset
        return self.routes.used


@pytest.fixture
def house(box: Any) -> House:
    """Nothing of its log is unsynced."""
    made = House(box)
    assert made.route() == ["worker"], "the names of the files were not durable"
    return made


def test_an_append_to_the_active_segment_needs_no_worker(house: House) -> None:
    house.append(1)
    assert house.route() == ["file"]


def test_a_worker_syncs_new_entries_of_an_index(house: House) -> None:
    house.append(1_100)
    house.append(1)
    assert house.route() == ["worker"]
    house.append(1)
    assert house.route() == ["file"]


def test_a_worker_saves_a_new_epoch(house: House) -> None:
    house.append(1, epoch=3)
    assert house.route() == ["worker"]
    house.append(1, epoch=3)
    assert house.route() == ["file"]


def test_a_worker_syncs_several_segments(house: House) -> None:
    house.append(9_000)
    house.append(9_000)
    house.append(1_100)
    house.append(1)
    assert house.route() == ["worker"]
    house.append(1)
    assert house.route() == ["file"]


def test_file_names_are_still_not_durable_after_a_cancelled_flush(house: House) -> None:
    house.log.segments.folder_changed = True  # as after the removal of a segment
    house.append(1)
    house.routes.failure = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        house.route()
    assert house.route() == ["worker"]
    house.append(1)
    assert house.route() == ["file"]


def test_a_log_goes_offline_if_its_file_cannot_be_synced(house: House) -> None:
    house.append(1)
    house.routes.failure = DiskError(errno.EIO, "Input/output error", "/data/t-0/0.log")
    with pytest.raises(KafkaError) as raised:
        house.route()
    assert raised.value.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError):
        house.append(1)
