"""Records that are only on the disk are loaded by a thread before they are read."""

import asyncio
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication import disk_reads
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import ReadAnswer, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, Machine
from moldau.runtime.files.disk import DiskError
from moldau.runtime.files.local_file import LocalFile
from moldau.runtime.files.sendable import CAN_SEND, sendable_range
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.segments import segment as segments

LEADER, FOLLOWER, EPOCH = 1, 2, 5
BATCH_COUNT = 40
VALUE = bytes(20_000)
FETCH_BYTES = 100_000


class Pages:
    """The page cache of all files. It forgets what it is told to forget."""

    def __init__(self) -> None:
        self.cold: set[str] = set()
        self.loads: list[tuple[str, int, int]] = []
        self.threads: set[int] = set()
        self.while_loading: Callable[[], None] = lambda: None
        self.may_load = threading.Event()
        self.may_load.set()
        self.error: OSError | None = None
        self.stays_cold = False

    def is_cached(self, file: LocalFile, position: int, size: int) -> bool:
        return file.path not in self.cold

    def load(self, file: LocalFile, position: int, size: int) -> None:
        self.threads.add(threading.get_ident())
        self.loads.append((file.path.rpartition(".")[2], position, size))
        self.may_load.wait(30)
        if self.error is not None:
            raise self.error
        if not self.stays_cold:
            self.cold.discard(file.path)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    made = Pages()
    monkeypatch.setattr(LocalFile, "is_cached", lambda *given: made.is_cached(*given))
    monkeypatch.setattr(LocalFile, "load", lambda *given: made.load(*given))
    monkeypatch.setattr(segments, "RECENT_SIZE_BYTES", 0)
    yield made
    made.may_load.set()


class Led:
    """A partition with some sealed segments, led by this broker."""

    def __init__(self, folder: pathlib.Path, segment_bytes: int = 400_000) -> None:
        self.machine = Machine.real()
        config = LogConfig(segment_bytes=segment_bytes)
        self.log = PartitionLog.open(self.machine, str(folder / "t-0"), TopicPartition("t", 0), config)
        meters = BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        self.partition = ClassicPartition(
            ReplicaContext(self.machine, LEADER, WaitingRoom(), meters),
            PartitionKey(UUID(int=1), 0),
            self.log,
            min_in_sync=1,
            high_watermark=0,
        )
        self.partition.become_leader(EPOCH, (LEADER, FOLLOWER), (LEADER,))
        for number in range(BATCH_COUNT):
            record = Record(0, 1_700_000_000_000, b"%d" % number, VALUE, ())
            self.partition.append(memoryview(build_batch([record])), required_acks=1, timeout_ms=1_000)
        assert self.partition.high_watermark == BATCH_COUNT

    def paths(self, suffix: str = ".log") -> set[str]:
        return {str(path) for path in pathlib.Path(self.log.directory).iterdir() if path.suffix == suffix}

    def read(self, offset: int, **other: Any) -> ReadAnswer:
        return self.partition.read(ReadRequest(offset, FETCH_BYTES, current_leader_epoch=EPOCH, **other))

    def expected(self, offset: int) -> bytes:
        return b"".join(self.log.read(offset, FETCH_BYTES).views)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def content(outcome: ReadOutcome) -> bytes:
    assert outcome.error is ErrorCode.none
    return b"".join(outcome.views)


