"""Tests insert defects, after which the state of a coordinator differs from the state that a replay of its
log gives. The stories must detect these mutants.

The tests of diskless topics and of offsets check that every run of a node compares the state with the log.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from loading_flaws import ignore_records

from memory_coordinator_log import MemoryLog
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC, DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.state.records import TopicDeleted
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.coordinators.effects import answer
from moldau.coordinators.loader import ShardLoader
from moldau.coordinators.log import LogUpTo
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

MUTANT_SEEDS = range(3)


def test_a_reference_state_contains_only_committed_records() -> None:
    """The reference is the state that a replay of the log gives. The replay must end at the high watermark,
    because a loss of power may remove later records even from a synced log."""
    log = MemoryLog()
    log.append(_a_batch())
    log.held = True
    log.append(_a_batch())
    committed = asyncio.run(LogUpTo(log, log.high_watermark).read(0, 1 << 20))
    assert bytes(committed) == log.batches[0]
    assert asyncio.run(LogUpTo(log, log.log_end_offset).read(0, 1 << 20)) == b"".join(log.batches)


def _a_batch() -> bytearray:
    return bytearray(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))


def expire_producers_without_a_record(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: an operation removes producers from the state, which only a replay may do."""

    def expire(shard: Any, token: Any, now_ms: int, cluster_ms: int | None = None) -> Any:
        shard.partitions.expire_producers(now_ms)
        return answer(token, None)

    patch.setattr(DisklessShard, "expire", expire)


def restore_one_result_short(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the store restores all stored responses except the oldest one."""
    load = DisklessStore._load

    async def load_most(store: Any, shard: Any, materialiser: Any) -> None:
        await load(store, shard, materialiser)
        oldest = next(iter(shard.files._results), None)
        shard.files._results.pop(oldest, None)

    patch.setattr(DisklessStore, "_load", load_most)


def ignore_deleted_topics_on_load(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator that loads its log keeps topics that the log has deleted."""
    replay = ShardLoader._replay_record

    def replay_most(loader: Any, header: Any, entry: Any) -> None:
        is_of_node = loader._name.startswith(DISKLESS_METADATA_TOPIC)
        if not (is_of_node and isinstance(loader._codec.decode(entry.key, entry.value), TopicDeleted)):
            replay(loader, header, entry)

    patch.setattr(ShardLoader, "_replay_record", replay_most)


def ignore_the_last_commit_on_load(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a group coordinator that loads its log stops one record before the end."""

    def is_last(loader: Any, entry: Any) -> bool:
        is_at_end: bool = entry.offset == loader._log.log_end_offset - 1
        return is_at_end and loader._name.startswith(CONSUMER_OFFSETS_TOPIC)

    ignore_records(patch, is_last)


@pytest.mark.parametrize(
    ("mutate", "name"),
    [
        (expire_producers_without_a_record, "diskless"),
        (restore_one_result_short, "diskless-stop"),
        (ignore_deleted_topics_on_load, "diskless-power"),
        (ignore_the_last_commit_on_load, "offsets"),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], name: str) -> None:
    scenario = SCENARIOS[name]()
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        assert any(map(_finds_another_state, (run_seed(scenario, seed).violations for seed in MUTANT_SEEDS)))


def _finds_another_state(violations: list[str]) -> bool:
    return any("from its log: " in text for text in violations)
