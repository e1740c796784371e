"""Which object keys the coordinator remembers: results for repeats, and keys that are closed. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.coordinators.diskless.records import FileCommitted


@dataclass(frozen=True, slots=True)
class DisklessSettings:
    """How long the coordinator waits and remembers."""

    max_commit_age_ms: int = 120_000
    """A file that was begun longer ago is not committed any more. Below the orphan scan's grace."""
    clock_skew_ms: int = 60_000
    """How far apart the clocks of brokers may be."""
    producer_id_expiration_ms: int = 86_400_000

    @property
    def repeat_age_ms(self) -> int:
        """A file younger than this is answered from memory if it was committed."""
        return 2 * self.max_commit_age_ms

    @property
    def remember_ms(self) -> int:
        """How long results and closed keys are kept: a younger file's must be there."""
        return self.repeat_age_ms + self.clock_skew_ms


FORGET_PER_COMMIT: Final = 4


class Remembered(NamedTuple):
    """A committed file's answer."""

    created_ms: int
    committed_ms: int
    receipt: bytes


class FileMemory:
    """Results by object key and closed keys, in the order of time, so that the oldest are forgotten first."""

    def __init__(self) -> None:
        self._results: dict[str, Remembered] = {}
        self._closed: dict[str, int] = {}

    def result(self, object_key: str) -> Remembered | None:
        return self._results.get(object_key)

    def is_closed(self, object_key: str) -> bool:
        return object_key in self._closed

    def committed(self, record: FileCommitted, receipt: bytes) -> None:
        self._results[record.object_key] = Remembered(record.created_ms, record.committed_ms, receipt)

    def restore_result(self, object_key: str, remembered: Remembered) -> None:
        self._results[object_key] = remembered

    def close(self, object_key: str, closed_ms: int) -> None:
        self._closed[object_key] = closed_ms

    def forget_before(self, time_ms: int, limit: int = FORGET_PER_COMMIT) -> None:
        """Drop up to ``limit`` results and closed keys older than ``time_ms``."""
        for _ in range(limit):
            key = next(iter(self._results), None)
            if key is None or self._results[key].committed_ms >= time_ms:
                break
            del self._results[key]
        for _ in range(limit):
            key = next(iter(self._closed), None)
            if key is None or self._closed[key] >= time_ms:
                break
            del self._closed[key]

    def closed(self) -> Iterator[tuple[str, int]]:
        yield from self._closed.items()

    def results(self) -> Iterator[tuple[str, Remembered]]:
        yield from self._results.items()

    @property
    def oldest_created_ms(self) -> int | None:
        """Of the files whose results are kept."""
        return min((found.created_ms for found in self._results.values()), default=None)
