"""Transactions over diskless and classic partitions. The brokers of the cluster are killed. The story must
detect the mutants in the lists of this module.

With MUTANT_SEEDS=N, every mutant runs with the seeds from 0 up to N until one seed finds it.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from test_diskless_transactions import (
    check_no_guard,
    cut_the_aborted_list,
    fence_no_epoch,
    forget_a_marker,
    read_one_too_far,
)
from transaction_flaws import (
    commit_offsets_at_once,
    cut_the_aborted_list_of_classic,
    leave_prepared_transactions,
    read_one_too_far_of_classic,
)

from moldau.coordinators.diskless.state import commit
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode
from moldau.server.handlers.records.transaction_markers import Participation
from moldau.server.subsystems.transactions.markers import LocalMarkers
from moldau.server.subsystems.transactions.verifier import TransactionVerifier
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.transactions.lists import check_lists
from moldau.simulation.transactions.reader import CommittedRead
from moldau.simulation.transactions.record import Fate, RecordedTransaction

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORY = "transactions-cluster"
SEEDS = int(os.environ.get("MUTANT_SEEDS", "0"))


@pytest.mark.parametrize("seed", [0, 1])
def test_lists_agree_with_the_outcomes(seed: int) -> None:
    found = run_seed(SCENARIOS[STORY](), seed)
    assert not found.violations, f"repeat with: python -m moldau.simulation --node {STORY}"
    committed = [line for line in found.history.notes if line.endswith(f"is {Fate.COMMITTED.value}")]
    assert {line.split("/")[0] for line in committed} == {f"transactions-{number}" for number in range(3)}
    assert len(committed) > 12


def forget_a_classic_marker(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker reports that it has written markers of a classic partition although it has
    not."""
    write = LocalMarkers.write

    async def write_most(self: Any, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        if partition == TopicPartition("plain", 1):
            return ErrorCode.none
        return await write(self, marker, partition)

    patch.setattr(LocalMarkers, "write", write_most)


def store_repeated_batches(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a diskless coordinator stores a batch twice if a producer sends it again."""
    check = commit.check_sequence

    def forgetful(window: Any, *batch: Any) -> Any:
        verdict = check(window, *batch)
        return None if isinstance(verdict, tuple) else verdict

    patch.setattr(commit, "check_sequence", forgetful)


def join_without_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker writes batches of version 2 to partitions that have not joined the
    transaction."""
    admit = TransactionVerifier.verify

    async def verify_at_once(self: Any, wanted: Participation) -> None:
        if wanted.partition.partition != 1:
            await admit(self, wanted)

    patch.setattr(TransactionVerifier, "verify", verify_at_once)


Mutant = Callable[[pytest.MonkeyPatch], None]
PINNED: dict[Mutant, int] = {join_without_the_coordinator: 0, store_repeated_batches: 0}
"""Mutants that need several brokers or lost responses, and seeds that find them. Shorter stories find the
others."""
ALL: Iterable[Mutant] = (
    *PINNED,
    leave_prepared_transactions,
    check_no_guard,
    commit_offsets_at_once,
    cut_the_aborted_list,
    cut_the_aborted_list_of_classic,
    fence_no_epoch,
    forget_a_classic_marker,
    forget_a_marker,
    read_one_too_far,
    read_one_too_far_of_classic,
)


@pytest.mark.parametrize("mutate", ALL if SEEDS else PINNED, ids=lambda each: each.__name__)
def test_a_mutant_of_a_cluster_is_caught(mutate: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(SEEDS) if SEEDS else [PINNED[mutate]]:
            found = run_seed(SCENARIOS[STORY](), seed)
            if found.violations:
                print(f"seed {seed} finds it: {found.violations[0]}")
                return
    pytest.fail(f"{mutate.__doc__} is missed")


def test_the_checker_of_lists_finds_early_reads_gaps_and_writes_against_the_order() -> None:
    first = RecordedTransaction("a", "g", 0, Fate.COMMITTED, {0: ["x"]}, -1, 0.0, 1.0, 2.0)
    second = RecordedTransaction("b", "g", 1, Fate.COMMITTED, {0: ["y"]}, -1, 3.0, 4.0, 5.0)
    x, y = CommittedRead(0, "x", 9.0), CommittedRead(2, "y", 9.0)
    assert check_lists([first, second], {0: [x, y]}, {"c": {0: [x, y]}}) == []
    (early,) = check_lists([first, second], {0: [x, y]}, {"c": {0: [CommittedRead(0, "x", 0.5)]}})
    assert "G1a" in early
    (gap,) = check_lists([first, second], {0: [x, y]}, {"c": {0: [y]}})
    assert "where the list has" in gap
    (cycle,) = check_lists([first, second], {0: [CommittedRead(0, "y", 9.0), CommittedRead(2, "x", 9.0)]}, {})
    assert "G0" in cycle
