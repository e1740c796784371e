"""Transactions and kills. No reader sees aborted records or a part of a transaction, no record is lost, and
no fenced producer can write. Mutants are detected."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from transaction_flaws import (
    commit_offsets_at_once,
    cut_the_aborted_list_of_classic,
    leave_prepared_transactions,
    read_one_too_far_of_classic,
)

from moldau.protocol.partitions import TopicPartition
from moldau.replication.appending.transactions import TransactionChecks
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode
from moldau.server.subsystems.transactions.markers import LocalMarkers
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.transactions.record import Fate, RecordedTransaction, check_transactions
from moldau.storage.producers import producer_state

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = (1, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_are_all_or_none(seed: int) -> None:
    found = run_seed(SCENARIOS["transactions"](), seed)
    assert not found.violations, "repeat with: python -m moldau.simulation --node transactions"
    assert found.history.notes


def forget_a_marker(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker reports that it has written the markers of partition 1 although it has
    not."""
    write = LocalMarkers.write

    async def write_most(self: Any, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode:
        if partition.partition == 1 and not partition.topic.startswith("__"):
            return ErrorCode.none
        return await write(self, marker, partition)

    patch.setattr(LocalMarkers, "write", write_most)


def fence_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a partition accepts batches of any epoch while a transaction is open."""
    is_open = TransactionChecks._is_open

    def is_open_for_anybody(self: Any, producer_id: int, producer_epoch: int) -> bool:
        entry = self._log.producer(producer_id)
        newest = producer_epoch if entry is None else max(producer_epoch, entry.producer_epoch)
        return is_open(self, producer_id, newest)

    patch.setattr(TransactionChecks, "_is_open", is_open_for_anybody)
    patch.setattr(producer_state, "_check_epoch", lambda entry, epoch: None)
    patch.setattr(producer_state, "_check_sequence", lambda entry, header: None)


@pytest.mark.parametrize(
    ("mutate", "seed"),
    [
        (forget_a_marker, 1),
        (read_one_too_far_of_classic, 1),
        (cut_the_aborted_list_of_classic, 1),
        (fence_no_epoch, 1),
        (leave_prepared_transactions, 1),
        (commit_offsets_at_once, 3),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        assert run_seed(SCENARIOS["transactions"](), seed).violations, f"{mutate.__doc__} is missed"


def _transaction(fate: Fate, values: Iterable[str], offset: int = -1) -> RecordedTransaction:
    return RecordedTransaction("t", "g", 0, fate, {0: list(values)}, offset)


@pytest.mark.parametrize(
    ("fate", "read", "reason"),
    [
        (Fate.COMMITTED, ["a"], "lost 1 of 2"),
        (Fate.ABORTED, ["a", "b"], "G1a"),
        (Fate.UNKNOWN, ["b"], "in part"),
        (Fate.COMMITTED, ["b", "a"], "out of order"),
        (Fate.COMMITTED, ["a", "b", "b"], "twice"),
        (Fate.COMMITTED, ["a", "b", "zombie of t"], "fenced producer"),
    ],
)
def test_the_checker_finds_violations(fate: Fate, read: list[str], reason: str) -> None:
    (found,) = check_transactions([_transaction(fate, ["a", "b"])], {0: read}, {}, {})
    assert reason in found


def test_the_checker_compares_offsets_and_intermediate_reads() -> None:
    transactions = [_transaction(Fate.COMMITTED, ["a"], 7)]
    assert check_transactions(transactions, {0: ["a"]}, {0: ["a"]}, {"g": 7}) == []
    assert check_transactions(transactions, {0: ["a"]}, {}, {"g": 6})
    assert check_transactions(transactions, {0: ["a"]}, {0: ["a", "b"]}, {"g": 7})
