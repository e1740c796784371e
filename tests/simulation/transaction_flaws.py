"""Flaws of transactions on classic partitions and in transaction coordinators. Stories of one node and of
clusters use them."""

from typing import Any

import pytest

from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.transactions.completion import TransactionCompletion
from moldau.replication.reads import PartitionReader
from moldau.storage.log.log_producers import LogProducers


def read_one_too_far_of_classic(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the last stable offset of classic partitions is one too high."""
    last_stable = LogProducers.last_stable_offset

    def one_more(self: Any, high_watermark: int) -> int:
        return min(high_watermark, last_stable(self, high_watermark) + 1)

    patch.setattr(LogProducers, "last_stable_offset", one_more)


def cut_the_aborted_list_of_classic(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a fetch from a classic partition lists all aborted transactions except the first
    transaction."""
    aborted = PartitionReader._aborted
    patch.setattr(PartitionReader, "_aborted", lambda self, offset, result: aborted(self, offset, result)[1:])


def leave_prepared_transactions(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator ignores prepared transactions in its log."""
    find_prepared = TransactionCompletion.find_prepared

    def find_when_active(self: Any, partition: int) -> None:
        if self._runtime.is_active(partition):
            find_prepared(self, partition)

    patch.setattr(TransactionCompletion, "find_prepared", find_when_active)


def commit_offsets_at_once(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: offsets are visible before their transaction is committed."""
    offsets_for = OffsetStore.offsets_for

    def committed_offsets_for(self: Any, group_id: str, topic: str, producer_id: int, _: bool) -> Any:
        return offsets_for(self, group_id, topic, producer_id, False)

    patch.setattr(OffsetStore, "offsets_for", committed_offsets_for)
