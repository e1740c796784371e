"""Stored batches whose records cannot be read. Searches by timestamp find such batches."""

import logging
from typing import Final

__all__ = ["UnreadableBatches"]

_log = logging.getLogger(__name__)

_PARTITIONS_MAX: Final = 1_000


class UnreadableBatches:
    """The unreadable batches of one node. For each partition, the offset of the first such batch is kept, up
    to ``_PARTITIONS_MAX`` partitions. Use this class on the node's event loop.
    """

    def __init__(self) -> None:
        self._first_offsets: dict[str, int] = {}

    def report(self, partition: str, offset: int, error: Exception) -> None:
        """Report that a batch that begins at ``offset`` cannot be read. Only the first report of a partition
        is logged.
        """
        if partition in self._first_offsets or len(self._first_offsets) >= _PARTITIONS_MAX:
            return
        self._first_offsets[partition] = offset
        _log.warning(
            "%s: the records of the batch at offset %d cannot be read: %s."
            " Searches by timestamp rely on its header. Further ones of this partition are not logged.",
            partition,
            offset,
            error,
        )

    def notice(self) -> str | None:
        """A sentence for the health page; ``None`` when all batches were readable."""
        if not self._first_offsets:
            return None
        partition, offset = next(iter(self._first_offsets.items()))
        return (
            f"{len(self._first_offsets)} partitions have batches whose records cannot be read,"
            f" such as {partition} at offset {offset}"
        )
