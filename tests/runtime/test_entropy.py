"""Random bytes of the operating system: the UUIDs made from them, and the number of reads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from moldau.runtime.entropy import SystemEntropy


def test_a_thousand_values_read_the_system_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    original = os.urandom

    def urandom(size: int) -> bytes:
        nonlocal reads
        reads += 1
        return original(size)

    monkeypatch.setattr("os.urandom", urandom)
    monkeypatch.setattr("random._urandom", urandom)
    entropy = SystemEntropy()
    for _ in range(1_000):
        entropy.uuid4()
        entropy.randrange(7)
        entropy.shuffled((1, 2, 3))
        entropy.uniform(0.0, 1.0)
    assert reads <= 5


def test_threads_never_share_a_uuid() -> None:
    entropy = SystemEntropy()
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda _: [entropy.uuid4() for _ in range(2_000)], range(8)))
    made = [each for part in parts for each in part]
    assert len(set(made)) == len(made)
    assert {each.version for each in made} == {4}
