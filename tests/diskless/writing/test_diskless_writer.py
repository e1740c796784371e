"""The writer in virtual time. Its stores and coordinators work or fail."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

import pytest
from writer_fakes import FakeCoordinator, batch, key, run_in_virtual_time, until_room

from moldau.coordinators.diskless.calls.subjects.commit import REQUEST_BATCHES_MAX
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.wal import parse_object
from moldau.diskless.writing.buffers.open_buffer import BATCHES_MAX
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.diskless.writing.wal_file import FileShare
from moldau.diskless.writing.writer import DisklessWriter, WriterSettings
from moldau.diskless.writing.writer_memory import OwnObjects, WriterMemory
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, Latency, MemoryStorage, ObjectStorage, RetryPolicy, StorageWeather
from moldau.protocol.partitions import PartitionKey
from moldau.records import check_batch
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import ErrorCode, Machine

QUICK = RetryPolicy(first_backoff_ms=20, max_backoff_ms=200, attempt_timeout_ms=5_000)


class Bench:
    """A writer with a store and a coordinator."""

    def __init__(
        self,
        machine: Machine,
        *,
        settings: WriterSettings | None = None,
        coordinators: int = 1,
        weather: StorageWeather | None = None,
        cache: "SlowCache | None" = None,
    ) -> None:
        settings = settings or WriterSettings(retries=QUICK)
        self.memory = MemoryStorage(machine.clock)
        self.weather = weather or StorageWeather()
        self.storage: ObjectStorage = FaultyStorage(self.memory, machine.entropy, self.weather)
        self.coordinator = FakeCoordinator(machine.entropy, coordinator_count=coordinators)
        self.meters = Meters()
        self.writer = DisklessWriter(
            self.storage,
            self.coordinator,
            machine,
            self.meters,
            ObjectOrigin(3, machine.clock.now_ms),
            settings=settings,
            own=OwnObjects(WriterMemory(settings), cast(OwnCommits | None, cache)),
        )
        self.sent: dict[tuple[PartitionKey, int], bytes] = {}

    def append(
        self,
        where: PartitionKey,
        value: bytes = b"x",
        *,
        timeout_ms: int = 30_000,
        producer_id: int = -1,
        sequence: int = -1,
    ) -> AppendAnswer:
        epoch = 0 if producer_id >= 0 else -1
        records, header = batch(value, producer_id=producer_id, epoch=epoch, sequence=sequence)
        return self.writer.append(where, records, header, timeout_ms=timeout_ms)

    def objects(self) -> Sequence[str]:
        return sorted(self.memory._objects)

    def stored(self, where: PartitionKey) -> list[bytes]:
        """The values of a partition's batches by offset, read from the store."""
        found = []
        for base_offset, object_key, one in self.coordinator.partitions[where].committed:
            assert base_offset == len(found)
            content = self.memory._objects[object_key][0]
            header = check_batch(content, one.byte_offset)
            assert header.size_bytes == one.size_bytes
            found.append(bytes(content[one.byte_offset : one.byte_offset + one.size_bytes]))
        return found

    def count(self, name: str, **tags: str) -> float:
        return self.meters.scoped("moldau.diskless", "Writer").value(name, **tags) or 0


async def wait(answer: AppendAnswer) -> AppendOutcome:
    return answer if isinstance(answer, AppendOutcome) else await answer


# Without failures ---------------------------------------------------------------------------------------


def test_a_batch_is_answered_with_its_offset_after_upload_and_commit() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, weather=StorageWeather(put_latency=Latency(100, 100)))
        begin = asyncio.get_running_loop().time()
        first, second = bench.append(key(), b"a"), bench.append(key(), b"b")
        assert await wait(first) == AppendOutcome(ErrorCode.none, 0, -1, 0)
        assert await wait(second) == AppendOutcome(ErrorCode.none, 1, -1, 0)
        took_ms = (asyncio.get_running_loop().time() - begin) * 1000
        # The object is closed after 5 ms without a batch, and its upload takes 100 ms.
        assert 104 < took_ms < 115
        [name] = bench.objects()
        content = bench.memory._objects[name][0]
        assert parse_object(content, len(content)).broker_id == 3
        assert bench.count("FilesClosedPerSec", reason="early") == 1
        assert bench.writer.buffered_bytes == 0
        await bench.writer.close()

    run_in_virtual_time(story)


