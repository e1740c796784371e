"""Transactions write to diskless partitions, to a classic partition and to committed offsets. The story must
also detect mutants."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from moldau.coordinators.diskless.calls import GuardToIssue, IssuedGuard
from moldau.coordinators.diskless.state import commit
from moldau.coordinators.diskless.state.guards import TransactionGuards
from moldau.coordinators.diskless.state.producers import Verdict
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode
from moldau.server.subsystems.transactions.markers import LocalMarkers
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORY = "diskless-transactions"


@pytest.mark.parametrize("seed", [0, 2])
def test_transactions_are_all_or_none(seed: int) -> None:
    found = run_seed(SCENARIOS[STORY](), seed)
    assert not found.violations, f"repeat with: python -m moldau.simulation --node {STORY}"
    assert found.history.notes


def forget_a_marker(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker reports that it has written markers of a diskless partition although it has
    not."""
    write = LocalMarkers.write

    async def write_most(self: Any, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        if partition == TopicPartition("events", 1):
            return ErrorCode.none
        return await write(self, marker, partition)

    patch.setattr(LocalMarkers, "write", write_most)


def read_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the last stable offset of local segments is one too high."""
    stable = vars(PartitionCache)["local_stable_offset"].fget
    one_more = property(lambda self: min(self.local_end_offset, stable(self) + 1))
    patch.setattr(PartitionCache, "local_stable_offset", one_more)


def cut_the_aborted_list(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a fetch lists all aborted transactions except the first transaction."""
    aborted = PartitionCache.local_aborted
    patch.setattr(PartitionCache, "local_aborted", lambda self, *read: aborted(self, *read)[1:])


def check_no_guard(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator accepts transactional batches with any guard."""
    patch.setattr(TransactionGuards, "is_valid", lambda self, key, epoch, guard: True)


def fence_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator accepts batches of any epoch while a transaction is open."""
    check = commit.check_sequence

    def check_all_but_epochs(window: Any, epoch: int, base_sequence: int, delta: int) -> Any:
        verdict = check(window, epoch, base_sequence, delta)
        return None if verdict is Verdict.STALE_EPOCH else verdict

    def guard(self: DisklessShard, wanted: GuardToIssue, fresh: int) -> IssuedGuard:
        return IssuedGuard(wanted.topic_id, wanted.partition_index, guard=1)

    patch.setattr(commit, "check_sequence", check_all_but_epochs)
    patch.setattr(DisklessShard, "guard", guard)
    patch.setattr(TransactionGuards, "is_valid", lambda self, key, epoch, guard: True)


@pytest.mark.parametrize(
    ("mutate", "seeds"),
    [
        (forget_a_marker, range(4)),
        (read_one_too_far, range(2, 6)),
        (cut_the_aborted_list, range(4)),
        (check_no_guard, (12, 20, 33, 42, 45)),
        (fence_no_epoch, (5, 12, 14, 16, 17)),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], seeds: Iterable[int]) -> None:
    """A change of the times of requests may hide a defect in a single seed, so several are tried."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        caught = any(run_seed(SCENARIOS[STORY](), seed).violations for seed in seeds)
    assert caught, f"{mutate.__doc__} is missed"
