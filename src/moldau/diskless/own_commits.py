"""What this broker has committed goes from its memory into its own cache, without asking or reading anybody.

A cache takes a run when it follows the tail, reads nothing just now, and ends where the run begins. One
that does not take it finds the same batches at the coordinator, as those of other brokers.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

from moldau.coordinators.diskless.calls import BatchCoordinate, CommittedBatch
from moldau.diskless.recent_objects import RecentObjects
from moldau.diskless.wal_file import Batch, FileShare
from moldau.replication.partition import PartitionKey
from moldau.runtime import ErrorCode

__all__ = ["OwnCommits", "RunTaker"]


class RunTaker(Protocol):
    """The cacher, as far as it takes what nobody had to find for it."""

    def take_own(self, key: PartitionKey, run: Sequence[BatchCoordinate], content: memoryview) -> bool:
        """Append batches that lie one behind the other in ``content``, which may be changed on the way.

        False when the partition's cache cannot take them now; true also when there is none.
        """
        ...


class OwnCommits:
    """Told of each share of a file that was committed; the file is dropped when nobody needs it here."""

    def __init__(self, recent: RecentObjects, taker: RunTaker) -> None:
        self._recent = recent
        self._taker = taker

    def committed(self, share: FileShare) -> None:
        """Give the share's batches to the caches."""
        content = self._recent.writable(share.file.key)
        if content is None:
            return
        share.is_cached = True
        for key, pairs in groupby(zip(share.batches, share.outcomes, strict=True), lambda pair: pair[0].key):
            for run in _runs(share.file.key, pairs):
                first, last = run[0], run[-1]
                span = content[first.byte_offset : last.byte_offset + last.size_bytes]
                if not self._taker.take_own(key, run, span):
                    share.is_cached = False
                    break

    def finished(self, shares: Sequence[FileShare]) -> None:
        """All of a file's shares are done."""
        if shares and all(share.is_cached or not share.outcomes for share in shares):
            self._recent.discard(shares[0].file.key)


def _runs(
    object_key: str, pairs: Iterator[tuple[Batch, CommittedBatch]]
) -> Iterator[Sequence[BatchCoordinate]]:
    """A partition's batches that got offsets now, those together that lie together."""
    run: list[BatchCoordinate] = []
    end = -1
    for batch, outcome in pairs:
        if outcome.error is not ErrorCode.none or outcome.is_duplicate:
            continue
        if run and batch.byte_offset != end:
            yield run
            run = []
        header = batch.header
        end = batch.byte_offset + header.size_bytes
        run.append(
            BatchCoordinate(
                *batch.key,
                outcome.base_offset,
                outcome.base_offset + header.last_offset_delta,
                object_key,
                batch.byte_offset,
                header.size_bytes,
                outcome.log_append_time_ms,
                header.max_timestamp,
                batch.timestamp_type,
            )
        )
    if run:
        yield run
