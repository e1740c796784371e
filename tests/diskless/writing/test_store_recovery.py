"""A store that loses responses, resets connections, throttles, or does not respond. Later it recovers."""

import asyncio

import pytest
from writer_fakes import FakeCoordinator, batch, key, run_in_virtual_time

from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.settings import DisklessSettings
from moldau.diskless.writing.writer import DisklessWriter
from moldau.metrics import Meters
from moldau.objects import (
    Latency,
    MemoryStorage,
    RetryingStorage,
    StorageError,
    StorageSettings,
    ThrottledError,
)
from moldau.objects.hedging import HedgeBudget, Patience, hedged
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, Machine
from moldau.runtime.buffers import Buffer

FOR_EVER_S = 3_600.0
BAD_S, WELL_S = 20.0, 30.0
LATENCY = Latency(30, 90)


class MoodyStorage(MemoryStorage):
    """A store in memory with a faulty connection to its clients."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.clock)
        self._entropy = machine.entropy
        self.mood = ""
        self.uploads = 0

    async def upload(self, object_key: str, data: Buffer, length: int) -> None:
        self.uploads += 1
        await asyncio.sleep(LATENCY.draw_ms(self._entropy) / 1000)
        chance = self._entropy.uniform(0, 1)
        if self.mood == "resets" and chance < 0.5:
            raise StorageError("the connection was reset")
        if self.mood == "throttles" and chance < 0.9:
            raise ThrottledError("503 SlowDown")
        if self.mood == "silent":
            await asyncio.sleep(FOR_EVER_S)
        await super().upload(object_key, data, length)
        if self.mood == "loses answers" and chance < 0.4:
            await asyncio.sleep(FOR_EVER_S)


class Bench:
    def __init__(self, machine: Machine) -> None:
        self.storage = MoodyStorage(machine)
        retries = DisklessSettings(StorageSettings("memory://")).retries
        behind = RetryingStorage(self.storage, machine.entropy, policy=retries)
        coordinator = FakeCoordinator(machine.entropy)
        self.writer = DisklessWriter(
            behind, coordinator, machine, Meters(), ObjectOrigin(1, machine.clock.now_ms)
        )
        self.answered: list[tuple[float, float, ErrorCode]] = []

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        records, header = batch()
        answer = self.writer.append(key(), records, header, timeout_ms=30_000)
        outcome = answer if isinstance(answer, AppendOutcome) else await answer
        self.answered.append((begin, loop.time(), outcome.error))

    async def load(self, seconds: float) -> list[asyncio.Task[None]]:
        """Send twenty batches a second."""
        tasks = []
        for _ in range(int(seconds * 20)):
            tasks.append(asyncio.create_task(self._send()))
            await asyncio.sleep(0.05)
        return tasks


@pytest.mark.parametrize("mood", ["loses answers", "resets", "throttles", "silent"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_producers_are_served_again_within_two_seconds(mood: str, seed: int) -> None:
    """The outage causes no error for a producer, and only few requests to the store."""

    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        tasks = await bench.load(5)
        well = bench.storage.uploads
        bench.storage.mood = mood
        tasks += await bench.load(BAD_S)
        asked = bench.storage.uploads - well
        bench.storage.mood = ""
        healed = asyncio.get_running_loop().time()
        tasks += await bench.load(WELL_S)
        await asyncio.gather(*tasks)
        assert {error for _, _, error in bench.answered} == {ErrorCode.none}
        assert min(end for _, end, _ in bench.answered if end > healed) - healed < 2.0
        late = [end for begin, end, _ in bench.answered if end > healed and end - begin > 1.0]
        assert max(late, default=healed) - healed < 2.0
        # If the store refuses or resets requests quickly, the writer repeats them quickly, so the test does
        # not limit their number.
        if mood in ("silent", "loses answers"):
            assert asked < 15 * BAD_S
        if mood == "loses answers":
            # If five responses in a row get lost, the upload takes 1.75 seconds.
            assert max(end - begin for begin, end, _ in bench.answered) < 3.5
        await bench.writer.close()

    run_in_virtual_time(story, seed)


def test_a_store_that_does_not_respond_gets_only_a_few_requests_a_second() -> None:
    async def story(machine: Machine) -> None:
        bench = Bench(machine)
        tasks = await bench.load(2)
        bench.storage.mood = "silent"
        before = bench.storage.uploads
        tasks += await bench.load(60)
        assert bench.storage.uploads - before < 60 * 8
        bench.storage.mood = ""
        healed = asyncio.get_running_loop().time()
        tasks += await bench.load(10)
        await asyncio.gather(*tasks)
        late = [end for begin, end, _ in bench.answered if end > healed and end - begin > 1.0]
        assert max(late) - healed < 2.0
        await bench.writer.close()

    run_in_virtual_time(story)


def test_slow_uploads_are_not_made_twice() -> None:
    """The writer waits for an upload that always takes five seconds, and does not repeat it."""

    async def story(machine: Machine) -> None:
        patience, budget = Patience(1.5), HedgeBudget()
        made = 0

        async def upload() -> str:
            nonlocal made
            made += 1
            await asyncio.sleep(5.0 + machine.entropy.uniform(-0.5, 0.5))
            return "stored"

        loop = asyncio.get_running_loop()
        for _ in range(5):
            assert await hedged(upload, patience, budget, loop.time() + 15) == "stored"
        learned = made
        for _ in range(40):
            assert await hedged(upload, patience, budget, loop.time() + 15) == "stored"
        assert made - learned <= 42

    run_in_virtual_time(story)


@pytest.mark.parametrize("slow_s", [2.5, 5.0, 12.0])
def test_a_store_that_becomes_slow_is_awaited(slow_s: float) -> None:
    """An additional attempt does not cancel the first attempt. So the first attempt ends after some time, and
    its duration shows the current latency of the store. Later uploads then wait longer before they start
    additional attempts."""

    async def story(machine: Machine) -> None:
        patience, budget = Patience(1.0), HedgeBudget()
        for _ in range(50):
            patience.took(0.06)
        made = 0

        async def upload() -> str:
            nonlocal made
            made += 1
            await asyncio.sleep(slow_s)
            return "stored"

        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert await hedged(upload, patience, budget, begin + 15) == "stored"
        assert loop.time() - begin == pytest.approx(slow_s, abs=0.01)
        for _ in range(5):
            assert await hedged(upload, patience, budget, loop.time() + 15) == "stored"
        learned = made
        for _ in range(10):
            assert await hedged(upload, patience, budget, loop.time() + 15) == "stored"
        assert made - learned <= 12

    run_in_virtual_time(story)


def test_answers_that_are_lost_one_after_another_cost_less_each_time() -> None:
    async def story(machine: Machine) -> None:
        patience, loop, begun = Patience(1.0), asyncio.get_running_loop(), []
        patience.took(0.1)

        async def attempt() -> None:
            begun.append(loop.time() - begin)
            await asyncio.sleep(FOR_EVER_S if len(begun) <= 4 else 0.1)

        begin = loop.time()
        await hedged(attempt, patience, HedgeBudget(), begin + 15)
        assert begun == pytest.approx([0.0, 1.0, 1.3, 1.6, 1.9], abs=0.02)

    run_in_virtual_time(story)


def test_the_oldest_request_gets_the_next_added_attempt() -> None:
    budget = HedgeBudget(per_second=1, burst=1)
    assert budget.spend(10.0, "third", 3.0)
    assert not budget.spend(10.1, "first", 1.0)
    assert not budget.spend(10.2, "second", 2.0)
    assert not budget.spend(11.5, "second", 2.0)
    assert budget.spend(11.6, "first", 1.0)
    assert not budget.spend(12.0, "third", 3.0)
    budget.leave("second")
    assert budget.spend(12.8, "third", 3.0)


def test_the_first_answer_counts_and_the_other_attempt_ends() -> None:
    async def story(machine: Machine) -> None:
        patience, budget = Patience(1.0), HedgeBudget()
        patience.took(0.1)
        loop, ended = asyncio.get_running_loop(), []
        delays = iter([FOR_EVER_S, 0.2])

        async def attempt() -> float:
            delay_s = next(delays)
            try:
                await asyncio.sleep(delay_s)
            finally:
                ended.append(delay_s)
            return delay_s

        begin = loop.time()
        assert await hedged(attempt, patience, budget, begin + 15) == 0.2
        assert loop.time() - begin < 1.5
        assert ended == [0.2, FOR_EVER_S]

    run_in_virtual_time(story)


def test_an_error_counts_when_no_attempt_is_left() -> None:
    async def story(machine: Machine) -> None:
        patience, budget = Patience(1.0), HedgeBudget()
        patience.took(0.1)
        loop = asyncio.get_running_loop()
        outcomes = iter([(3.0, ""), (0.1, "throttled"), (0.0, "refused")])

        async def attempt() -> str:
            delay_s, error = next(outcomes)
            await asyncio.sleep(delay_s)
            if error:
                raise StorageError(error)
            return "stored"

        assert (
            await hedged(attempt, patience, HedgeBudget(per_second=0, burst=1), loop.time() + 15) == "stored"
        )
        with pytest.raises(StorageError, match="refused"):
            await hedged(attempt, patience, budget, loop.time() + 15)

    run_in_virtual_time(story)


def test_a_refused_attempt_is_made_when_the_budget_allows_it() -> None:
    """Without the refused attempt, an upload would wait for its first attempt until the time limit. Then the
    oldest object would delay the commits of all later objects."""

    async def story(machine: Machine) -> None:
        patience, budget = Patience(1.0), HedgeBudget(per_second=4, burst=1)
        patience.took(0.1)
        loop, begun = asyncio.get_running_loop(), []

        async def attempt() -> None:
            begun.append(loop.time() - begin)
            await asyncio.sleep(FOR_EVER_S if len(begun) <= 6 else 0.1)

        begin = loop.time()
        waits = [hedged(attempt, patience, budget, begin + 15) for _ in range(3)]
        await asyncio.gather(*waits, return_exceptions=True)
        assert begun[:6] == pytest.approx([0.0, 0.0, 0.0, 1.0, 1.25, 1.5], abs=0.02)

    run_in_virtual_time(story)


def test_the_limit_ends_all_attempts() -> None:
    async def story(machine: Machine) -> None:
        patience, running = Patience(1.0), 0
        loop = asyncio.get_running_loop()

        async def attempt() -> None:
            nonlocal running
            running += 1
            try:
                await asyncio.sleep(FOR_EVER_S)
            finally:
                running -= 1

        begin = loop.time()
        with pytest.raises(TimeoutError):
            await hedged(attempt, patience, HedgeBudget(), begin + 15)
        assert loop.time() - begin == pytest.approx(15)
        assert running == 0

    run_in_virtual_time(story)
