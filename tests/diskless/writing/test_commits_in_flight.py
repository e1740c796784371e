"""Several commits in progress at one coordinator, with a round trip of 2 ms, in virtual time."""

import asyncio
from dataclasses import replace

import pytest
from test_diskless_writer import QUICK
from writer_fakes import FakeCoordinator, batch, key, run_in_virtual_time

from moldau.coordinators.diskless.calls import FORGOTTEN, NUMBER_PASSED, CommitFileCall, CommitFileResult
from moldau.coordinators.diskless.calls.subjects.commit import COMMIT_FILE
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.writing.writer import DisklessWriter, WriterSettings
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, Latency, MemoryStorage, RetryPolicy, StorageWeather
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, KafkaError, Machine

ROUND_TRIP_S = 0.002


class DistantCoordinator(FakeCoordinator):
    """A coordinator at a distance of half a round trip. It decides commits in the order of their numbers.
    With an API version below 3, it decides commits in the order of their arrival."""

    version = 3
    epoch = 5

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.entropy)
        self._next = 0
        self._turn = asyncio.Condition()
        self.most_at_once = 0
        self._here = 0

    def commit_epoch(self) -> int:
        return self.epoch

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        request = COMMIT_FILE.ask(0, call, self.version, 1_000)
        place = COMMIT_FILE.arguments(request).place
        assert (place is None) == (self.version < 3 or self.epoch < 0)
        await asyncio.sleep(ROUND_TRIP_S / 2)
        self._here += 1
        self.most_at_once = max(self.most_at_once, self._here)
        try:
            if place is not None:
                async with self._turn:
                    await self._turn.wait_for(lambda: place.number <= max(self._next, place.open_from))
            result = await super().commit_file(coordinator_id, call)
            if place is not None:
                async with self._turn:
                    self._next = max(self._next, place.number + 1)
                    self._turn.notify_all()
        finally:
            self._here -= 1
        await asyncio.sleep(ROUND_TRIP_S / 2)
        return result


def writer_for(
    machine: Machine,
    coordinator: FakeCoordinator,
    in_flight: int = 8,
    retries: RetryPolicy = QUICK,
    meters: Meters | None = None,
) -> DisklessWriter:
    weather = StorageWeather(put_latency=Latency(1, 5))
    storage = FaultyStorage(MemoryStorage(machine.clock), machine.entropy, weather)
    settings = WriterSettings(
        buffer_max_bytes=100, commits_in_flight=in_flight, max_uploads=32, retries=retries
    )
    return DisklessWriter(
        storage,
        coordinator,
        machine,
        meters or Meters(),
        ObjectOrigin(3, machine.clock.now_ms),
        settings=settings,
    )


async def objects_per_second(machine: Machine, in_flight: int) -> float:
    coordinator = DistantCoordinator(machine)
    writer = writer_for(machine, coordinator, in_flight)
    begin = asyncio.get_running_loop().time()
    answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(400)]
    outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
    took = asyncio.get_running_loop().time() - begin
    assert [outcome.base_offset for outcome in outcomes] == list(range(400))
    await writer.close()
    return len(coordinator.calls) / took


def test_a_round_trip_of_two_milliseconds_does_not_limit_the_objects_per_second() -> None:
    """With only one commit in progress at a time, a coordinator commits at most 500 objects per second. With
    eight commits in progress, this limit does not apply."""

    async def story(machine: Machine) -> tuple[float, float]:
        return await objects_per_second(machine, 1), await objects_per_second(machine, 8)

    alone, together = run_in_virtual_time(story)
    assert alone < 500
    assert together > 2_000


@pytest.mark.parametrize("version", [2, 3])
def test_offsets_follow_the_order_of_the_batches_after_any_loss_of_messages(version: int) -> None:
    async def story(machine: Machine) -> None:
        coordinator = DistantCoordinator(machine)
        coordinator.version = version
        coordinator.lose_request_chance = coordinator.lose_answer_chance = 0.2
        coordinator.latency_s = 0.01
        writer = writer_for(machine, coordinator)
        answers = []
        for number in range(120):
            answers.append(writer.append(key(), *batch(b"%d" % number), timeout_ms=60_000))
            if number == 60:
                # From now on, the coordinator is on a broker that supports another version of the API.
                coordinator.version = 5 - version
            await asyncio.sleep(0.002)
        outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
        assert {outcome.error for outcome in outcomes} == {ErrorCode.none}
        assert [outcome.base_offset for outcome in outcomes] == list(range(120))
        assert coordinator.most_at_once > 1
        await writer.close()

    run_in_virtual_time(story)


