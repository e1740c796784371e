"""Whose turn it is after a batch of an idempotent producer was dropped."""

import asyncio
from uuid import UUID

from writer_fakes import FakeCoordinator, PartitionState, batch, key, run_in_virtual_time

from moldau.coordinators.diskless.calls import BatchToCommit, CommittedBatch
from moldau.diskless.sequence_gaps import SequenceGaps
from moldau.diskless.writer import DisklessWriter, WriterSettings
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, MemoryStorage, Weather
from moldau.records import BatchHeader
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition import AppendOutcome, PartitionKey
from moldau.runtime import ErrorCode, Machine

KEY = PartitionKey(UUID(int=1), 0)
RECORD = Record(0, 1, None, b"value", ())


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    batch = build_batch([RECORD], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return parse_header(batch)


def test_what_follows_a_dropped_batch_waits_until_it_came_again() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(5))
    gaps.dropped(KEY, header(6))
    assert not gaps.allows(KEY, header(6))
    assert gaps.allows(KEY, header(4))
    assert gaps.allows(KEY, header(5))
    assert gaps.allows(KEY, header(6))


def test_sequences_wrap_around() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(2**31 - 1))
    assert not gaps.allows(KEY, header(0))
    assert gaps.allows(KEY, header(2**31 - 2))
    assert gaps.allows(KEY, header(2**31 - 1))
    assert gaps.allows(KEY, header(0))


def test_other_epochs_producers_and_partitions_do_not_wait() -> None:
    gaps = SequenceGaps()
    gaps.dropped(KEY, header(0))
    gaps.dropped(KEY, header(-1, producer_id=-1))
    assert gaps.allows(KEY, header(3, epoch=1))
    assert gaps.allows(KEY, header(3, producer_id=8))
    assert gaps.allows(PartitionKey(UUID(int=1), 1), header(3))
    assert gaps.allows(KEY, header(-1, producer_id=-1))
    assert not gaps.allows(KEY, header(3))


class TakesAnyFirst(FakeCoordinator):
    """As the real ones do of a producer that is new to them."""

    def _commit(self, object_key: str, one: BatchToCommit) -> CommittedBatch:
        state = self.partitions.setdefault(key(), PartitionState())
        state.next_sequence.setdefault(one.producer_id, one.base_sequence)
        return super()._commit(object_key, one)


def test_a_writer_commits_nothing_behind_a_new_producers_batch_that_timed_out() -> None:
    async def story(machine: Machine) -> None:
        weather = Weather(down=True)
        storage = FaultyStorage(MemoryStorage(machine.clock), machine.entropy, weather)
        coordinator = TakesAnyFirst(machine.entropy)
        writer = DisklessWriter(
            storage, coordinator, machine, Meters(), broker_id=3, settings=WriterSettings()
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
        assert key() not in coordinator.partitions
        for sequence in (0, 1):
            outcome = await append(sequence, 60_000)
            assert (outcome.error, outcome.base_offset) == (ErrorCode.none, sequence)
        await writer.close()

    run_in_virtual_time(story)