def test_without_early_close_a_buffer_is_open_for_the_interval() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, settings=WriterSettings(puts_per_second=0))
        begin = asyncio.get_running_loop().time()
        answers = [bench.append(key(1, number)) for number in range(5)]
        await asyncio.sleep(0.2)
        answers.append(bench.append(key()))
        for answer in answers:
            await wait(answer)
        assert 250 <= (asyncio.get_running_loop().time() - begin) * 1000 < 252
        assert len(bench.objects()) == 1

    run_in_virtual_time(story)


class SlowCache:
    """A cache of the broker's own commits on a slow disk. Replaces :class:`OwnCommits`."""

    @staticmethod
    def is_shared() -> bool:
        return False

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self.finished_count = 0

    def committed(self, share: FileShare, on_over: Callable[[FileShare], None]) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, on_over, share)

    def finished(self, shares: Sequence[FileShare]) -> None:
        self.finished_count += 1

    async def drain(self) -> None:
        await asyncio.sleep(self._delay_s)

    async def stop(self) -> None: ...


@pytest.mark.parametrize("cache_s", [0.0, 0.06])
def test_batches_that_a_bounded_producer_sends_together_stay_in_one_object_and_do_not_wait(
    cache_s: float,
) -> None:
    async def story(machine: Machine) -> None:
        settings = WriterSettings(buffer_max_bytes=8_000, puts_per_second=1, retries=QUICK)
        weather = StorageWeather(put_latency=Latency(100, 100))
        bench = Bench(machine, settings=settings, weather=weather, cache=SlowCache(cache_s))
        loop = asyncio.get_running_loop()
        for number in range(20):
            begin = loop.time()
            await asyncio.gather(*(wait(bench.append(key(1, one), b"v" * 900)) for one in range(5)))
            took_ms = (loop.time() - begin) * 1000
            # The first object is closed later than the others, because the writer does not know yet that no
            # more batches arrive.
            assert took_ms < (130 if number == 0 else 103)
        assert bench.count("FilesClosedPerSec", reason="early") == 20
        await bench.writer.close()

    run_in_virtual_time(story)


def test_bytes_count_against_the_bound_until_the_brokers_own_cache_has_them() -> None:
    async def story(machine: Machine) -> None:
        settings = WriterSettings(buffer_max_bytes=2_000, max_buffered_bytes=4_000, retries=QUICK)
        cache = SlowCache(5.0)
        bench = Bench(machine, settings=settings, cache=cache)
        answers = [bench.append(key(), b"v" * 900) for _ in range(5)]
        for answer in answers:
            assert (await wait(answer)).error is ErrorCode.none
        assert bench.writer.is_full
        await until_room(bench.writer)
        assert cache.finished_count
        await bench.writer.close()
        assert bench.writer.buffered_bytes == 0

    run_in_virtual_time(story)


def test_under_full_load_workers_make_the_memory_for_the_next_objects() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, settings=WriterSettings(buffer_max_bytes=2_000, retries=QUICK))
        pool = bench.writer._own.memory.pool
        assert pool.is_low
        assert (await wait(bench.append(key(), b"small"))).error is ErrorCode.none
        await asyncio.sleep(1)
        assert pool.is_low  # a small batch does not make the pool larger
        await asyncio.gather(*(wait(bench.append(key(), b"v" * 900)) for _ in range(8)))
        await asyncio.sleep(1)
        assert not pool.is_low
        await bench.writer.close()

    run_in_virtual_time(story)


def test_objects_are_not_larger_than_the_bound_and_a_huge_batch_has_its_own() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, settings=WriterSettings(buffer_max_bytes=10_000, retries=QUICK))
        answers = [bench.append(key(), bytes([number]) * 900) for number in range(40)]
        answers.append(bench.append(key(), b"h" * 70_000))
        answers.append(bench.append(key(), b"t"))
        for answer in answers:
            assert (await wait(answer)).error is ErrorCode.none
        sizes = []
        for name in bench.objects():
            content = bench.memory._objects[name][0]
            found = parse_object(content, len(content))
            sizes.append((found.data_size_bytes, sum(1 for _ in found.batches())))
        assert all(size <= 10_000 or count == 1 for size, count in sizes)
        assert len(bench.stored(key())) == 42
        assert bench.count("FilesClosedPerSec", reason="full") >= 4

    run_in_virtual_time(story)