def test_without_a_registration_commits_go_one_by_one() -> None:
    async def story(machine: Machine) -> None:
        coordinator = DistantCoordinator(machine)
        coordinator.epoch = -1
        writer = writer_for(machine, coordinator)
        answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(20)]
        assert not isinstance(answers[3], AppendOutcome)
        await answers[3]
        assert coordinator.most_at_once == 1
        coordinator.epoch = 6
        await writer.flush()
        assert coordinator.most_at_once > 1
        await writer.close()

    run_in_virtual_time(story)


def test_an_older_coordinator_gets_only_the_first_commit(caplog: pytest.LogCaptureFixture) -> None:
    async def story(machine: Machine) -> None:
        coordinator = DistantCoordinator(machine)
        coordinator.version = 2
        writer = writer_for(machine, coordinator)
        answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(20)]
        outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
        assert [outcome.base_offset for outcome in outcomes] == list(range(20))
        assert coordinator.most_at_once == 1
        await writer.close()

    run_in_virtual_time(story)
    assert not caplog.records, "a commit that waits for its turn has not failed"


def test_a_refused_commit_uses_its_number() -> None:
    """If the coordinator refuses a commit, later commits still get their responses. The number of the refused
    commit is not used again."""

    async def story(machine: Machine) -> None:
        coordinator = DistantCoordinator(machine)
        writer = writer_for(machine, coordinator)
        committed = coordinator.commit_file
        numbers: list[int] = []

        async def refuse_second(coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
            assert call.place is not None
            numbers.append(call.place.number)
            if call.place.number == 1:
                raise KafkaError(ErrorCode.invalid_timestamp, "too old")
            return await committed(coordinator_id, call)

        coordinator.commit_file = refuse_second  # type: ignore[method-assign]
        answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(4)]
        outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
        errors = [outcome.error is ErrorCode.none for outcome in outcomes]
        assert errors == [True, False, True, True]
        await writer.close()

    run_in_virtual_time(story)


def test_a_file_whose_producers_timed_out_leaves_no_gap_in_the_numbers() -> None:
    """If a number were skipped, a later commit would wait for this number at the coordinator."""

    class SlowAnswers(DistantCoordinator):
        async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
            assert call.place is not None
            if call.place.number == 0:
                await asyncio.sleep(1)
            result = await super().commit_file(coordinator_id, call)
            if call.place.number == 1:
                await asyncio.sleep(1)
            return result

    async def story(machine: Machine) -> None:
        writer = writer_for(machine, SlowAnswers(machine), in_flight=2)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answers = [
            writer.append(key(), *batch(b"%d" % number), timeout_ms=500 if number == 2 else 60_000)
            for number in range(4)
        ]
        last = answers[3]
        assert not isinstance(last, AppendOutcome)
        assert (await last).error is ErrorCode.none
        assert loop.time() - began_s < 2.1
        await writer.close()

    run_in_virtual_time(story)


@pytest.mark.parametrize("in_flight", [1, 8])
def test_numbers_that_the_coordinator_does_not_accept_are_abandoned(in_flight: int) -> None:
    """Another client has sent commits with this broker's numbers to the coordinator, so the coordinator
    refuses the broker's commits. The broker then stops using numbers. Otherwise every later commit of its
    process would be refused, too."""

    class UsedNumbers(DistantCoordinator):
        async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
            if self.epoch == 5 and call.place is not None and call.place.number >= 4:
                await asyncio.sleep(ROUND_TRIP_S)
                raise KafkaError(NUMBER_PASSED, "the number has passed")
            if call.place is None:
                return await FakeCoordinator.commit_file(self, coordinator_id, call)
            return await super().commit_file(coordinator_id, call)

    async def story(machine: Machine) -> None:
        coordinator = UsedNumbers(machine)
        coordinator.latency_s = ROUND_TRIP_S
        writer = writer_for(machine, coordinator, in_flight)

        async def appended(count: int) -> list[AppendOutcome]:
            answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(count)]
            return [one if isinstance(one, AppendOutcome) else await one for one in answers]

        outcomes = await appended(30)
        good = [outcome.base_offset for outcome in outcomes if outcome.error is ErrorCode.none]
        assert good == list(range(len(good)))
        assert len(good) >= 30 - in_flight
        assert {one.error for one in await appended(20)} == {ErrorCode.none}
        coordinator.epoch = 6  # the broker has registered again
        assert {one.error for one in await appended(20)} == {ErrorCode.none}
        places = [call.place for _, call in coordinator.calls]
        assert places.count(None) > 20
        assert places[-1] is not None
        assert places[-1].broker_epoch == 6
        await writer.close()

    run_in_virtual_time(story)


