"""Which leader epoch an offset belongs to, as whoever reads a partition's remote segments sees it. Pure."""

from typing import Protocol

from moldau.storage.log.leader_epochs import LeaderEpochs

__all__ = ["FixedEpoch", "Lineage", "LogLineage"]


class Lineage(Protocol):
    """The epochs of a partition's records."""

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that wrote ``offset``; None below all that is known."""
        ...

    def end_of_epoch(self, epoch: int) -> int | None:
        """The offset behind the epoch's last record; None for the latest one, which goes on."""
        ...


class LogLineage:
    """That of a classic partition: its leader epoch checkpoint, which reaches down to the log's start."""

    def __init__(self, epochs: LeaderEpochs) -> None:
        self._epochs = epochs

    def epoch_for_offset(self, offset: int) -> int | None:
        return self._epochs.epoch_for_offset(offset)

    def end_of_epoch(self, epoch: int) -> int | None:
        following = self._epochs.next_epoch(epoch)
        if following is None:
            return None
        return next(entry.start_offset for entry in self._epochs.entries if entry.epoch == following)


class FixedEpoch:
    """That of a diskless partition, whose order has one source: one epoch for ever."""

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch

    def epoch_for_offset(self, offset: int) -> int | None:
        return self._epoch

    def end_of_epoch(self, epoch: int) -> int | None:
        return None
