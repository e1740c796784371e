"""Delays the deletion of remote segments until the record that made them unneeded is saved in the object
store.

The broker records that a deletion has begun, and deletes the objects in a later round. A cluster may be
restored from its object store between these two steps. The restored cluster either has the whole segment, or
it knows that the deletion of the segment has begun.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

__all__ = ["PendingDeletions"]

_POLL_S: Final = 1.0
_UNASKED_S: Final = 3600.0
"""If :meth:`may_delete` is not called for a segment during this time, the segment is forgotten, because
another broker then deletes it. If this broker calls :meth:`may_delete` again, a new wait begins."""


def _nothing_is_saved() -> Callable[[], bool]:
    """The wait in a cluster whose logs are not saved in the object store. It ends immediately, so deletions
    are not delayed."""
    return lambda: True


class _PendingDeletion(NamedTuple):
    is_saved: Callable[[], bool]
    asked_s: float
    """Time of the last call of :meth:`may_delete` for the segment, on the clock of the event loop."""


class PendingDeletions:
    """The segments of a broker that were removed, but whose objects must not be deleted yet."""

    def __init__(self, on_deleted: Callable[[UUID], None] = lambda _: None) -> None:
        """``on_deleted`` is called for each segment whose objects were deleted. Caches then drop the
        segment."""
        self._on_deleted = on_deleted
        self.wait: Callable[[], Callable[[], bool]] = _nothing_is_saved
        """Begins a wait. The returned function returns whether all records that were committed before the
        call are saved."""
        self._waiting: dict[UUID, _PendingDeletion] = {}
        """The waits by segment id, in the order of the last calls of :meth:`may_delete`."""

    @property
    def remembered_count(self) -> int:
        """Number of segments whose objects must be deleted later."""
        return len(self._waiting)

    def may_delete(self, segment_id: UUID) -> bool:
        """Whether the objects of a segment may be deleted. The first call begins the wait. Therefore the
        record that makes the segment unneeded must be written before that call."""
        now_s = asyncio.get_running_loop().time()
        wait = self._waiting.pop(segment_id, None)
        is_saved = self.wait() if wait is None else wait.is_saved
        self._waiting[segment_id] = _PendingDeletion(is_saved, now_s)
        while now_s - (oldest := next(iter(self._waiting.items())))[1].asked_s > _UNASKED_S:
            del self._waiting[oldest[0]]
        return is_saved()

    async def until_saved(self) -> None:
        """Wait until everything that was committed before the call is saved."""
        is_saved = self.wait()
        while True:
            if is_saved():
                return
            await asyncio.sleep(_POLL_S)

    def deleted(self, segment_id: UUID) -> None:
        """Record that the objects of a segment were deleted."""
        self._waiting.pop(segment_id, None)
        self._on_deleted(segment_id)
