"""The checkers at the end of simulated clusters with diskless topics: every referenced object must exist, and
the caches of all replicas must have the same bytes. Inserted defects show that each checker detects what it
is for."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from crc32c import crc32c

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.upkeep.orphans import OrphanScan
from moldau.records.batch import CHECKED_FROM, HEADER_SIZE_BYTES, iter_headers
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.world.loop import SimulatedLoop, current_process

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

FAULTY_HOST = "node-2"
CRC_AT = 17


def test_every_object_is_referenced_and_exists_after_the_store_was_down() -> None:
    assert run_seed(SCENARIOS["diskless-cluster-store"](), 1).violations == []


def orphan_scan_asks_nobody(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the orphan scan believes that no coordinator knows any object."""

    async def unknown(
        keys: list[str],
        coordinator_ids: Sequence[int],
        ask: Callable[[int, list[str]], Awaitable[list[str]]],
    ) -> list[str]:
        return keys

    patch.setattr(OrphanScan, "_unknown_to_all", staticmethod(unknown))


def one_cache_flips_a_byte(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the caches of one broker store another byte in the first record of each batch, with
    the right CRC. Clients ignore this byte, which has the attributes of the record."""
    store = PartitionCache._to_log

    def flipped(self: PartitionCache, batches: memoryview) -> None:
        host = current_process(cast(SimulatedLoop, asyncio.get_running_loop())).host
        if host is not None and host.name == FAULTY_HOST:
            batches = memoryview(with_another_byte(batches))
        store(self, batches)

    patch.setattr(PartitionCache, "_to_log", flipped)


def with_another_byte(batches: memoryview) -> bytearray:
    """A copy of the batches, with other attributes of each batch's first record."""
    copy = bytearray(batches)
    for position, header in iter_headers(batches):
        at = position + HEADER_SIZE_BYTES
        while copy[at] & 0x80:  # the bytes of the record's length, except for the last byte
            at += 1
        copy[at + 1] ^= 1
        end = position + header.size_bytes
        checksum = crc32c(memoryview(copy)[position + CHECKED_FROM : end])
        copy[position + CRC_AT : position + CRC_AT + 4] = checksum.to_bytes(4, "big")
    return copy


SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""
FLAWS: list[Any] = [
    (orphan_scan_asks_nobody, "diskless-cluster-store", 0, "is missing, which holds"),
    (one_cache_flips_a_byte, "diskless-cluster", 0, "are not equal at"),
]
"""Each flaw with a story that detects it, its first seed, and a part of the violation."""


@pytest.mark.parametrize(
    ("flaw", "story", "seed", "violation"), FLAWS, ids=[flaw.__name__ for flaw, *_ in FLAWS]
)
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None],
    story: str,
    seed: int,
    violation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flaw(monkeypatch)
    scenario = SCENARIOS[story]()
    assert any(
        violation in each
        for number in range(seed, seed + SEEDS_MAX)
        for each in run_seed(scenario, number).violations
    )
