"""A diskless partition handles produced batches, before the writer gets these batches."""

import asyncio

from reading_fakes import ReadingBroker, key
from writer_fakes import run_in_virtual_time

from moldau.records import Record, build_batch
from moldau.records.batch import TimestampType
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, Machine
from moldau.storage.log.config import LogConfig

K = key()


def batch(value: bytes = b"v", timestamp_ms: int = 0, *, transactional: bool = False) -> memoryview:
    record = Record(0, timestamp_ms, None, value, ())
    if transactional:
        return memoryview(
            build_batch([record], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        )
    return memoryview(build_batch([record]))


def test_order_is_kept_while_the_coordinator_does_not_know_the_partition() -> None:
    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine)
        partition = broker.open(K)
        now_ms = machine.clock.now_ms()
        sent = [batch(b"%d" % number, now_ms) for number in range(5)]
        answers = [partition.append(one, required_acks=-1, timeout_ms=30_000) for one in sent[:4]]
        late = partition.append(batch(b"late", now_ms), required_acks=-1, timeout_ms=500)
        await asyncio.sleep(1)
        assert broker.writer.appended == []
        assert isinstance(late, asyncio.Future)
        assert late.result().error is ErrorCode.request_timed_out
        broker.coordinator.create(K)
        await asyncio.sleep(5)
        answers.append(partition.append(sent[4], required_acks=-1, timeout_ms=30_000))
        outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
        assert [outcome.base_offset for outcome in outcomes] == [0, 1, 2, 3, 4]
        assert [content for _, content, _ in broker.writer.appended] == [bytes(one) for one in sent]
        await broker.stop()

    run_in_virtual_time(tell)


def test_the_bytes_of_a_batch_that_timed_out_are_released() -> None:
    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine)
        partition = broker.open(K)
        now_ms = machine.clock.now_ms()
        for _ in range(3):
            big = [batch(b"x" * 900_000, now_ms) for _ in range(4)]
            answers = [partition.append(one, required_acks=-1, timeout_ms=500) for one in big]
            assert all(isinstance(one, asyncio.Future) and not one.done() for one in answers)
            assert partition.waiting_bytes == sum(len(one) for one in big)
            await asyncio.sleep(1)
            assert partition.waiting_bytes == 0
        broker.coordinator.create(K)
        await asyncio.sleep(5)
        assert broker.writer.appended == []
        await broker.stop()

    run_in_virtual_time(tell)


def test_batches_that_wait_for_the_coordinator_are_refused_when_the_broker_stops() -> None:
    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine)
        partition = broker.open(K)
        waiting = partition.append(batch(b"v", machine.clock.now_ms()), required_acks=-1, timeout_ms=30_000)
        partition.refuse_waiting()
        assert isinstance(waiting, asyncio.Future)
        assert waiting.result().error is ErrorCode.not_leader_or_follower
        assert partition.waiting_bytes == 0
        await broker.stop()

    run_in_virtual_time(tell)


def test_refusals_come_at_once_and_reach_no_object() -> None:
    async def tell(machine: Machine) -> None:
        broker = ReadingBroker(machine)
        broker.coordinator.create(K)
        partition = broker.open(K, LogConfig(max_message_bytes=200))
        await asyncio.sleep(1)
        now_ms = machine.clock.now_ms()

        def refusal(records: memoryview) -> AppendOutcome:
            answer = partition.append(records, required_acks=1, timeout_ms=1_000)
            assert isinstance(answer, AppendOutcome)
            return answer

        transactional = refusal(batch(transactional=True, timestamp_ms=now_ms))
        assert transactional.error is ErrorCode.invalid_txn_state
        assert "no open transaction" in (transactional.message or "")
        assert refusal(batch(b"x" * 300, now_ms)).error is ErrorCode.message_too_large
        assert refusal(batch(timestamp_ms=now_ms + 2 * 3_600_000)).error is ErrorCode.invalid_timestamp
        torn = bytearray(batch(timestamp_ms=now_ms))
        torn[-1] ^= 1
        assert refusal(memoryview(torn)).error is ErrorCode.corrupt_message
        assert broker.writer.appended == []
        assert refusal(batch(timestamp_ms=now_ms)).error is ErrorCode.none
        partition.config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
        assert refusal(batch(timestamp_ms=0)).error is ErrorCode.none
        assert [stamped for _, _, stamped in broker.writer.appended] == [0, 1]
        broker.cacher.remove(partition.cache)
        assert refusal(batch(timestamp_ms=now_ms)).error is ErrorCode.not_leader_or_follower
        await broker.stop()

    run_in_virtual_time(tell)
