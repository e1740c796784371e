"""An exception occurs after a batch was accepted and before the response. The producer then gets an error in
time, all memory is released, and there is one log line."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from writer_fakes import FakeCoordinator, batch, key, run_in_virtual_time

from moldau.coordinators.diskless.calls import BatchCoordinate, CommitFileCall, CommitFileResult
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.writing.own_commits import OwnCommits, OwnRun
from moldau.diskless.writing.writer import DisklessWriter
from moldau.diskless.writing.writer_memory import OwnObjects, WriterMemory
from moldau.diskless.writing.writer_settings import WriterSettings
from moldau.metrics import Meters
from moldau.objects import MemoryStorage
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import Clock, ErrorCode, Machine, UnexpectedErrors
from moldau.runtime.buffers import Buffer
from moldau.storage.log.worker_appends import AsideWrite

PROMPT_S = 1.0
"""A time limit in virtual time, so that the tests need not wait for the 30 s of producers."""


class Defect(Exception):
    """An exception of a type that no code expects."""


class Faults:
    """For the name of each function, how many of its next calls raise an exception."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}

    def meet(self, name: str) -> None:
        if self.left.get(name, 0):
            self.left[name] -= 1
            raise Defect(name)


class BrittleStorage(MemoryStorage):
    def __init__(self, clock: Clock, faults: Faults) -> None:
        super().__init__(clock)
        self._faults = faults

    async def upload(self, object_key: str, data: Buffer, length: int) -> None:
        await asyncio.sleep(0.01)
        self._faults.meet("upload")
        await super().upload(object_key, data, length)


class BrittleCoordinator(FakeCoordinator):
    def __init__(self, machine: Machine, faults: Faults) -> None:
        super().__init__(machine.entropy)
        self._faults = faults

    def coordinator_of(self, topic_id: object, partition_index: int) -> int:
        self._faults.meet("coordinator_of")
        return 0

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        self._faults.meet("commit_file")
        found = await super().commit_file(coordinator_id, call)
        if self._faults.left.pop("short answer", 0):
            return CommitFileResult(found.batches[1:])
        return found


