"""Objects that left a broker's memory before all brokers of its rack had read their parts.

Each coordinator commits its part of an object at its own time. If a broker cannot keep up with the writers,
the parts of one object are read at times that are far apart. The memory for all objects in between would be
too large. So these objects are kept in a file, and are not requested from the store again. The file has a
limited size, and the oldest objects are overwritten first.

Usually an object is not needed any more when it leaves the memory. If a quarter of the file was written and
nothing was read from it, no further objects are written, until an object is requested from the store for the
second time.
"""

import asyncio
import contextlib
import errno
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.runtime import Disk, Workers
from moldau.runtime.files.disk import File

FILE_NAME: Final = "diskless-spilled-objects"
_UNREAD_PARTS: Final = 4
"""Objects are not written any more when this part of the file was written and nothing was read."""
_FREE_PARTS: Final = 4
"""The file is only created on a disk with this multiple of its maximum size free."""
_REMEMBERED_KEYS: Final = 4096
_WRITING_BYTES: Final = 128 * 1024**2
"""Objects that wait to be written stay in memory. If they have more bytes than this, further objects are not
written, because the disk is too slow."""
_BEHIND_BYTES: Final = _WRITING_BYTES // 4
"""If more bytes than this of other brokers' objects wait to be written, the disk is behind."""
_WAIT_S: Final = 1.0
"""Maximum wait for a disk that is behind, in seconds."""
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """Where objects are written. ``max_bytes`` is the maximum size of the file; 0 means that there is no
    file."""

    folder: str
    max_bytes: int


class _Place(NamedTuple):
    start: int
    size_bytes: int


class _Waiting(NamedTuple):
    """An object that waits to be written."""

    whole: memoryview
    is_own: bool
    """Whether this broker wrote the object."""


