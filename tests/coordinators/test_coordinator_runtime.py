"""The runtime decides, replays, appends, and responds after the commit. It also loads and unloads shards, and
handles the loss of leadership."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from memory_coordinator_log import MemoryLog
from moldau.cluster.internal_topics import StateRetention, StateTopic
from moldau.coordinators.effects import (
    BatchKind,
    CancelTimer,
    Effects,
    Reply,
    SetTimer,
    TimerKey,
    Token,
    answer,
)
from moldau.coordinators.kind import CoordinatorKind, LogPolicy
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.shard import CommittedRecord
from moldau.records.batch import parse_header
from moldau.records.control import EndTransactionMarker, build_end_transaction_marker
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World


class CounterShard:
    """A shard that adds numbers. A record is one number."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int]] = []
        self.markers: list[tuple[int, bool]] = []
        self.fired: list[TimerKey] = []
        self.waiting: list[Token] = []

    def replay(self, offset: int, record: int, kind: BatchKind) -> None:
        self.applied.append((offset, record))

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.markers.append((producer_id, committed))

    def on_loaded(self, now_ms: int) -> Effects[int]:
        return Effects()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[int]:
        self.fired.append(key)
        return Effects(records=[1000], replies=[Reply(token, "late") for token in self.waiting])

    @property
    def total(self) -> int:
        return sum(number for _, number in self.applied)


class CounterCodec:
    def encode(self, record: int) -> tuple[bytes | None, bytes | None]:
        return b"n", str(record).encode()

    def decode(self, key: bytes | None, value: bytes | None) -> int | None:
        return None if key != b"n" else int(value or b"0")


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


Runtime = CoordinatorRuntime[CounterShard, int]


def add(*numbers: int) -> Callable[[CounterShard, int, Token], Effects[int]]:
    return lambda shard, now_ms, token: answer(token, shard.total + sum(numbers), numbers)


def total(shard: CounterShard, now_ms: int) -> int:
    return shard.total


def new_runtime(**options: Any) -> Runtime:
    """A runtime of one kind of coordinator. ``options`` are further arguments of :class:`CoordinatorKind`."""
    kind = CoordinatorKind(
        topic=StateTopic(name="t", retention=StateRetention.COMPACTED, factor_key="", saved_in_step=0),
        new_shard=lambda partition: CounterShard(),
        codec=CounterCodec(),
        **options,
    )
    return CoordinatorRuntime(kind, FixedClock())


