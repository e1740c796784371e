"""Content of a simulated disk: the content that programs read, and the content after a loss of power.

Files may be damaged in units of sectors of 512 bytes. After a crash, some of the unsynced sectors are kept:
none, all, a prefix or a random subset. Some of the unsynced changes to folders are kept by the same rule.
After a failed sync the pages count as clean, as on Linux, although some of them never reached the disk. A
later sync does not write these pages.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

SECTOR_BYTES = 512
_ZEROS_AT_END_CHANCE = 0.25


class FileNode:
    """A file. Reads return ``data``. ``_synced`` is the content that survives a loss of power."""

    __slots__ = ("_dirty", "_synced", "_truncated_to", "data", "locked_by", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.data = bytearray()
        self.modified_ms = modified_ms
        self.locked_by: object | None = None
        self._synced = bytearray()
        self._dirty: list[tuple[int, int]] = []  # ranges of sectors, in the order in which they were written
        self._truncated_to: int | None = None

    def write(self, position: int, content: bytes) -> None:
        data = self.data
        size = len(data)
        if position > size:
            data += bytes(position - size)
        data[position : position + len(content)] = content
        if content:
            first = min(position, size) // SECTOR_BYTES
            self._dirty.append((first, -(-(position + len(content)) // SECTOR_BYTES)))

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
            if self._truncated_to is None or size < self._truncated_to:
                self._truncated_to = size
        else:
            self.data += bytes(size - len(self.data))

    def sync(self) -> None:
        """Make all of ``data`` durable, except sectors that an earlier failed sync has lost."""
        synced = self._synced
        if self._truncated_to is not None:
            del synced[self._truncated_to :]
        self._apply(synced, self._dirty)
        self._fit(synced, len(self.data))
        self._dirty.clear()
        self._truncated_to = None

    def sync_failed(self, chance: random.Random) -> None:
        """Apply a failed sync. Some sectors have reached the disk. The other sectors are lost, but they also
        count as clean."""
        self._dirty = [(sector, sector + 1) for sector in self._dirty_sectors() if chance.random() < 0.5]
        self.sync()

    def crash(self, chance: random.Random) -> None:
        """Apply a loss of power: a random part of the unsynced sectors is kept."""
        after = bytearray(self._synced)
        if self._dirty or self._truncated_to is not None or len(after) != len(self.data):
            sectors = list(self._dirty_sectors())
            cut = self._truncated_to
            cut_kept = cut is None or chance.random() < 0.5
            if cut is not None:
                if cut_kept:
                    del after[cut:]
                else:
                    sectors = [sector for sector in sectors if (sector + 1) * SECTOR_BYTES <= cut]
            kept = chosen(sectors, chance)
            self._apply(after, [(sector, sector + 1) for sector in kept])
            if cut_kept and len(after) < len(self.data) and chance.random() < _ZEROS_AT_END_CHANCE:
                self._fit(after, chance.randint(len(after), len(self.data)))
        self.data = after
        self._synced = bytearray(after)
        self._dirty.clear()
        self._truncated_to = None
        self.locked_by = None

    def _dirty_sectors(self) -> Iterator[int]:
        sectors = dict.fromkeys(sector for first, end in self._dirty for sector in range(first, end))
        return (sector for sector in sectors if sector * SECTOR_BYTES < len(self.data))

    def _apply(self, target: bytearray, ranges: Iterable[tuple[int, int]]) -> None:
        for first, end in ranges:
            start = first * SECTOR_BYTES
            content = self.data[start : end * SECTOR_BYTES]
            if len(target) < start:
                target += bytes(start - len(target))
            target[start : start + len(content)] = content

    @staticmethod
    def _fit(target: bytearray, size: int) -> None:
        if len(target) < size:
            target += bytes(size - len(target))
        else:
            del target[size:]


class FolderNode:
    """A folder: its current entries, and the entries that would survive a loss of power."""

    __slots__ = ("entries", "synced")

    def __init__(self) -> None:
        self.entries: dict[str, TreeNode] = {}
        self.synced: dict[str, TreeNode] = {}


TreeNode: TypeAlias = FileNode | FolderNode
EntryChanges: TypeAlias = tuple[tuple[FolderNode, str, "FileNode | FolderNode | None"], ...]
"""The entries that a single step changes. The value None means that the entry is removed. A rename is a
single step."""


class Volume:
    """A tree of files. A journal contains the changes to folders that are not synced yet."""

    def __init__(self) -> None:
        self.root = FolderNode()
        self._journal: list[EntryChanges] = []

    def change(self, *entries: tuple[FolderNode, str, FileNode | FolderNode | None]) -> None:
        """Set or remove entries in a single change."""
        _set_entries(entries, lambda folder: folder.entries)
        self._journal.append(entries)

    def sync_folder(self, folder: FolderNode) -> None:
        """Make every change that affects ``folder`` durable."""
        waiting: list[EntryChanges] = []
        for change in self._journal:
            if any(changed is folder for changed, _, _ in change):
                _set_entries(change, lambda changed: changed.synced)
            else:
                waiting.append(change)
        self._journal = waiting

    def crash(self, chance: random.Random) -> None:
        """Lose a random part of all unsynced changes."""
        for change in chosen(self._journal, chance):
            _set_entries(change, lambda folder: folder.synced)
        self._journal.clear()
        self._crash_folder(self.root, chance, set())

    def _crash_folder(self, folder: FolderNode, chance: random.Random, seen: set[int]) -> None:
        folder.entries = dict(folder.synced)
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, FolderNode):
                self._crash_folder(node, chance, seen)
            else:
                node.crash(chance)

    def used_bytes(self) -> int:
        """Total bytes of all files."""

        def of(node: TreeNode) -> int:
            return len(node.data) if isinstance(node, FileNode) else sum(map(of, node.entries.values()))

        return of(self.root)


def _set_entries(change: EntryChanges, entries_of: Callable[[FolderNode], dict[str, TreeNode]]) -> None:
    for folder, name, node in change:
        if node is None:
            entries_of(folder).pop(name, None)
        else:
            entries_of(folder)[name] = node


T = TypeVar("T")


def chosen(items: Sequence[T], chance: random.Random) -> list[T]:
    """Return the unsynced items that survive: none, all, a prefix or a subset of the items."""
    match chance.randrange(4):
        case 0:
            return []
        case 1:
            return list(items)
        case 2:
            return list(items[: chance.randint(0, len(items))])
        case _:
            return [item for item in items if chance.random() < 0.5]