class SpilledObjects:
    """Keeps objects in the file. Errors of the disk end its use, and objects are then read from the store."""

    def __init__(self, disk: Disk, workers: Workers, settings: SpillSettings) -> None:
        self._disk = disk
        # Its own thread, because other work of the disk would delay the writes.
        self._workers = workers.apart(1, "spilled-objects")
        self._folder = settings.folder
        self._path = f"{settings.folder}/{FILE_NAME}"
        self._max_bytes = settings.max_bytes
        self._file: File | None = None
        self._places: OrderedDict[str, _Place] = OrderedDict()
        """The objects in the file, the oldest object first."""
        self._next_start = 0
        self._writing: OrderedDict[str, _Waiting] = OrderedDict()
        self._writing_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._foreign_bytes = 0
        """Bytes in ``_writing`` of objects that other brokers wrote."""
        self._is_written = asyncio.Event()
        self._is_stuck = False
        """Whether the last wait was in vain, and nothing was written since then."""
        self._dropped: OrderedDict[str, None] = OrderedDict()
        self._unread_bytes = 0
        """Bytes that were written after the last time when an object was read from the file."""
        self._has_ended = self._max_bytes <= 0
        self._ending: asyncio.Task[None] | None = None
        if settings.folder:
            with contextlib.suppress(OSError):
                disk.remove(self._path)  # A killed process may have left it.

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._writing

    def requested(self, key: str) -> None:
        """Called before an object is requested from the store. If it was in memory before, objects are
        written to the file again."""
        if key in self._dropped:
            del self._dropped[key]
            self._unread_bytes = 0

    async def until_written(self) -> None:
        """Wait while the disk is behind, before another object takes the memory of an object that is needed.

        Without this wait, a reader that is ahead of the others would drop the objects that these still need.
        A disk that does not write at all is not waited for again.
        """
        if self._foreign_bytes <= _BEHIND_BYTES or self._is_stuck:
            return
        self._is_written.clear()
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._is_written.wait()
        except TimeoutError:
            self._is_stuck = True

    def dropped(self, key: str, whole: memoryview, *, is_own: bool = False) -> None:
        """Called when an object has left the memory. ``is_own`` means that this broker wrote the object. Its
        memory is then used again."""
        self._dropped[key] = None
        if len(self._dropped) > _REMEMBERED_KEYS:
            self._dropped.popitem(last=False)
        if (
            self._has_ended
            or key in self._places
            or key in self._writing
            or len(whole) > self._max_bytes
            or self._writing_bytes + len(whole) > _WRITING_BYTES
            or self._unread_bytes * _UNREAD_PARTS >= self._max_bytes
        ):
            return
        self._writing[key] = _Waiting(memoryview(bytes(whole)) if is_own else whole, is_own)
        self._unread_bytes += len(whole)
        self._writing_bytes += len(whole)
        self._foreign_bytes += 0 if is_own else len(whole)
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write_all())

    async def read(self, key: str, offset: int, size_bytes: int) -> memoryview | None:
        """A range of an object; ``None`` if the object is not here."""
        waiting = self._writing.get(key)
        if waiting is not None:
            self._unread_bytes = 0
            # A view would keep the whole object in memory.
            return memoryview(bytes(waiting.whole[offset : offset + size_bytes]))
        place, file = self._places.get(key), self._file
        if place is None or file is None or offset + size_bytes > place.size_bytes:
            return None
        try:
            content = await self._workers.run(file.read_at, place.start + offset, size_bytes)
        except OSError as error:
            self._end(error)
            return None
        # In the meantime, a newer object may have been written over this object.
        if self._places.get(key) is not place or len(content) != size_bytes:
            return None
        self._unread_bytes = 0
        return memoryview(content)

    async def close(self) -> None:
        """Remove the file."""
        self._has_ended = True
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        self._end(None)
        if self._ending is not None:
            await self._ending

    async def _write_all(self) -> None:
        try:
            while self._writing and not self._has_ended:
                key, (whole, is_own) = next(iter(self._writing.items()))
                place = self._make_room(len(whole))
                if self._file is None:
                    self._file = await self._workers.run(self._create)
                await self._workers.run(self._file.write_at, place.start, [whole])
                if self._writing.pop(key, None) is not None:
                    self._places[key] = place
                    self._writing_bytes -= len(whole)
                    self._foreign_bytes -= 0 if is_own else len(whole)
                self._is_stuck = False
                if self._foreign_bytes <= _BEHIND_BYTES:
                    self._is_written.set()
        except OSError as error:
            self._end(error)
        finally:
            self._writer = None

    def _make_room(self, size_bytes: int) -> _Place:
        """Choose the next place in the file. The objects that are there are not here any more."""
        start = self._next_start
        if start + size_bytes > self._max_bytes:
            # The objects between this position and the end of the file are older than those at its beginning.
            while self._places and next(iter(self._places.values())).start >= start:
                self._places.popitem(last=False)
            start = 0
        end = self._next_start = start + size_bytes
        while self._places:
            oldest = next(iter(self._places.values()))
            if oldest.start >= end or oldest.start + oldest.size_bytes <= start:
                break
            self._places.popitem(last=False)
        return _Place(start, size_bytes)

    def _create(self) -> File:
        if self._disk.space(self._folder).usable_bytes < _FREE_PARTS * self._max_bytes:
            # The logs of topics need the disk more.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        return self._disk.open(self._path, create=True)

    def _end(self, error: OSError | None) -> None:
        """Forget all objects, and give back the space of the file."""
        if error is not None and not self._has_ended:
            _logger.warning("%s is not used any more: %s", self._path, error)
        self._has_ended = True
        self._places.clear()
        self._writing.clear()
        self._writing_bytes = self._foreign_bytes = 0
        self._is_written.set()
        file, self._file = self._file, None
        if file is not None:
            self._ending = asyncio.ensure_future(self._workers.run(self._remove, file))

    def _remove(self, file: File) -> None:
        # This runs after all reads and writes, because all of them use one thread.
        try:
            file.close()
            self._disk.remove(self._path)
        except OSError as error:
            _logger.warning("%s cannot be removed: %s", self._path, error)
