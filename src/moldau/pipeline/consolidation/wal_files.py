"""Reads WAL objects that are local files. The bytes of a batch are read directly into their final position in
memory."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

from moldau.objects.storage import ObjectNotFoundError, StorageError, check_key

VIEWS_MAX: Final = 512
"""Maximum number of views in one system call. Operating systems allow 1,024."""

_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", None)  # macOS does not have this constant


class WalFiles:
    """Objects in the folder ``root``. The files are not mapped into memory, so each page is copied only
    once."""

    def __init__(self, root: str) -> None:
        self._root = root

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Return exactly ``size`` bytes. Raises :class:`StorageError`."""
        found = memoryview(bytearray(size))
        await self.scatter(key, offset, [(0, found)])
        return found

    async def scatter(self, key: str, offset: int, targets: Sequence[tuple[int, memoryview]]) -> None:
        """Fill views with bytes. Each target is a distance and a view. The distance, in bytes, is from
        ``offset`` to the first byte of the view. The targets are in ascending order.

        Raises :class:`StorageError`.
        """
        check_key(key)
        try:
            descriptor = os.open(f"{self._root}/{key}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None
        except OSError as error:
            raise StorageError(f"{key}: {error.strerror}", transient=False) from error
        try:
            end = targets[-1][0] + len(targets[-1][1]) if targets else 0
            if _WILL_NEED is not None:
                os.posix_fadvise(descriptor, offset, end, _WILL_NEED)
            for start, views in _in_a_row(targets):
                size_bytes = sum(map(len, views))
                if os.preadv(descriptor, views, offset + start) != size_bytes:
                    self._read_rest(descriptor, key, offset + start, views)
        except OSError as error:
            raise StorageError(f"{key}: {error.strerror}", transient=False) from error
        finally:
            os.close(descriptor)

    def _read_rest(self, descriptor: int, key: str, position: int, views: Sequence[memoryview]) -> None:
        """Fill the views one by one, after a read that returned too few bytes."""
        for view in views:
            done = 0
            while done < len(view):
                count = os.preadv(descriptor, [view[done:]], position)
                if not count:
                    raise StorageError(
                        f"{key} ends before byte {position + len(view) - done}", transient=False
                    )
                done += count
                position += count


def _in_a_row(targets: Sequence[tuple[int, memoryview]]) -> Iterator[tuple[int, list[memoryview]]]:
    """Groups of views whose bytes are adjacent. Each group has the position of its first byte."""
    begin = end = 0
    views: list[memoryview] = []
    for start, view in targets:
        if views and (start != end or len(views) == VIEWS_MAX):
            yield begin, views
            views = []
        if not views:
            begin = start
        views.append(view)
        end = start + len(view)
    if views:
        yield begin, views