def test_a_thread_loads_the_index_and_then_the_records(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        expected = led.expected(3)
        pages.cold = led.paths() | led.paths(".index")
        led.log.segments.segments[0]._remembered.clear()
        answer = led.read(3)
        assert isinstance(answer, asyncio.Future)
        outcome = await answer
        assert content(outcome) == expected
        assert (outcome.high_watermark, outcome.is_cut) == (BATCH_COUNT, True)
        assert [kind for kind, _, _ in pages.loads] == ["index", "log"]
        assert threading.get_ident() not in pages.threads
        _, position, size = pages.loads[1]
        assert position <= 3 * len(VALUE) + 1_000
        assert size >= len(expected)

    run(scenario)


def test_records_in_memory_are_read_at_once(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        for offset in (0, 17, BATCH_COUNT - 1, BATCH_COUNT):
            assert isinstance(led.read(offset), ReadOutcome)
        assert not pages.loads

    run(scenario)


def test_the_end_of_the_log_is_not_checked(
    tmp_path: pathlib.Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        led = Led(tmp_path, segment_bytes=1 << 24)
        monkeypatch.setattr(segments, "RECENT_SIZE_BYTES", 2 * len(VALUE) + 1_000)
        pages.cold = led.paths()
        assert isinstance(led.read(BATCH_COUNT - 1), ReadOutcome)
        assert isinstance(led.read(BATCH_COUNT - 10), asyncio.Future)

    run(scenario)


def test_all_records_arrive_whatever_is_cold(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        whole = b"".join(pathlib.Path(path).read_bytes() for path in sorted(led.paths()))
        offset, found = 0, b""
        while offset < BATCH_COUNT:
            pages.cold = led.paths() | led.paths(".index")
            answer = led.read(offset)
            found += content(answer if isinstance(answer, ReadOutcome) else await answer)
            offset = led.log.read(offset, FETCH_BYTES).next_offset
        assert found == whole
        assert len(pages.loads) > len(led.paths())

    run(scenario)


def test_a_log_that_stays_cold_is_loaded_once(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        expected = led.expected(0)
        pages.cold, pages.stays_cold = led.paths(), True
        answer = led.read(0)
        assert isinstance(answer, asyncio.Future)
        assert content(await answer) == expected
        assert len(pages.loads) == 1

    run(scenario)


def test_an_error_of_the_disk_is_left_to_the_read(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        expected = led.expected(0)
        pages.cold, pages.error = led.paths(), DiskError(5, "Input/output error", "t")
        answer = led.read(0)
        assert isinstance(answer, asyncio.Future)
        assert content(await answer) == expected

    run(scenario)


def test_a_replica_that_no_longer_leads_refuses_the_read(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        pages.cold = led.paths()
        pages.may_load.clear()
        answer = led.read(0)
        assert isinstance(answer, asyncio.Future)
        led.partition.follow(EPOCH + 1, FOLLOWER)
        pages.may_load.set()
        outcome = await answer
        assert outcome.error is ErrorCode.not_leader_or_follower
        assert not outcome.views

    run(scenario)


def test_a_log_that_is_closed_meanwhile_is_an_error_of_the_read(tmp_path: pathlib.Path, pages: Pages) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        pages.cold = led.paths()
        pages.may_load.clear()
        answer = led.read(0)
        assert isinstance(answer, asyncio.Future)
        led.log.close()
        pages.may_load.set()
        assert (await answer).error is ErrorCode.kafka_storage_error

    run(scenario)


def test_a_slow_fetch_of_a_follower_counts_only_when_it_arrives(tmp_path: pathlib.Path, pages: Pages) -> None:
    """Meanwhile the follower may have been restarted and cut, and may have sent a fetch of a smaller
    offset."""

    async def scenario() -> None:
        led = Led(tmp_path)
        counted: list[int] = []
        reader = led.partition.read.__self__  # type: ignore[attr-defined]
        whole = reader._follower_fetched

        def fetched(request: ReadRequest) -> None:
            counted.append(request.offset)
            whole(request)

        reader._follower_fetched = fetched
        pages.cold = led.paths()
        pages.may_load.clear()
        answer = led.read(7, replica_id=FOLLOWER, last_fetched_epoch=EPOCH)
        assert isinstance(answer, asyncio.Future)
        assert counted == [7]
        pages.may_load.set()
        assert (await answer).size_bytes > 0
        assert counted == [7]

    run(scenario)


@pytest.mark.skipif(not CAN_SEND, reason="only Linux sends files to sockets that do not block")
def test_a_sequence_of_reads_from_the_disk_is_sent_without_copies(
    tmp_path: pathlib.Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reads more than the reader has asked for, so the later reads find their bytes in memory."""

    async def scenario() -> None:
        led = Led(tmp_path, segment_bytes=1 << 24)
        now_s = [100.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
        reads = led.log.read(0, FETCH_BYTES), led.log.read(4, FETCH_BYTES)
        offsets = [0, *(each.next_offset for each in reads)]
        assert offsets == [0, 4, 8]
        pages.cold = led.paths()
        answer = led.read(0)
        assert isinstance(answer, asyncio.Future)
        assert is_sendable(await answer)
        assert is_sendable(at_once(led.read(4)))
        assert not is_sendable(at_once(led.read(4))), "another reader"
        now_s[0] += disk_reads.PAUSE_S_MAX
        assert is_sendable(at_once(led.read(8)))
        now_s[0] += disk_reads.PAUSE_S_MAX + 0.1
        assert not is_sendable(at_once(led.read(12)))

    run(scenario)


def test_a_sequence_ends_at_the_end_of_the_log(
    tmp_path: pathlib.Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        led = Led(tmp_path, segment_bytes=1 << 24)
        monkeypatch.setattr(segments, "RECENT_SIZE_BYTES", len(VALUE) * BATCH_COUNT)
        reads = disk_reads.DiskReads(led.log, led.machine.workers)
        reads.note_read(1 << 20, 2)
        assert reads.continues(2) is False
        monkeypatch.setattr(segments, "RECENT_SIZE_BYTES", len(VALUE) * 5)
        reads.note_read(1 << 20, 2)
        reads.note_read(1 << 20, BATCH_COUNT)
        assert reads.continues(2)
        assert not reads.continues(BATCH_COUNT)

    run(scenario)


@pytest.mark.parametrize("max_bytes", [0, -1, -62, -1_000, -(2**31)])
def test_a_limit_below_zero_gives_the_first_batch(
    tmp_path: pathlib.Path, pages: Pages, max_bytes: int
) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        request = ReadRequest(3, max_bytes, current_leader_epoch=EPOCH)
        assert at_once(led.partition.read(request)).size_bytes > len(VALUE)
        pages.cold = led.paths()
        answer = led.partition.read(request)
        assert isinstance(answer, asyncio.Future)
        assert (await answer).size_bytes > len(VALUE)
        assert not at_once(led.partition.read(request._replace(min_one_batch=False))).views

    run(scenario)


def test_the_segment_after_a_gap_is_loaded(tmp_path: pathlib.Path, pages: Pages) -> None:
    """After compaction a segment may end before the next segment begins."""

    async def scenario() -> None:
        led = Led(tmp_path)
        first, second = led.log.segments.segments[:2]
        offset = second.base_offset - 1
        first.size_bytes = first.position_of(offset)
        first._remembered.clear()
        expected = led.expected(second.base_offset)
        assert content(at_once(led.read(offset))) == expected
        second._remembered.clear()
        pages.cold = {f"{second.folder}/{second.base_offset:020}{suffix}" for suffix in (".log", ".index")}
        answer = led.read(offset)
        assert isinstance(answer, asyncio.Future)
        assert content(await answer) == expected
        assert [kind for kind, _, _ in pages.loads] == ["index", "log"]

    run(scenario)


def at_once(answer: ReadAnswer) -> ReadOutcome:
    assert isinstance(answer, ReadOutcome)
    return answer


def is_sendable(outcome: ReadOutcome) -> bool:
    return all(sendable_range(view) is not None for view in outcome.views)


def test_the_number_of_sequences_is_limited(
    tmp_path: pathlib.Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        led = Led(tmp_path)
        monkeypatch.setattr(disk_reads, "SEQUENCES_MAX", 8)
        reads = disk_reads.DiskReads(led.log, led.machine.workers)
        for number in range(9):
            reads.note_read(1 << 20, number)
        assert not reads.continues(0)
        assert reads.continues(1)
        assert not reads.continues(1)
        reads.note_read(100, 20)
        assert not reads.continues(20)

    run(scenario)
