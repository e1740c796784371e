"""The log in the form that the core reads: values in memory, without I/O."""

from typing import Protocol

from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import LoggedVoters


class LogView(Protocol):
    """A read-only view of the replicated log. It always contains the results of the completed effects."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still in the log."""
        ...

    @property
    def log_end(self) -> OffsetAndEpoch:
        """The end offset, and the epoch of the last record. For an empty log, they are the end offset and the
        epoch of the snapshot. Without a snapshot they are 0 and 0."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Find ``epoch``, or the next lower known epoch. Returns the epoch that was found, and its end
        offset.

        If ``epoch`` is below all known epochs, the result is the log start offset. The epoch in the result is
        then the epoch of the snapshot that ends at the log start offset, or 0 without such a snapshot.
        """
        ...

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    def snapshot_size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        """Size of a snapshot; ``None`` when the snapshot does not exist."""
        ...

    @property
    def voters(self) -> LoggedVoters | None:
        """The last voters in the snapshot and the log, whether they are committed or not; ``None`` while
        kraft.version is 0."""
        ...