def test_an_object_that_is_too_old_does_not_end_the_use_of_numbers() -> None:
    """The coordinator has removed the result of one old object. It accepts the numbers of the other commits,
    so the broker continues to send several commits at a time."""

    class OneOldObject(DistantCoordinator):
        async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
            result = await super().commit_file(coordinator_id, call)
            assert call.place is not None, "the broker still uses numbers"
            if call.place.number == 1:
                raise KafkaError(FORGOTTEN, "so old that its outcome is not known any more")
            return result

    async def story(machine: Machine) -> None:
        coordinator = OneOldObject(machine)
        coordinator.latency_s = ROUND_TRIP_S
        writer = writer_for(machine, coordinator)
        answers = [writer.append(key(), *batch(b"%d" % n), timeout_ms=60_000) for n in range(20)]
        outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
        errors = [outcome.error is ErrorCode.none for outcome in outcomes]
        assert errors == [number != 1 for number in range(20)]
        await writer.close()

    run_in_virtual_time(story)


class LostRequests(DistantCoordinator):
    """A coordinator that never gets the first attempt of some commits. Each of these attempts fails with an
    error."""

    def __init__(self, machine: Machine, failures: dict[int, Exception]) -> None:
        super().__init__(machine)
        self.failures = failures

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        assert call.place is not None
        failure = self.failures.pop(call.place.number, None)
        if failure is not None:
            await asyncio.sleep(ROUND_TRIP_S)
            raise failure
        return await super().commit_file(coordinator_id, call)


class OneConnection(LostRequests):
    """Responses are sent in the order of the requests, as on one connection."""

    def __init__(self, machine: Machine, failures: dict[int, Exception]) -> None:
        super().__init__(machine, failures)
        self._last: asyncio.Future[None] | None = None

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        assert call.place is not None
        if call.place.number in self.failures:
            return await super().commit_file(coordinator_id, call)
        before, answered = self._last, asyncio.get_running_loop().create_future()
        self._last = answered
        try:
            result = await super().commit_file(coordinator_id, call)
            if before is not None:
                await before
            return result
        finally:
            answered.set_result(None)


async def seconds_of(writer: DisklessWriter, count: int) -> tuple[float, list[ErrorCode]]:
    """Append some batches. Returns the time until the last response, and the errors of all batches."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = []
    for number in range(count):
        answers.append(writer.append(key(), *batch(b"%d" % number), timeout_ms=60_000))
        await asyncio.sleep(ROUND_TRIP_S)
    outcomes = [one if isinstance(one, AppendOutcome) else await one for one in answers]
    return loop.time() - began_s, [outcome.error for outcome in outcomes]


@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.invalid_request, "odd"), ValueError("defect")])
def test_later_commits_do_not_wait_for_a_number_that_the_coordinator_never_got(failure: Exception) -> None:
    async def story(machine: Machine) -> tuple[float, list[ErrorCode]]:
        coordinator = LostRequests(machine, {1: failure})
        writer = writer_for(machine, coordinator)
        took = await seconds_of(writer, 6)
        await writer.close()
        return took

    took_s, errors = run_in_virtual_time(story)
    assert [error is ErrorCode.none for error in errors] == [True, False, True, True, True, True]
    assert took_s < QUICK.attempt_timeout_ms / 1000


def test_no_commit_is_sent_before_the_failed_ones_are_repeated() -> None:
    """The first two commits have failed. If a third commit were sent now, it would wait at the coordinator
    for the second commit. The second commit is repeated only after the response to the first commit. On the
    same connection, this response comes after the response to the third commit. So the second and the third
    commit would wait for each other."""

    async def story(machine: Machine) -> tuple[float, list[ErrorCode]]:
        lost = KafkaError(ErrorCode.network_exception, "reset")
        slow = replace(QUICK, first_backoff_ms=400, max_backoff_ms=400)
        writer = writer_for(machine, OneConnection(machine, {0: lost, 1: lost}), retries=slow)
        took = await seconds_of(writer, 6)
        await writer.close()
        return took

    took_s, errors = run_in_virtual_time(story)
    assert set(errors) == {ErrorCode.none}
    assert took_s < QUICK.attempt_timeout_ms / 1000


def test_the_pause_of_a_coordinator_is_metered() -> None:
    async def story(machine: Machine) -> tuple[int, float]:
        lost, meters = KafkaError(ErrorCode.network_exception, "reset"), Meters()
        slow = replace(QUICK, first_backoff_ms=400, max_backoff_ms=400)
        writer = writer_for(machine, OneConnection(machine, {1: lost}), retries=slow, meters=meters)
        await seconds_of(writer, 6)
        await writer.close()
        pauses = meters.scoped("moldau.diskless", "Writer").histogram("CommitPauseMs", "")
        return pauses.count, pauses.total

    count, total_ms = run_in_virtual_time(story)
    assert count == 1
    assert ROUND_TRIP_S * 1000 <= total_ms < 1_000