def test_an_object_has_a_limited_number_of_batches() -> None:
    """The coordinator decides on all batches of an object in one step, and refuses objects with too many
    batches."""

    async def story(machine: Machine) -> None:
        bench = Bench(machine, settings=WriterSettings(commit_interval_ms=60_000, retries=QUICK))
        answers = [bench.append(key()) for _ in range(BATCHES_MAX + 1)]
        await answers[0]
        (name,) = bench.objects()
        content = bench.memory._objects[name][0]
        assert sum(1 for _ in parse_object(content, len(content)).batches()) == BATCHES_MAX
        assert bench.count("FilesClosedPerSec", reason="full") == 1
        await bench.writer.close()
        assert (await wait(answers[-1])).error is ErrorCode.none

    assert BATCHES_MAX < REQUEST_BATCHES_MAX
    run_in_virtual_time(story)


def test_a_rejected_batch_does_not_fail_its_file() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.rejected.add(key(2))
        bench.coordinator.unknown.add(key(3))
        answers = [bench.append(key(number)) for number in (1, 2, 3, 4)]
        outcomes = [await wait(answer) for answer in answers]
        assert [outcome.error.name for outcome in outcomes] == [
            *("none", "policy_violation", "unknown_topic_or_partition", "none")
        ]
        assert outcomes[1].message == "rejected"
        await bench.writer.close()
        assert len(bench.objects()) == 1

    run_in_virtual_time(story)


def test_a_file_without_an_accepted_batch_is_deleted_immediately() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.rejected.add(key(2))
        await wait(bench.append(key(1), producer_id=5, sequence=0))
        rejected = bench.append(key(2))
        duplicate = bench.append(key(1), producer_id=5, sequence=0)
        assert (await wait(rejected)).error is ErrorCode.policy_violation
        assert await wait(duplicate) == AppendOutcome(ErrorCode.none, 0)
        await bench.writer.close()
        assert len(bench.objects()) == 1
        assert bench.count("FilesDeletedPerSec") == 1

    run_in_virtual_time(story)


def test_a_file_is_kept_when_its_commit_had_to_be_repeated() -> None:
    """If the first attempt of a commit succeeded and its response was lost, the coordinator answers that the
    batches of the second attempt are duplicates. If the writer then deleted the file, the batches would be
    lost."""

    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.rejected.add(key())
        bench.coordinator.lose_answer_chance = 1.0
        answer = bench.append(key())
        await asyncio.sleep(0.5)
        bench.coordinator.lose_answer_chance = 0.0
        assert (await wait(answer)).error is ErrorCode.policy_violation
        await bench.writer.close()
        assert len(bench.objects()) == 1

    run_in_virtual_time(story)


def test_the_broker_finds_its_objects_in_memory_before_their_commit() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.is_away = True
        answer = bench.append(key(), b"hello")
        await asyncio.sleep(0.2)
        [name] = bench.objects()
        content = bench.memory._objects[name][0]
        assert bench.writer.recent.get(name, 0, len(content)) == content
        bench.coordinator.is_away = False
        await wait(answer)
        assert name in bench.writer.recent

    run_in_virtual_time(story)


# Order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_files_are_committed_in_their_order_even_if_uploads_end_in_another_order(seed: int) -> None:
    async def story(machine: Machine) -> None:
        weather = StorageWeather(
            put_latency=Latency(100, 900), failed_chance=0.1, throttled_chance=0.1, answer_lost_chance=0.1
        )
        settings = WriterSettings(buffer_max_bytes=3_000, retries=QUICK, puts_per_second=50)
        bench = Bench(machine, settings=settings, coordinators=3, weather=weather)
        bench.coordinator.latency_s = 0.05
        bench.coordinator.lose_answer_chance = 0.2
        bench.coordinator.lose_request_chance = 0.2
        expected: dict[PartitionKey, list[bytes]] = defaultdict(list)
        answers = []
        sequences: dict[tuple[int, PartitionKey], int] = defaultdict(int)
        for _ in range(300):
            where = key(1 + machine.entropy.randrange(2), machine.entropy.randrange(5))
            producer = machine.entropy.randrange(3)
            sequence = sequences[producer, where]
            sequences[producer, where] += 1
            value = b"%d" % machine.entropy.randrange(10**9) * 10
            records, header = batch(value, producer_id=producer, epoch=0, sequence=sequence)
            expected[where].append(bytes(records))
            answers.append((where, bench.writer.append(where, records, header, timeout_ms=600_000)))
            if machine.entropy.randrange(4) == 0:
                await asyncio.sleep(machine.entropy.uniform(0, 0.05))
        offsets: dict[PartitionKey, list[int]] = defaultdict(list)
        for where, answer in answers:
            outcome = await wait(answer)
            assert outcome.error is ErrorCode.none
            offsets[where].append(outcome.base_offset)
        for where, contents in expected.items():
            assert bench.stored(where) == contents
            assert offsets[where] == list(range(len(contents)))
        for coordinator_id in range(3):
            keys = [call.object_key for who, call in bench.coordinator.calls if who == coordinator_id]
            asked = [name for name, _ in groupby(keys)]
            # each commit is repeated until its outcome is known; only then the next file is committed
            assert len(asked) == len(set(asked))
            created = [call.created_ms for who, call in bench.coordinator.calls if who == coordinator_id]
            assert created == sorted(created)
        await bench.writer.close()
        assert bench.writer.buffered_bytes == 0
        assert bench.count("CommitErrorsPerSec") > 0

    run_in_virtual_time(story, seed)


