"""One batch of an idempotent producer is dropped. The tests check the order of the batches after it."""

import asyncio
from uuid import UUID

from writer_fakes import FakeCoordinator, PartitionState, batch, key, run_in_virtual_time

from moldau.coordinators.diskless.calls import (
    FOLLOWS_DROPPED,
    HELD,
    BatchToCommit,
    CommitFileCall,
    CommitFileResult,
    CommittedBatch,
)
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.writing.sequence_gaps import SequenceGaps
from moldau.diskless.writing.writer import DisklessWriter, WriterSettings
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, MemoryStorage, StorageWeather
from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, Machine

KEY = PartitionKey(UUID(int=1), 0)
RECORD = Record(0, 1, None, b"value", ())


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    batch = build_batch([RECORD], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return parse_header(batch)


def test_batches_after_a_dropped_batch_wait_until_it_is_sent_again() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(5))
    gaps.dropped(KEY, header(6))
    assert gaps.follows_dropped(KEY, header(6))
    assert not gaps.follows_dropped(KEY, header(4))
    assert not gaps.follows_dropped(KEY, header(5))
    assert not gaps.follows_dropped(KEY, header(6))


def test_a_gap_is_closed_by_batches_that_the_coordinator_accepts() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(5))
    assert gaps.follows_dropped(KEY, header(9))
    gaps.committed(KEY, header(9))  # batches 5 to 8 arrived through another broker
    assert not gaps.follows_dropped(KEY, header(10))


def test_sequences_wrap_around() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(2**31 - 1))
    assert gaps.follows_dropped(KEY, header(0))
    assert not gaps.follows_dropped(KEY, header(2**31 - 2))
    assert not gaps.follows_dropped(KEY, header(2**31 - 1))
    assert not gaps.follows_dropped(KEY, header(0))


def test_other_epochs_producers_and_partitions_do_not_wait() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(0))
    gaps.dropped(KEY, header(-1, producer_id=-1))
    assert not gaps.follows_dropped(KEY, header(3, epoch=1))
    assert not gaps.follows_dropped(KEY, header(3, producer_id=8))
    assert not gaps.follows_dropped(PartitionKey(UUID(int=1), 1), header(3))
    assert not gaps.follows_dropped(KEY, header(-1, producer_id=-1))
    assert gaps.follows_dropped(KEY, header(3))


class TakesAnyFirst(FakeCoordinator):
    """Accepts any first sequence of a new producer, like real coordinators."""

    def _commit(self, object_key: str, one: BatchToCommit) -> CommittedBatch:
        state = self.partitions.setdefault(key(), PartitionState())
        if not one.flags & FOLLOWS_DROPPED:
            state.next_sequence.setdefault(one.producer_id, one.base_sequence)
        return super()._commit(object_key, one)


def test_a_writer_commits_no_batch_after_a_new_producers_batch_that_timed_out() -> None:
    async def story(machine: Machine) -> None:
        weather = StorageWeather(down=True)
        storage = FaultyStorage(MemoryStorage(machine.clock), machine.entropy, weather)
        coordinator = TakesAnyFirst(machine.entropy)
        writer = DisklessWriter(
            storage,
            coordinator,
            machine,
            Meters(),
            ObjectOrigin(3, machine.clock.now_ms),
            settings=WriterSettings(),
        )

        async def append(sequence: int, timeout_ms: int) -> AppendOutcome:
            records, header = batch(producer_id=7, epoch=0, sequence=sequence)
            answer = writer.append(key(), records, header, timeout_ms=timeout_ms)
            return answer if isinstance(answer, AppendOutcome) else await answer

        first = asyncio.ensure_future(append(0, 200))
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(append(1, 60_000))
        assert (await first).error is ErrorCode.request_timed_out
        weather.down = False
        assert (await second).error is ErrorCode.out_of_order_sequence_number
        assert not coordinator.partitions[key()].committed
        for sequence in (0, 1):
            outcome = await append(sequence, 60_000)
            assert (outcome.error, outcome.base_offset) == (ErrorCode.none, sequence)
        await writer.close()

    run_in_virtual_time(story)


