"""Slices of different kinds alternate in one run, on the same nodes, topics and connections.

A p99 depends on a few slow requests, so the p99 values of two separate runs can hardly be compared. Each
slice is compared with its neighbours, which ran under the same conditions. The comparison is the ratio of the
two p99 values, and the cost of a kind of slice is the median of these ratios.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from bench.brokers import TICKS_PER_S, Broker
from bench.measuring.process_tree import cpu_seconds, spent

STOP_TIMEOUT_S: Final = 30.0
Slice: TypeAlias = dict[str, float]


class Steered:
    """A load of :mod:`bench.loads.tiered_load` in its own process."""

    def __init__(self, load: str, spec: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "bench.loads.tiered_load", load, json.dumps(spec)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Slice:
        """Wait for the next line of the load."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a load ended early")
        found: Slice = json.loads(line)
        return found

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def steered(load: str, **spec: Any) -> Iterator[Steered]:
    """A running load, until the end of the block."""
    process = Steered(load, spec)
    try:
        yield process
    finally:
        process.stop()


def produce_for(producer: Steered, broker: Broker, topic: str, seconds: float) -> Slice:
    """A slice of the steady producer, with the broker's share of a core during the slice.

    ``others_share`` is the share of all other processes. If it is high, the slice has little meaning.
    """
    before, ours_before, all_before, start = broker.usage(), cpu_seconds(), busy_s(), time.perf_counter()
    producer.tell(topic=topic, seconds=seconds)
    found = producer.answer()
    wall_s = time.perf_counter() - start
    found["broker_share"] = (broker.usage().cpu_s - before.cpu_s) / wall_s
    found["others_share"] = (busy_s() - all_before - spent(ours_before, cpu_seconds())) / wall_s
    return found


def busy_s() -> float:
    """CPU seconds of the whole machine, since it was started."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
        int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts) / TICKS_PER_S


class Ratios(NamedTuple):
    """The median and the quartiles of some ratios. Each ratio compares the p99 values of two slices."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratios(above: Sequence[Slice], below: Sequence[Slice]) -> Ratios:
    """Divide the p99 of each slice in ``above`` by the p99 of the slice in ``below`` that was measured in the
    same round.
    """
    found = sorted(one["ack_p99_ms"] / other["ack_p99_ms"] for one, other in zip(above, below, strict=True))
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return Ratios(median, low, high)


def median_of(slices: Sequence[Slice], name: str) -> float:
    return statistics.median(each[name] for each in slices)


def in_turns(kinds: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield the order of the kinds in each round. Each kind is first in about the same number of rounds, and
    last in about the same number of rounds."""
    for number in range(rounds):
        turn = number // 2 % len(kinds)
        order = (*kinds[turn:], *kinds[:turn])
        yield order if number % 2 else order[::-1]
