"""The transaction index uses binary search, so a lookup takes little time even after many earlier aborted
transactions."""

from collections.abc import Sequence
from typing import overload

from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.transaction_index import ended_from


class MillionTransactions(Sequence[AbortedEntry]):
    """An index in which entry n ends at offset 3n. It counts the accesses to its entries."""

    looked_at = 0

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> AbortedEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AbortedEntry]: ...
    def __getitem__(self, index: int | slice) -> AbortedEntry | Sequence[AbortedEntry]:
        assert isinstance(index, int)
        if index >= len(self):
            raise IndexError(index)
        self.looked_at += 1
        return AbortedEntry(7, 3 * index - 2, 3 * index, 3 * index + 1)


def test_entries_before_an_offset_are_not_walked() -> None:
    entries = MillionTransactions()
    assert [each.last_offset for each in ended_from(entries, 2_999_992)] == [2_999_994, 2_999_997]
    assert entries.looked_at < 50


def test_a_lookup_after_the_last_entry_finds_no_transaction() -> None:
    assert list(ended_from(MillionTransactions(), 3_000_000)) == []
