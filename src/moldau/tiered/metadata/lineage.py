"""Finds the leader epoch of an offset, for readers of a partition's remote segments. Pure.

For diskless partitions, :class:`moldau.cluster.image.log_generations.LogGenerations` is the lineage.
"""

from typing import Protocol

from moldau.storage.log.leader_epochs import LeaderEpochs

__all__ = ["Lineage", "LogLineage"]


class Lineage(Protocol):
    """The epochs of a partition's records."""

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which ``offset`` was written; ``None`` if the offset is before all known epochs."""
        ...

    def end_of_epoch(self, epoch: int) -> int | None:
        """The offset after the epoch's last record; ``None`` for the latest epoch, which has no end."""
        ...


class LogLineage:
    """Lineage of a classic partition. It is the partition's leader epoch checkpoint, which covers all offsets
    at or after the log's start."""

    def __init__(self, epochs: LeaderEpochs) -> None:
        self._epochs = epochs

    def epoch_for_offset(self, offset: int) -> int | None:
        return self._epochs.epoch_for_offset(offset)

    def end_of_epoch(self, epoch: int) -> int | None:
        following = self._epochs.following(epoch)
        return None if following is None else following.start_offset
