"""Folders that survive a crash of the machine."""

import posixpath

from moldau.runtime.files.disk import Disk


class DurableFolders:
    """Makes folders at or below ``root`` (absolute), and syncs each new name in its parent.

    Created folders are remembered until :meth:`forget`. Above ``root`` only missing folders are created and
    synced. Existing folders above ``root`` belong to other owners, and possibly cannot even be read.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._known: set[str] = set()

    def make(self, folder: str) -> None:
        """Make a folder with its parents. The folder is durable when this returns. Raises ``OSError`` if the
        folder cannot be created or synced."""
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
        """Forget all created folders, because they may have been removed."""
        self._known.clear()
