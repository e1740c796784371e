"""Guards of transactional batches. Without guards, a batch that is committed after its transaction was
aborted could begin a transaction that never ends. Pure.

A batch waits in a buffer and during an upload, and its transaction may be aborted in that time. With
transaction versions 0 and 1 an abort does not change the producer's epoch, so the epoch cannot show that the
batch is late. Therefore each transactional batch is committed with a guard. First this coordinator issues the
guard. Then the broker asks the transaction's coordinator whether the partition belongs to the transaction. A
marker that may end this transaction makes the guard invalid. A change of the leader also makes guards
invalid, because they are in memory only. If the guard of a batch is invalid, the producer sends the batch
again.
"""

from typing import Final, NamedTuple, TypeAlias

NO_GUARD: Final = 0
VERSION_WITH_BUMPS: Final = 2
"""From this transaction version on, the producer epoch of a marker is one higher than the epoch of its
transaction (KIP-890)."""
GUARDS_MAX: Final = 100_000
"""Maximum number of guards. When there are more, the oldest guards are removed, and their producers must get
new guards."""

GuardKey: TypeAlias = tuple[int, int]
"""Number of the partition, and producer id."""


class _Guard(NamedTuple):
    producer_epoch: int
    number: int


class TransactionGuards:
    """The guards of one coordinator in one leader epoch."""

    def __init__(self) -> None:
        self._issued: dict[GuardKey, _Guard] = {}

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, key: GuardKey, producer_epoch: int, fresh: int) -> int:
        """The producer's guard in a partition. If the producer needs a new guard, the guard gets the number
        ``fresh``."""
        issued = self._issued.get(key)
        if issued is None or issued.producer_epoch != producer_epoch:
            self._issued.pop(key, None)
            issued = self._issued[key] = _Guard(producer_epoch, fresh)
            if len(self._issued) > GUARDS_MAX:
                del self._issued[next(iter(self._issued))]
        return issued.number

    def known(self, key: GuardKey, producer_epoch: int) -> int:
        """The producer's guard if it has a valid guard; otherwise ``NO_GUARD``."""
        issued = self._issued.get(key)
        return NO_GUARD if issued is None or issued.producer_epoch != producer_epoch else issued.number

    def is_valid(self, key: GuardKey, producer_epoch: int, guard: int) -> bool:
        """Whether a batch with this guard may be appended."""
        return guard != NO_GUARD and self._issued.get(key) == (producer_epoch, guard)

    def ended(self, key: GuardKey, producer_epoch: int, version: int) -> None:
        """Remove the guard that a marker makes invalid. ``version`` is the marker's transaction version.

        From version 2 on, the end of a transaction increases the epoch. A marker with the epoch of the guard
        then ends the transaction before the one for which the guard was issued.
        """
        issued = self._issued.get(key)
        is_of_next = issued is not None and issued.producer_epoch == producer_epoch
        if not (is_of_next and version >= VERSION_WITH_BUMPS):
            self._issued.pop(key, None)
