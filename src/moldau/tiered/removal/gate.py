"""Delays the deletion of remote segments until the record that freed them is saved.

The broker records that a deletion has begun, and deletes the objects in a later round. A cluster that is
restored from its object store in between has the segment, or knows that its deletion has begun.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

__all__ = ["DeletionGate"]

_POLL_S: Final = 1.0


def _nothing_is_saved() -> Callable[[], bool]:
    """The rule of a cluster whose logs are not saved: nothing has to wait."""
    return lambda: True


class DeletionGate:
    """The segments of a broker whose objects may not be deleted yet."""

    def __init__(self, on_deleted: Callable[[UUID], None] = lambda _: None) -> None:
        """``on_deleted`` is called for each segment whose objects were deleted, so that caches drop it."""
        self._on_deleted = on_deleted
        self.wait: Callable[[], Callable[[], bool]] = _nothing_is_saved
        """Begins to wait. The result returns whether all records that were committed before the call are
        saved."""
        self._waiting: dict[UUID, Callable[[], bool]] = {}

    def is_open(self, segment_id: UUID) -> bool:
        """Whether the objects of a segment may be deleted. The first call begins to wait, so the record that
        frees the segment must be written before it.
        """
        is_saved = self._waiting.get(segment_id)
        if is_saved is None:
            is_saved = self._waiting[segment_id] = self.wait()
        return is_saved()

    async def until_open(self) -> None:
        """Return when everything that was committed before the call is saved."""
        is_saved = self.wait()
        while True:
            if is_saved():
                return
            await asyncio.sleep(_POLL_S)

    def deleted(self, segment_id: UUID) -> None:
        """Note that the objects of a segment were deleted."""
        self._waiting.pop(segment_id, None)
        self._on_deleted(segment_id)
