"""A coordinator raises an unexpected exception. Waiting requests then get an error, and the shard is loaded
again from its log."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from memory_coordinator_log import MemoryLog
from moldau.cluster.internal_topics import StateRetention, StateTopic
from moldau.coordinators.effects import BatchKind, Effects, Reply, SetTimer, TimerKey, Token, answer
from moldau.coordinators.kind import CoordinatorKind
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.shard import CommittedRecord
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors
from moldau.simulation.world.world import World


class Defect(Exception):
    """An exception of a type that no code expects."""


class Trap:
    """Raises an exception once, in the operation that the test chooses."""

    def __init__(self) -> None:
        self.place = ""

    def step(self, place: str) -> None:
        if self.place == place:
            self.place = ""
            raise Defect(place)


class WaitingShard:
    """A shard whose requests wait for a timer. A record is one number."""

    def __init__(self, trap: Trap) -> None:
        self._trap = trap
        self.numbers: list[int] = []
        self.waiting: list[Token] = []

    def replay(self, offset: int, record: int, kind: BatchKind) -> None:
        self._trap.step("replay")
        self.numbers.append(record)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        raise AssertionError("there are no transactions")

    def on_loaded(self, now_ms: int) -> Effects[int]:
        return Effects()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[int]:
        self._trap.step("timer")
        waiting, self.waiting = self.waiting, []
        return Effects(replies=[Reply(token, "late") for token in waiting])

    def wait(self, token: Token) -> Effects[int]:
        self.waiting.append(token)
        return Effects(timers=[SetTimer("answer", 100)])

    def add(self, number: int, token: Token) -> Effects[int]:
        self._trap.step("operation")
        return answer(token, "added", [number])


class Codec:
    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    def encode(self, record: int) -> tuple[bytes | None, bytes | None]:
        self._trap.step("encode")
        return b"n", str(record).encode()

    def decode(self, key: bytes | None, value: bytes | None) -> int | None:
        return int(value or b"0")


class Store:
    """A store that keeps no state, so that each load reads the whole log."""

    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    async def restore(self, shard: object) -> int | None:
        return 0

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None:
        if records:
            self._trap.step("store")

    async def close(self) -> None:
        pass


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


Write = Callable[[WaitingShard, int, Token], Effects[int]]


def add(number: int) -> Write:
    return lambda shard, now_ms, token: shard.add(number, token)


def wait(shard: WaitingShard, now_ms: int, token: Token) -> Effects[int]:
    return shard.wait(token)


@pytest.mark.parametrize("place", ["operation", "encode", "replay", "timer", "store"])
def test_no_request_waits_forever_and_the_next_request_is_served(place: str) -> None:
    async def story() -> None:
        trap, log, unexpected = Trap(), MemoryLog(), UnexpectedErrors()
        kind = CoordinatorKind(
            topic=StateTopic(name="t", retention=StateRetention.COMPACTED, factor_key="", saved_in_step=0),
            new_shard=lambda partition: WaitingShard(trap),
            codec=Codec(trap),
            new_store=lambda term: Store(trap),
        )
        runtime: CoordinatorRuntime[WaitingShard, int] = CoordinatorRuntime(kind, Clock(), unexpected)
        runtime.load(0, 1, log)
        await runtime.until_loaded(0)
        assert await runtime.write(0, add(1)) == "added"
        trap.place = place
        asked = [runtime.write(0, wait), runtime.write(0, add(2)), runtime.write(0, wait)]
        async with asyncio.timeout(1):
            found = await asyncio.gather(*asked, return_exceptions=True)
        errors = [error for error in found if isinstance(error, BaseException)]
        assert errors, "the trap was not met"
        assert all(isinstance(error, KafkaError) for error in errors)
        assert unexpected.count == 1
        while not runtime.is_active(0):
            await runtime.until_loaded(0)
        assert await runtime.write(0, add(3)) == "added"
        assert await runtime.write(0, wait) == "late"
        (shard,) = runtime.shards()
        assert shard.numbers[0] == 1
        assert shard.numbers[-1] == 3
        await runtime.close()

    with World(1) as world:
        world.run(story())
        assert not world.errors()


def test_the_error_of_a_defect_is_retriable_where_nothing_was_decided() -> None:
    """If a client repeats its request, the reloaded shard serves it."""

    async def story() -> None:
        trap = Trap()
        kind = CoordinatorKind(
            topic=StateTopic(name="t", retention=StateRetention.COMPACTED, factor_key="", saved_in_step=0),
            new_shard=lambda partition: WaitingShard(trap),
            codec=Codec(trap),
        )
        runtime: CoordinatorRuntime[WaitingShard, int] = CoordinatorRuntime(kind, Clock())
        runtime.load(0, 1, MemoryLog())
        await runtime.until_loaded(0)
        trap.place = "timer"
        with pytest.raises(KafkaError) as caught:
            await runtime.write(0, wait)
        assert caught.value.code is ErrorCode.coordinator_not_available
        await runtime.close()

    with World(1) as world:
        world.run(story())