def test_a_slow_coordinator_does_not_hold_up_the_others() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, coordinators=2)
        bench.coordinator.latency_s = 0.0
        stuck = bench.append(key(1, 0))
        free = bench.append(key(1, 1))
        bench.coordinator.latency_s = 0.0
        inner = bench.coordinator.commit_file

        async def commit(coordinator_id: int, call):  # type: ignore[no-untyped-def]
            if coordinator_id == 0:
                await asyncio.sleep(20)
            return await inner(coordinator_id, call)

        bench.coordinator.commit_file = commit  # type: ignore[method-assign]
        bench.writer.configure(
            replace(bench.writer._settings, retries=RetryPolicy(attempt_timeout_ms=60_000))
        )
        begin = asyncio.get_running_loop().time()
        await wait(free)
        assert asyncio.get_running_loop().time() - begin < 1
        await wait(stuck)
        assert asyncio.get_running_loop().time() - begin >= 20
        assert {tuple(sorted(call.owner_ids)) for _, call in bench.coordinator.calls} == {(0, 1)}

    run_in_virtual_time(story)


def test_each_coordinator_of_a_file_gets_the_list_of_all_its_owners() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, coordinators=4)
        for answer in [bench.append(key(1, partition)) for partition in (3, 1, 2, 1)]:
            await wait(answer)
        assert sorted(len(call.batches) for _, call in bench.coordinator.calls) == [1, 1, 2]
        # The list is randomly permuted. Otherwise the first coordinator would own most files (KIP-1164).
        owners = {call.owner_ids for _, call in bench.coordinator.calls}
        assert len(owners) == 1
        for _ in range(15):
            for answer in [bench.append(key(1, partition)) for partition in (3, 1, 2)]:
                await wait(answer)
        assert {who for who, call in bench.coordinator.calls if who in call.owner_ids} == {1, 2, 3}
        orders = {call.owner_ids for _, call in bench.coordinator.calls}
        assert {owners[0] for owners in orders} == {1, 2, 3}
        assert {tuple(sorted(owners)) for owners in orders} == {(1, 2, 3)}

    run_in_virtual_time(story)


# With failures --------------------------------------------------------------------------------------------


def test_during_an_outage_producers_time_out_and_buffers_stay_bounded_and_the_writer_recovers() -> None:
    async def story(machine: Machine) -> None:
        settings = WriterSettings(
            buffer_max_bytes=10_000, max_buffered_bytes=50_000, max_uploads=3, retries=QUICK
        )
        bench = Bench(machine, settings=settings, weather=StorageWeather(down=True))
        outcomes: list[AppendOutcome] = []
        for _ in range(30):
            answers = []
            while not bench.writer.is_full:
                answers.append(bench.append(key(), b"v" * 1_000, timeout_ms=3_000))
            assert bench.writer.buffered_bytes <= 52_000
            await until_room(bench.writer)
            outcomes += [await wait(answer) for answer in answers]
        assert {outcome.error for outcome in outcomes} == {ErrorCode.request_timed_out}
        assert bench.coordinator.calls == []
        assert bench.count("UploadsGivenUpPerSec") > 10
        late = bench.append(key(), b"late", timeout_ms=60_000)
        await asyncio.sleep(2)
        bench.weather.down = False
        begin = asyncio.get_running_loop().time()
        assert (await wait(late)).error is ErrorCode.none
        assert asyncio.get_running_loop().time() - begin < 1
        await bench.writer.close()
        assert len(bench.stored(key())) == 1
        assert len(bench.objects()) == 1

    run_in_virtual_time(story)


def test_batches_are_refused_when_the_buffer_has_twice_its_limit() -> None:
    async def story(machine: Machine) -> None:
        settings = WriterSettings(max_buffered_bytes=10_000, retries=QUICK)
        bench = Bench(machine, settings=settings, weather=StorageWeather(down=True))
        answers = [bench.append(key(), b"v" * 1_000, timeout_ms=1_000) for _ in range(30)]
        refused = [answer for answer in answers if isinstance(answer, AppendOutcome)]
        assert {outcome.error for outcome in refused} == {ErrorCode.kafka_storage_error}
        assert 10 <= len(refused) <= 13
        for answer in answers:
            await wait(answer)
        await bench.writer.close()

    run_in_virtual_time(story)


