"""Guards of transactional batches: a late one never begins a transaction that has no end. Pure.

A batch waits in a buffer and an upload, and its transaction may be aborted meanwhile; with transaction
versions 0 and 1 the producer's epoch does not change then. So each transactional batch is committed with a
guard, which this coordinator issued before the transaction's coordinator was asked whether the partition
belongs to the transaction. A marker of the producer makes the guard void, and so does another term: guards
are in memory only, and a producer whose batch has an unknown one sends it again.
"""

from typing import Final, NamedTuple, TypeAlias

NO_GUARD: Final = 0
GUARDS_MAX: Final = 100_000
"""Guards beyond it are forgotten, the oldest first; their producers get others."""

GuardKey: TypeAlias = tuple[int, int]
"""Number of the partition, and producer id."""


class _Guard(NamedTuple):
    producer_epoch: int
    number: int


class TransactionGuards:
    """The guards of one coordinator in one term."""

    def __init__(self) -> None:
        self._issued: dict[GuardKey, _Guard] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, key: GuardKey, producer_epoch: int, fresh: int) -> int:
        """The producer's guard in a partition; ``fresh`` is its number where a new one is needed."""
        issued = self._issued.get(key)
        if issued is None or issued.producer_epoch != producer_epoch:
            self._issued.pop(key, None)
            issued = self._issued[key] = _Guard(producer_epoch, fresh)
            if len(self._issued) > GUARDS_MAX:
                del self._issued[next(iter(self._issued))]
        return issued.number

    def is_valid(self, key: GuardKey, producer_epoch: int, guard: int) -> bool:
        """Whether a batch with this guard may be appended."""
        return guard != NO_GUARD and self._issued.get(key) == (producer_epoch, guard)

    def void(self, key: GuardKey) -> None:
        """The producer's transaction has ended in the partition."""
        self._issued.pop(key, None)
