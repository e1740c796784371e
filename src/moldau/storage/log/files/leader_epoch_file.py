"""The file that stores the leader epochs of a log."""

import contextlib
import threading
from collections.abc import Iterable
from typing import NamedTuple

from moldau.runtime import Disk
from moldau.storage.folders.checkpoint import format_checkpoint, parse_checkpoint, parse_number
from moldau.storage.log.leader_epochs import EpochEntry, LeaderEpochs

__all__ = ["LeaderEpochFile", "SavedEpochs", "parse_leader_epochs"]


def parse_leader_epochs(content: bytes, path: str) -> list[EpochEntry]:
    """Return the epochs in the content of a file. Raises ``CheckpointError`` if the content is malformed. The
    error names ``path``."""
    rows = parse_checkpoint(content, path, 2)
    return [
        EpochEntry(parse_number(epoch, path, line), parse_number(offset, path, line))
        for line, (epoch, offset) in enumerate(rows, start=3)
    ]


class LeaderEpochFile:
    """The ``leader-epoch-checkpoint`` of a partition's folder. Its methods block.

    Threads may save at the same time, but older content never replaces newer content.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._saving = threading.Lock()
        self.saved_version = 0
        """The version of the newest content that is durable in the file."""

    def load(self) -> LeaderEpochs:
        """The epochs in the file; empty when the file does not exist. Raises ``CheckpointError`` if the
        content is malformed."""
        try:
            content = self._disk.read(self.path)
        except FileNotFoundError:
            return LeaderEpochs()
        return LeaderEpochs(parse_leader_epochs(content, self.path))

    def save(self, entries: Iterable[EpochEntry], version: int) -> None:
        """Replace the file durably, unless it already has this version or a later version."""
        with self._saving:
            if version > self.saved_version:
                self._disk.write_atomically(self.path, format_checkpoint(entries))
                self.saved_version = version

    @staticmethod
    def save_all(disk: Disk, saved: Iterable["SavedEpochs"]) -> None:
        """Does the same as :meth:`save`, for many files. The disk writes these files together."""
        with contextlib.ExitStack() as saving:
            newer: list[SavedEpochs] = []
            for each in saved:
                saving.enter_context(each.file._saving)
                if each.version > each.file.saved_version:
                    newer.append(each)
            disk.write_all_atomically({each.file.path: format_checkpoint(each.entries) for each in newer})
            for each in newer:
                each.file.saved_version = each.version

    def end(self) -> None:
        """End the writes, because the folder will be renamed. Waits until no write is in progress. Later
        calls write nothing."""
        with self._saving:
            self.saved_version = _NEVER


class SavedEpochs(NamedTuple):
    """Content that must be written to a file of leader epochs."""

    file: LeaderEpochFile
    entries: tuple[EpochEntry, ...]
    version: int


_NEVER = 2**63 - 1
