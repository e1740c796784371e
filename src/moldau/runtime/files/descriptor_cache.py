"""A limit on the file descriptors that open files use.

A node has as many open files as it has segments, but the process may have far fewer descriptors. Therefore
the descriptor of a file that was not used for a while is closed. At the next use of the file, its path is
opened again. The user of the file does not notice this: the file object stays usable when the file is
renamed, when its name is removed, and when another file gets its name.

**Threads.** A file may be used from several threads. A user first registers itself (``users.append``), then
reads the descriptor. A thread that closes a descriptor first hides it, then checks for users. At least one of
the two threads detects the other thread. Therefore the frequent uses of a file need no lock.
"""

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from moldau.runtime.files.descriptor_shares import descriptors_for_files

T = TypeVar("T")

LACK_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers of an operation that found no free descriptor. They do not mean that the disk has failed."""

_GIVEN_BACK_AT_ONCE: Final = 16
NO_DESCRIPTOR: Final = -1


class Holder(Protocol):
    """A file that uses a descriptor. If the file has a memory map, it uses a second descriptor."""

    path: str
    users: list[None]
    """A list with one entry for each operation in progress."""
    is_recent: bool
    """Whether the file was used since the last search for unused files."""
    pins: int
    """While this number is above 0, the descriptor is not closed, because possibly the path names another
    file, or the path does not exist. The number is above 0 during a rename of the path, and after a removal
    of the path."""

    def hide_descriptor(self) -> int:
        """Hide the descriptor from new users, and return it."""
        ...

    def show_descriptor(self, descriptor: int) -> None: ...

    def drop_map(self) -> None: ...

    def ensure_descriptor(self) -> None:
        """Reopen the path if the descriptor was closed. Raises ``OSError`` if the path cannot be opened."""
        ...


class DescriptorCache:
    """Lists the open files of a process that have a descriptor, and limits the number of these files. The
    descriptors of files that were not used for a while are closed first.
    """

    def __init__(self, limit: Callable[[], int] = descriptors_for_files) -> None:
        """``limit`` returns the maximum number of descriptors. It is called each time a file is opened. The
        descriptor of a file in use is never closed, so the number of descriptors may be above the limit."""
        self._limit = limit
        self._lock = threading.RLock()
        self._holders: OrderedDict[Holder, None] = OrderedDict()
        self._by_folder: dict[str, dict[str, list[Holder]]] = {}
        self._unclosed: list[tuple[Holder, int]] = []

    @property
    def lock(self) -> threading.RLock:
        """This lock is held while a file's descriptor is installed or removed, but never during a call that
        may wait."""
        return self._lock

    def __len__(self) -> int:
        """Number of files that have a descriptor."""
        return len(self._holders)

    def enter(self, holder: Holder) -> None:
        """Record that a file was opened."""
        with self._lock:
            folder, name = os.path.split(holder.path)
            self._by_folder.setdefault(folder, {}).setdefault(name, []).append(holder)
            self.opened(holder)

    def opened(self, holder: Holder) -> None:
        """Record that a file has opened a descriptor. Descriptors of other files are closed when there are
        too many."""
        with self._lock:
            self._holders[holder] = None
            limit = self._limit()
            if len(self._holders) > limit:
                self._give_back(len(self._holders) - limit)
            self._close_unused()

    def leave(self, holder: Holder, descriptor: int) -> None:
        """Close a file. Its descriptor is closed when no other thread uses it any more."""
        with self._lock:
            self._holders.pop(holder, None)
            self._forget_name(holder)
            if descriptor == NO_DESCRIPTOR:
                return
            if holder.users:
                self._unclosed.append((holder, descriptor))
            else:
                os.close(descriptor)

    def _close_unused(self) -> None:
        if self._unclosed:
            waiting, self._unclosed = self._unclosed, []
            for holder, descriptor in waiting:
                if holder.users:
                    self._unclosed.append((holder, descriptor))
                else:
                    os.close(descriptor)

    def make_room(self) -> bool:
        """Close some descriptors. Returns whether any descriptor could be closed."""
        with self._lock:
            self._close_unused()
            return self._give_back(_GIVEN_BACK_AT_ONCE) > 0

    def _give_back(self, count: int) -> int:
        given = 0
        for _ in range(2 * len(self._holders)):
            if given >= count or not self._holders:
                break
            holder, _none = self._holders.popitem(last=False)
            if holder.is_recent or holder.pins:
                holder.is_recent = False
                self._holders[holder] = None
                continue
            descriptor = holder.hide_descriptor()
            if holder.users:
                holder.show_descriptor(descriptor)
                self._holders[holder] = None
                continue
            holder.drop_map()
            os.close(descriptor)
            given += 1
        return given

    def with_room(self, function: Callable[[], T]) -> T:
        """Call ``function``, which opens a descriptor. If no descriptor is free, close some and retry."""
        while True:
            try:
                return function()
            except OSError as error:
                if error.errno not in LACK_OF_DESCRIPTORS or not self.make_room():
                    raise

    # -- renames and removals -----------------------------------------------------------------

    @contextlib.contextmanager
    def renaming(self, source: str, target: str) -> Iterator[None]:
        """A context for the rename of a file, or of a folder whose subfolders contain no open files."""
        with self._pinned([*self._named(source), *self._inside(source)]) as moved, self.removing(target):
            yield
            with self._lock:
                for holder in moved:
                    self._forget_name(holder)
                    holder.path = target + holder.path[len(source) :]
                    folder, name = os.path.split(holder.path)
                    self._by_folder.setdefault(folder, {}).setdefault(name, []).append(holder)

    @contextlib.contextmanager
    def removing(self, path: str) -> Iterator[None]:
        """A context in which a file's name, or a folder, is removed. Open files in the folder stay usable."""
        with self._pinned([*self._named(path), *self._inside(path)]) as nameless:
            yield
            with self._lock:
                self._pin(nameless, 1)
                for holder in nameless:
                    self._forget_name(holder)

    @contextlib.contextmanager
    def _pinned(self, holders: list[Holder]) -> Iterator[list[Holder]]:
        self._pin(holders, 1)
        try:
            for holder in holders:
                holder.ensure_descriptor()
            yield holders
        finally:
            self._pin(holders, -1)

    def _pin(self, holders: list[Holder], change: int) -> None:
        with self._lock:
            for holder in holders:
                holder.pins += change

    def _named(self, path: str) -> list[Holder]:
        folder, name = os.path.split(path)
        with self._lock:
            return list(self._by_folder.get(folder, {}).get(name, ()))

    def _inside(self, folder: str) -> list[Holder]:
        with self._lock:
            return [holder for holders in self._by_folder.get(folder, {}).values() for holder in holders]

    def _forget_name(self, holder: Holder) -> None:
        folder, name = os.path.split(holder.path)
        names = self._by_folder.get(folder)
        holders = names.get(name) if names is not None else None
        if names is None or holders is None or holder not in holders:
            return
        holders.remove(holder)
        if not holders:
            del names[name]
            if not names:
                del self._by_folder[folder]


PROCESS: Final = DescriptorCache()