def test_a_producer_may_return_to_a_broker_that_dropped_one_of_its_batches() -> None:
    async def story(machine: Machine) -> None:
        coordinator = TakesAnyFirst(machine.entropy)
        weather = StorageWeather(down=True)
        objects = MemoryStorage(machine.clock)
        storages = (FaultyStorage(objects, machine.entropy, weather), objects)
        first, second = (
            DisklessWriter(
                storage,
                coordinator,
                machine,
                Meters(),
                ObjectOrigin(broker_id, machine.clock.now_ms),
                settings=WriterSettings(),
            )
            for broker_id, storage in enumerate(storages)
        )

        async def append(writer: DisklessWriter, sequence: int, timeout_ms: int = 60_000) -> ErrorCode:
            records, header = batch(producer_id=7, epoch=0, sequence=sequence)
            answer = writer.append(key(), records, header, timeout_ms=timeout_ms)
            return (answer if isinstance(answer, AppendOutcome) else await answer).error

        assert await append(first, 0, 200) is ErrorCode.request_timed_out
        assert await append(second, 0) is ErrorCode.none
        assert await append(second, 1) is ErrorCode.none
        weather.down = False
        assert await append(first, 2) is ErrorCode.none
        assert await append(first, 3) is ErrorCode.none
        committed = [one.base_sequence for _, _, one in coordinator.partitions[key()].committed]
        assert committed == [0, 1, 2, 3]
        await first.close()
        await second.close()

    run_in_virtual_time(story)


class NeverAnswers(FakeCoordinator):
    """A coordinator whose responses get lost, although its calls may take effect."""

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        await asyncio.sleep(10_000)
        raise AssertionError


def test_a_commit_that_is_given_up_leaves_its_object() -> None:
    """The simulation ``diskless-cluster`` has found this defect: the stop deleted an object, and the object's
    commit took effect later."""

    async def story(machine: Machine) -> None:
        storage = MemoryStorage(machine.clock)
        writer = DisklessWriter(
            storage, NeverAnswers(machine.entropy), machine, Meters(), ObjectOrigin(1, machine.clock.now_ms)
        )
        answer = writer.append(key(), *batch(b"x"), timeout_ms=500)
        assert not isinstance(answer, AppendOutcome)
        assert (await answer).error is ErrorCode.request_timed_out
        await writer.close(grace_s=1.0)
        await asyncio.sleep(1.0)
        assert [info.key async for page in storage.list("wal/") for info in page]

    run_in_virtual_time(story)


def test_a_batch_that_overtook_another_is_committed_with_the_next_objects() -> None:
    async def story(machine: Machine) -> None:
        coordinator, meters = Overtaken(machine.entropy), Meters()
        writer = DisklessWriter(
            MemoryStorage(machine.clock),
            coordinator,
            machine,
            meters,
            ObjectOrigin(1, machine.clock.now_ms),
        )
        later = writer.append(key(), *batch(b"x", producer_id=7, epoch=0, sequence=1), timeout_ms=5_000)
        assert not isinstance(later, AppendOutcome)
        await asyncio.sleep(0.6)
        assert not later.done()
        coordinator.partitions[key()].next_sequence[7] = 1  # the first batch arrived through another broker
        assert (await later).error is ErrorCode.none
        files = {call.object_key for _, call in coordinator.calls}
        assert len(files) > 1
        held = meters.scoped("moldau.diskless", "Writer").value("BatchesHeldPerSec")
        assert held == len(files) - 1
        lost = writer.append(key(), *batch(b"x", producer_id=7, epoch=0, sequence=9), timeout_ms=5_000)
        assert not isinstance(lost, AppendOutcome)
        begin = asyncio.get_running_loop().time()
        assert (await lost).error is ErrorCode.not_leader_or_follower
        assert 1.0 <= asyncio.get_running_loop().time() - begin < 2.0
        await writer.close()
        assert not any(writer.in_hand().values())

    run_in_virtual_time(story)


class Overtaken(FakeCoordinator):
    """Like real coordinators, answers HELD to a batch that arrives before its predecessor."""

    def _commit(self, object_key: str, one: BatchToCommit) -> CommittedBatch:
        found = super()._commit(object_key, one)
        is_ahead = found.error is ErrorCode.out_of_order_sequence_number
        return CommittedBatch(HELD) if is_ahead else found