def test_each_producer_times_out_at_its_own_time_and_is_not_committed_later() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, weather=StorageWeather(down=True))
        loop = asyncio.get_running_loop()
        begin = loop.time()
        hasty = bench.append(key(), b"hasty", timeout_ms=500)
        hastier = bench.append(key(), b"hastier", timeout_ms=200)
        patient = bench.append(key(), b"patient", timeout_ms=10_000)
        assert (await wait(hastier)).error is ErrorCode.request_timed_out
        assert loop.time() - begin == pytest.approx(0.2, abs=0.01)
        assert (await wait(hasty)).error is ErrorCode.request_timed_out
        assert loop.time() - begin == pytest.approx(0.5, abs=0.01)
        bench.weather.down = False
        assert await wait(patient) == AppendOutcome(ErrorCode.none, 0, -1, 0)
        [content] = bench.stored(key())
        assert b"patient" in content

    run_in_virtual_time(story)


def test_an_unknown_commit_outcome_is_asked_again_by_key_until_known() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.lose_answer_chance = 1.0
        first = bench.append(key(), b"first")
        await asyncio.sleep(3)
        second = bench.append(key(), b"second")
        await asyncio.sleep(2)
        assert len(bench.coordinator.partitions[key()].committed) == 1
        assert len({call.object_key for _, call in bench.coordinator.calls}) == 1
        bench.coordinator.lose_answer_chance = 0.0
        assert (await wait(first)).base_offset == 0
        assert (await wait(second)).base_offset == 1
        assert len(bench.objects()) == 2

    run_in_virtual_time(story)


def test_producers_time_out_while_the_coordinator_is_away_and_their_object_is_removed_or_committed_once() -> (
    None
):
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.is_away = True
        asked = bench.append(key(), b"asked", timeout_ms=1_000)
        await asyncio.sleep(0.5)
        never_asked = bench.append(key(), b"never", timeout_ms=1_000)
        for answer in (asked, never_asked):
            assert (await wait(answer)).error is ErrorCode.request_timed_out
        # the bytes of batches that timed out still count towards the limit
        assert bench.writer.buffered_bytes > 0
        bench.coordinator.is_away = False
        await asyncio.sleep(1)
        assert bench.writer.buffered_bytes == 0
        [content] = bench.stored(key())
        assert b"asked" in content
        await bench.writer.close()
        assert len(bench.objects()) == 1

    run_in_virtual_time(story)


def test_a_definite_refusal_is_retriable_for_producers_and_frees_the_object() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.refuse_with = ErrorCode.invalid_timestamp
        assert (await wait(bench.append(key()))).error is ErrorCode.kafka_storage_error
        await bench.writer.close()
        assert bench.objects() == []

    run_in_virtual_time(story)


def test_a_refusal_after_an_unknown_outcome_does_not_claim_that_nothing_was_written() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        bench.coordinator.is_away = True
        answer = bench.append(key())
        await asyncio.sleep(0.5)
        bench.coordinator.refuse_with = ErrorCode.resource_not_found
        assert (await wait(answer)).error is ErrorCode.request_timed_out
        await bench.writer.close()
        assert len(bench.objects()) == 1  # the orphan scan will delete the object

    run_in_virtual_time(story)


# The end ---------------------------------------------------------------------------------------------------


def test_close_finishes_accepted_batches_and_accepts_no_more() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, weather=StorageWeather(put_latency=Latency(300, 900)))
        answer = bench.append(key())
        closing = asyncio.create_task(bench.writer.close())
        await asyncio.sleep(0)
        refused = bench.append(key())
        assert isinstance(refused, AppendOutcome)
        assert refused.error is ErrorCode.kafka_storage_error
        assert (await wait(answer)).error is ErrorCode.none
        await closing
        assert bench.count("FilesClosedPerSec", reason="flush") == 1

    run_in_virtual_time(story)


def test_close_gives_up_after_its_grace() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine, weather=StorageWeather(down=True))
        bench_answers = [bench.append(key(), b"v" * 100) for _ in range(3)]
        await bench.writer.close(grace_s=1)
        for answer in bench_answers:
            assert (await wait(answer)).error is ErrorCode.request_timed_out
        assert bench.writer.buffered_bytes == 0

    run_in_virtual_time(story)
