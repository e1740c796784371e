"""The object keys that the coordinator remembers: keys with results for repeated calls, and closed keys. An
object with a closed key is never committed. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from moldau.coordinators.diskless.state.records import FileCommitted


@dataclass(frozen=True, slots=True)
class CoordinatorTimes:
    """Time limits of the coordinator: the maximum age of files, and the times for which their results are
    kept."""

    max_commit_age_ms: int = 120_000
    """Maximum age of a file. An older file is refused. The value must be shorter than the grace period of the
    orphan scan."""
    clock_skew_ms: int = 60_000
    """Maximum difference between the clocks of two brokers."""
    producer_id_expiration_ms: int = 86_400_000

    @property
    def repeat_age_ms(self) -> int:
        """The age in ms up to which a repeated call for a file is answered with the stored result. The
        results of all committed files that are younger are in memory."""
        return 2 * self.max_commit_age_ms

    @property
    def remember_ms(self) -> int:
        """Time in ms for which results and closed keys are kept. It is longer than ``repeat_age_ms`` by the
        maximum difference between two clocks."""
        return self.repeat_age_ms + self.clock_skew_ms


class Remembered(NamedTuple):
    """The stored result of a committed file."""

    created_ms: int
    committed_ms: int
    receipt: bytes

    def is_before(self, time_ms: int) -> bool:
        """Whether the file is older according to both clocks: that of its writer, and that of the
        coordinator. A commit is repeated while the file is young according to its writer. So its result is
        kept, even if the coordinator's clock was behind when the file was committed."""
        return self.created_ms < time_ms and self.committed_ms < time_ms


class FileMemory:
    """Results by object key, and closed keys."""

    def __init__(self) -> None:
        self._results: dict[str, Remembered] = {}
        self._closed: dict[str, int] = {}
        self._forgotten_before_ms: int | None = None
        """Results and closed keys before this time were removed."""

    def result(self, object_key: str) -> Remembered | None:
        return self._results.get(object_key)

    def is_closed(self, object_key: str) -> bool:
        return object_key in self._closed

    def committed(self, record: FileCommitted, receipt: bytes) -> None:
        self._results[record.object_key] = Remembered(record.created_ms, record.committed_ms, receipt)

    def restore_result(self, object_key: str, remembered: Remembered) -> None:
        self._results[object_key] = remembered

    def close(self, object_key: str, closed_ms: int) -> None:
        self._closed.setdefault(object_key, closed_ms)

    def has_any_before(self, time_ms: int) -> bool:
        """Whether a result or a closed key is older than ``time_ms``, so that it can be removed."""
        return any(found.is_before(time_ms) for found in self._results.values()) or any(
            closed_ms < time_ms for closed_ms in self._closed.values()
        )

    def forget_before(self, time_ms: int) -> None:
        """Drop results and closed keys that are older than ``time_ms``.

        All entries are checked, because they are not always ordered by time: the clock of a new leader may be
        behind the clock of the previous leader.
        """
        self._forgotten_before_ms = max(time_ms, self._forgotten_before_ms or 0)
        results, closed = self._results, self._closed
        self._results = {key: found for key, found in results.items() if not found.is_before(time_ms)}
        self._closed = {key: closed_ms for key, closed_ms in closed.items() if closed_ms >= time_ms}

    def closed(self) -> Iterator[tuple[str, int]]:
        yield from self._closed.items()

    def results(self) -> Iterator[tuple[str, Remembered]]:
        yield from self._results.items()

    def outcomes_from_ms(self, times: CoordinatorTimes) -> int:
        """Return a creation time. If an unknown file was created before this time, the coordinator may have
        committed it and forgotten its result. A commit of such a file would be refused as too old. ``times``
        are the limits of the coordinator that wrote the records."""
        newest_ms = max(
            (min(found.created_ms, found.committed_ms) for found in self._results.values()), default=0
        )
        from_ms = newest_ms - times.repeat_age_ms
        if self._forgotten_before_ms is not None:
            from_ms = max(from_ms, self._forgotten_before_ms + times.clock_skew_ms)
        return from_ms

    @property
    def oldest_created_ms(self) -> int | None:
        """Creation time of the oldest file with a result."""
        return min((found.created_ms for found in self._results.values()), default=None)