class BrittleCache:
    """A cache that promises to append every batch, and appends none."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.promised = 0

    def promise(self, where: PartitionKey, batches: Sequence[BatchCoordinate]) -> bool:
        self.promised += 1
        self._faults.meet("promise")
        return True

    def begin(self, run: OwnRun) -> AsideWrite | None:
        self._faults.meet("begin")
        return None

    def end(self, run: OwnRun, write: AsideWrite) -> None:
        raise AssertionError("nothing was begun")

    def over(self, run: OwnRun) -> bool:
        self.promised -= 1
        self._faults.meet("over")
        return True


class Bench:
    def __init__(self, machine: Machine) -> None:
        self.faults = Faults()
        self.unexpected = machine.unexpected
        storage = BrittleStorage(machine.clock, self.faults)
        coordinator = BrittleCoordinator(machine, self.faults)
        self.cache = BrittleCache(self.faults)
        memory = WriterMemory(WriterSettings())
        commits = OwnCommits(memory.recent, self.cache, machine.workers, machine.unexpected)
        self.writer = DisklessWriter(
            storage,
            coordinator,
            machine,
            Meters(),
            ObjectOrigin(1, machine.clock.now_ms),
            own=OwnObjects(memory, commits),
        )

    async def send(self, where: PartitionKey, attributes: int = 0) -> AppendOutcome:
        records, header = batch()
        answer = self.writer.append(where, records, header._replace(attributes=attributes), timeout_ms=30_000)
        return answer if isinstance(answer, AppendOutcome) else await answer

    async def send_some(self, poison: int = 0) -> list[ErrorCode]:
        """The error codes of two batches that arrive together and share an object."""
        async with asyncio.timeout(PROMPT_S):
            found = await asyncio.gather(self.send(key(1), poison), self.send(key(2)))
        return [outcome.error for outcome in found]

    async def quiet(self) -> None:
        await asyncio.sleep(PROMPT_S)
        assert not any(self.writer.in_hand().values()), self.writer.in_hand()
        assert self.cache.promised == 0


STORAGE, UNKNOWN, NONE = ErrorCode.kafka_storage_error, ErrorCode.unknown_server_error, ErrorCode.none


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("footer", STORAGE),
        ("upload", STORAGE),
        ("coordinator_of", STORAGE),
        ("commit_file", UNKNOWN),
        ("short answer", UNKNOWN),
        ("promise", NONE),
        ("begin", NONE),
        ("over", NONE),
    ],
)
def test_a_defect_affects_one_object_and_is_reported(
    fault: str, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        assert await bench.send_some() == [NONE, NONE]
        bench.faults.left[fault] = 1
        # The attributes of a batch have fewer than 20 bits, so the footer with this value cannot be packed.
        codes = await bench.send_some(1 << 20 if fault == "footer" else 0)
        assert code in codes
        assert set(codes) <= {code, NONE}
        assert await bench.send_some() == [NONE, NONE]
        await bench.quiet()
        assert machine.unexpected.count == 1
        assert "unexpected" in (machine.unexpected.problem() or "")
        await bench.writer.close()

    with caplog.at_level(logging.ERROR):
        run_in_virtual_time(story)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_four_hundred_poisoned_objects_leave_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    """The memory of each object is released. If several errors are equal, only the first error is logged with
    its stack."""

    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        for _ in range(400):
            assert await bench.send_some(1 << 20) == [STORAGE, STORAGE]
            assert bench.writer.buffered_bytes == 0
        assert await bench.send_some() == [NONE, NONE]
        await bench.quiet()
        assert machine.unexpected.count == 400
        await bench.writer.close()

    with caplog.at_level(logging.ERROR):
        run_in_virtual_time(story)
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert len(caplog.records) == 3  # the first, the tenth and the hundredth error


def test_batches_after_a_lost_batch_wait_until_it_is_sent_again() -> None:
    """As after a time-out, the batch that follows a lost batch must not be committed before the
    lost batch."""

    async def story(machine: Machine) -> None:
        bench = Bench(machine)

        async def send(sequence: int) -> AppendOutcome:
            records, header = batch(producer_id=5, epoch=0, sequence=sequence)
            answer = bench.writer.append(key(), records, header, timeout_ms=30_000)
            assert not isinstance(answer, AppendOutcome)
            return await answer

        bench.faults.left["upload"] = 1
        first = asyncio.ensure_future(send(0))
        # After 8 ms the buffer with the first batch is closed, so the second batch gets another object.
        await asyncio.sleep(0.008)
        second = asyncio.ensure_future(send(1))
        assert (await first).error is STORAGE
        assert (await second).error is ErrorCode.out_of_order_sequence_number
        assert [(await send(sequence)).base_offset for sequence in (0, 1)] == [0, 1]
        await bench.writer.close()

    run_in_virtual_time(story)


def test_reports_name_the_work_for_some_minutes() -> None:
    async def story(machine: Machine) -> None:
        errors = machine.unexpected
        assert errors.problem() is None
        with errors.contained("baking"):
            raise ValueError("no flour")
        assert "baking: ValueError('no flour')" in (errors.problem() or "")
        await asyncio.sleep(400)
        assert errors.problem() is None

    run_in_virtual_time(story)


def test_expected_errors_and_cancellation_are_not_contained() -> None:
    async def story(machine: Machine) -> None:
        errors: UnexpectedErrors = machine.unexpected
        called: list[Exception] = []
        with pytest.raises(OSError), errors.contained("a", called.append, passing=(OSError,)):  # noqa: PT011
            raise FileNotFoundError
        with pytest.raises(asyncio.CancelledError), errors.contained("b", called.append):
            raise asyncio.CancelledError
        assert not called
        assert errors.count == 0
        with errors.contained("c", called.append):
            raise Defect
        assert len(called) == 1

    run_in_virtual_time(story)


def test_the_error_of_a_task_that_is_not_awaited_is_reported() -> None:
    async def story(machine: Machine) -> None:
        async def work() -> None:
            raise Defect

        task = asyncio.ensure_future(work())
        machine.unexpected.watch(task, "working")
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert machine.unexpected.count == 1

    run_in_virtual_time(story)
