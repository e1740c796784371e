"""Folders that are still there after a crash."""

import posixpath

from moldau.runtime.files.disk import Disk


class DurableFolders:
    """Makes folders at or below ``root`` (absolute), each new name synced in its parent.

    What is made once is remembered, until :meth:`forget`. Above ``root`` only what is missing is made and
    synced: who owns the rest has seen to it, and it may not even be readable.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._known: set[str] = set()

    def make(self, folder: str) -> None:
        """Make it with its parents; durable when this returns. Raises ``OSError``."""
        if folder in self._known:
            return
        unsure = [folder]
        while len(unsure[-1]) > len(self._root):
            unsure.append(posixpath.dirname(unsure[-1]))
        while (parent := posixpath.dirname(unsure[-1])) != unsure[-1] and not self._disk.exists(parent):
            unsure.append(parent)
        self._disk.make_dirs(folder)
        for name in reversed(unsure):
            if name not in self._known:
                self._disk.sync_dir(posixpath.dirname(name))
                self._known.add(name)

    def forget(self) -> None:
        """Somebody may have removed folders since they were made."""
        self._known.clear()