def in_virtual_time(story: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, so that a busy machine causes no time-out."""
    with World(1) as world:
        world.run(story)


def run(test: Callable[[Runtime, MemoryLog], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        runtime, log = new_runtime(**options), MemoryLog()
        runtime.load(0, 1, log)
        await runtime.until_loaded(0)
        await test(runtime, log)
        await runtime.close()

    in_virtual_time(main())


async def code_of(future: "asyncio.Future[Any]") -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await future
    return caught.value.code


def test_writes_of_one_turn_share_a_batch_and_see_each_other() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        answers = await asyncio.gather(*(runtime.write(0, add(number)) for number in (1, 2, 3)))
        assert answers == [1, 3, 6]
        assert len(log.batches) == 1
        assert log.log_end_offset == 3

    run(test)


def test_an_answer_waits_for_the_high_watermark_and_so_does_a_read() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        log.held = True
        write = runtime.write(0, add(5))
        await asyncio.sleep(0)
        read = runtime.read(0, total)
        await asyncio.sleep(0)
        assert not write.done()
        assert not read.done()
        log.commit()
        assert (write.result(), read.result()) == (5, 5)
        assert runtime.read(0, total).done()

    run(test)


def test_pipelining_decides_over_pending_state() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        log.held = True
        first = runtime.write(0, add(1))
        await asyncio.sleep(0)
        second = runtime.write(0, add(2))
        await asyncio.sleep(0)
        assert len(log.batches) == 2
        log.commit(1)
        assert first.result() == 1
        assert not second.done()
        log.commit(2)
        assert second.result() == 3

    run(test)


def test_a_failed_append_fails_waiting_requests_and_reloads_the_log() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        await runtime.write(0, add(7))
        log.failure = KafkaError(ErrorCode.not_enough_replicas)
        lost = runtime.write(0, add(100))
        assert await code_of(lost) is ErrorCode.coordinator_not_available
        assert await code_of(runtime.write(0, add(1))) is ErrorCode.coordinator_load_in_progress
        log.failure = None
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 7
        assert await runtime.write(0, add(1)) == 8

    run(test)


def test_a_refusable_operation_leaves_the_shard_as_it_is_while_the_log_accepts_no_records() -> None:
    """For example, too few replicas are in sync. Without the check, each commit of an offset would unload the
    coordinator, and would fail the requests of all groups that wait."""

    def add_if_possible(number: int) -> Callable[[CounterShard, int, Token], Effects[int]]:
        return lambda shard, now_ms, token: replace(add(number)(shard, now_ms, token), is_refusable=True)

    async def test(runtime: Runtime, log: MemoryLog) -> None:
        assert await runtime.write(0, add_if_possible(7)) == 7
        log.held = True
        waiting = runtime.write(0, add(1))
        await asyncio.sleep(0)
        log.refusal = log.failure = KafkaError(ErrorCode.not_enough_replicas)
        refused = runtime.write(0, add_if_possible(100))
        assert await code_of(refused) is ErrorCode.coordinator_not_available
        await asyncio.sleep(0)
        assert runtime.is_active(0)
        assert not waiting.done()
        log.refusal = log.failure = None
        log.commit()
        assert await waiting == 8
        log.held = False
        assert await runtime.write(0, add_if_possible(1)) == 9

    run(test)


def test_an_append_that_is_refused_for_leadership_sends_clients_elsewhere() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        log.failure = KafkaError(ErrorCode.not_leader_or_follower)
        assert await code_of(runtime.write(0, add(1))) is ErrorCode.not_coordinator
        log.failure = None
        await runtime.until_loaded(0)

    run(test)


def test_a_foreign_append_is_noticed() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        await runtime.write(0, add(1))
        log.append(bytearray(log.batches[0]))
        assert await code_of(runtime.write(0, add(2))) is ErrorCode.coordinator_not_available
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 4

    run(test)


def test_waiting_for_a_commit_that_does_not_happen_times_out() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        log.held = True
        assert await code_of(runtime.write(0, add(1))) is ErrorCode.coordinator_not_available
        log.commit()
        assert await runtime.read(0, total) == 1

    run(test, policy=LogPolicy(commit_timeout_ms=1))


def test_requests_for_unknown_and_unloaded_partitions_are_refused() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        assert await code_of(runtime.write(9, add(1))) is ErrorCode.not_coordinator
        log.held = True
        waiting = runtime.write(0, add(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        runtime.unload(0)
        assert await code_of(waiting) is ErrorCode.not_coordinator
        assert await code_of(runtime.read(0, total)) is ErrorCode.not_coordinator

    run(test)


def test_loading_replays_all_batches_skips_unknown_records_and_applies_markers() -> None:
    async def main() -> None:
        log = MemoryLog()
        first = new_runtime()
        first.load(0, 1, log)
        assert await code_of(first.write(0, add(1))) is ErrorCode.coordinator_load_in_progress
        await first.until_loaded(0)
        for number in range(2500):
            await first.write(0, add(number))
        await first.close()
        marker = build_end_transaction_marker(5, 0, committed=True, coordinator_epoch=1, timestamp=0)
        log.append(bytearray(marker))
        second = new_runtime()
        second.load(0, 2, log)
        await second.until_loaded(0)
        assert await second.read(0, total) == sum(range(2500))
        assert await second.read(0, lambda shard, now_ms: shard.markers) == [(5, True)]
        await second.close()

    in_virtual_time(main())


class FencingLog(MemoryLog):
    """A log whose committed records are followed by an open transaction."""

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        raise KafkaError(ErrorCode.invalid_producer_epoch, f"late marker of version {version}")


def test_a_late_marker_is_refused_before_it_is_appended() -> None:
    async def main() -> None:
        log, runtime = FencingLog(), new_runtime()
        runtime.load(0, 1, log)
        await runtime.until_loaded(0)
        late = runtime.end_transaction(
            0, BatchKind(5, 1, transactional=True), EndTransactionMarker(True, 1), 2
        )
        assert await code_of(late) is ErrorCode.invalid_producer_epoch
        assert not log.batches
        assert await runtime.read(0, lambda shard, now_ms: shard.markers) == []
        await runtime.close()

    in_virtual_time(main())


def test_a_newer_epoch_starts_over_from_the_log() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        log.held = True
        waiting = runtime.write(0, add(1))
        await asyncio.sleep(0)
        log.truncate(0)
        log.held = False
        assert not waiting.done()
        runtime.load(0, 2, log)
        assert await code_of(waiting) is ErrorCode.not_coordinator
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 0

    run(test)


def test_timers_move_fire_once_and_write() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        def wait(shard: CounterShard, now_ms: int, token: Token) -> Effects[int]:
            shard.waiting.append(token)
            return Effects(timers=[SetTimer("a", 1), SetTimer("b", 0), SetTimer("a", 3), CancelTimer("b")])

        assert await runtime.write(0, wait) == "late"
        assert await runtime.read(0, lambda shard, now_ms: shard.fired) == ["a"]
        assert await runtime.read(0, total) == 1000

    run(test)


def test_an_operation_that_raises_changes_nothing() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        def refuse(shard: CounterShard, now_ms: int, token: Token) -> Effects[int]:
            raise KafkaError(ErrorCode.illegal_generation)

        def crash(shard: CounterShard, now_ms: int, token: Token) -> Effects[int]:
            raise ZeroDivisionError

        assert await code_of(runtime.write(0, refuse)) is ErrorCode.illegal_generation
        assert await code_of(runtime.write(0, crash)) is ErrorCode.unknown_server_error
        assert await runtime.write(0, add(1)) == 1

    run(test)


def test_a_write_that_is_not_atomic_is_split_and_an_atomic_one_is_not() -> None:
    async def main() -> None:
        runtime, log = new_runtime(), MemoryLog(max_batch_bytes=200)
        runtime.load(0, 1, log)
        await runtime.until_loaded(0)
        await runtime.write(
            0, lambda shard, now_ms, token: Effects([1] * 50, [Reply(token, None)], atomic=False)
        )
        assert log.log_end_offset == 50
        assert all(len(batch) <= 200 for batch in log.batches)
        assert await code_of(runtime.write(0, add(*([1] * 50)))) is ErrorCode.unknown_server_error
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 50
        await runtime.close()

    in_virtual_time(main())


def test_a_producers_records_get_a_batch_of_their_own() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        kind = BatchKind(7, 3, transactional=True)
        plain = runtime.write(0, add(1))
        own = runtime.write(0, lambda shard, now_ms, token: Effects([2], [Reply(token, "ok")], kind=kind))
        await asyncio.gather(plain, own)
        headers = [parse_header(batch) for batch in log.batches]
        assert [(each.producer_id, each.is_transactional) for each in headers] == [(-1, False), (7, True)]

    run(test)


class ListStore:
    """Stores committed numbers, as a database does."""

    def __init__(self) -> None:
        self.numbers: list[tuple[int, int]] = []
        self.up_to = 0
        self.closed = 0

    async def restore(self, shard: object) -> int | None:
        assert isinstance(shard, CounterShard)
        shard.applied.extend(self.numbers)
        return self.up_to or None

    def committed(self, records: Any, up_to_offset: int) -> None:
        for record in records:
            assert isinstance(record, CommittedRecord)
            self.numbers.append((record.offset, record.record))  # type: ignore[arg-type]
        self.up_to = up_to_offset

    async def close(self) -> None:
        self.closed += 1


def test_a_store_gets_committed_records_and_the_next_load_begins_after_them() -> None:
    async def main() -> None:
        store, log = ListStore(), MemoryLog()
        runtime = new_runtime(new_store=lambda term: store)
        runtime.load(0, 1, log)
        await runtime.until_loaded(0)
        await runtime.write(0, add(1, 2))
        log.held = True
        pending = runtime.write(0, add(4))
        await asyncio.sleep(0)
        assert store.numbers == [(0, 1), (1, 2)]
        runtime.load(0, 2, log)
        await asyncio.sleep(1)
        assert await code_of(pending) is ErrorCode.not_coordinator
        assert store.closed == 1
        # The load waits for the commit. Without this wait, a read could miss records for which an earlier
        # leader has already sent responses.
        assert not runtime.is_active(0)
        assert await code_of(runtime.read(0, total)) is ErrorCode.coordinator_load_in_progress
        log.commit()
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 7
        assert store.numbers == [(0, 1), (1, 2), (2, 4)]
        await runtime.close()
        assert store.closed == 2

    in_virtual_time(main())


def test_an_exception_in_a_read_fails_only_this_read() -> None:
    async def test(runtime: Runtime, log: MemoryLog) -> None:
        def crash(shard: CounterShard, now_ms: int) -> int:
            raise ZeroDivisionError

        assert await code_of(runtime.read(0, crash)) is ErrorCode.unknown_server_error
        assert await runtime.write(0, add(1)) == 1

    run(test)


def test_a_load_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.coordinators.shard_host.RELOAD_DELAY_S", 0.0)

    async def main() -> None:
        log, writer, runtime = MemoryLog(), new_runtime(), new_runtime()
        writer.load(0, 1, log)
        await writer.until_loaded(0)
        await writer.write(0, add(3))
        await writer.close()
        log.failure = KafkaError(ErrorCode.kafka_storage_error)
        runtime.load(0, 2, log)
        for _ in range(5):
            await asyncio.sleep(0)
        assert await code_of(runtime.read(0, total)) is ErrorCode.coordinator_load_in_progress
        log.failure = None
        await runtime.until_loaded(0)
        assert await runtime.read(0, total) == 3
        await runtime.close()

    in_virtual_time(main())
