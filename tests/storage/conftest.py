"""A machine with a disk in memory and a clock that tests move."""

import asyncio

import pytest
from memory_disk import MemoryDisk

from moldau.runtime import InlineWorkers, Machine, SeededEntropy


class StoppedClock:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


class TestMachine:
    """A machine with fake ports. The code under test uses ``machine``."""

    __test__ = False

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = StoppedClock()
        self.machine = Machine(self.clock, SeededEntropy(1), self.disk, InlineWorkers())
        # The clock for deletions ignores jumps of the machine's clock. A test moves the fake clock only in
        # small steps, so the fake clock is also the clock for deletions.
        object.__setattr__(self.machine, "deletion_clock", self.clock)

    def run(self, awaitable):  # type: ignore[no-untyped-def]
        return asyncio.run(awaitable)


@pytest.fixture
def box() -> TestMachine:
    return TestMachine()


@pytest.fixture(scope="session")
def new_box() -> type[TestMachine]:
    return TestMachine
