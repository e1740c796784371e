"""Deletes unused objects, and hands files over to their next owners (KIP-1164).

Coordinators decide whether a file is in use, and record this decision in their log. This module carries out
the decisions. It has no state, because each pass requests the pending work again. A new leader therefore
continues where the old leader stopped, and failures are retried without a limit.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import FileToHandOver, FreeFile
from moldau.diskless.kept_objects import KeptObjects
from moldau.metrics import Meters
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.runtime import Clock, KafkaError

logger = logging.getLogger(__name__)

_FILES_A_PASS: Final = 1_000
_HAND_OVERS_A_PASS: Final = 100
_ROUNDS_A_PASS: Final = 10


class FileKeeper(Protocol):
    """The files of the coordinators that this broker leads."""

    @property
    def coordinator_ids(self) -> list[int]: ...

    def is_active(self, coordinator_id: int) -> bool: ...

    def free_files(
        self, coordinator_id: int, unused_before_ms: int, limit: int = 1000
    ) -> Sequence[FreeFile]: ...

    def files_to_hand_over(self, coordinator_id: int, limit: int = 100) -> Sequence[FileToHandOver]: ...

    async def release_files(self, coordinator_id: int, object_keys: Sequence[str]) -> None: ...

    def committed_end(self, coordinator_id: int) -> int:
        """The offset before which the records of the coordinator's log are committed."""
        ...


class FileTaker(Protocol):
    """Any coordinator of the cluster, which may become the next owner of a file."""

    async def take_over(self, coordinator_id: int, file: FileToHandOver) -> None: ...


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The result of one pass of deletions and hand-overs."""

    deleted: int = 0
    deleted_bytes: int = 0
    handed_over: int = 0
    failed: int = 0


class FileReclaimer:
    """Carries out deletion and hand-over for every coordinator that this broker leads."""

    def __init__(
        self,
        keeper: FileKeeper,
        taker: FileTaker,
        storage: ObjectStorage,
        clock: Clock,
        grace_ms: int,
        meters: Meters,
        is_saved: Callable[[int, int], bool] = lambda coordinator_id, end_offset: True,
    ) -> None:
        """``grace_ms`` is the time for which an object is kept after its last batch was removed, because
        reads may be in progress. ``is_saved`` returns whether a coordinator's log is saved up to an offset. A
        file is deleted only when its records are saved. Otherwise a restored cluster would refer to objects
        that no longer exist."""
        self._keeper = keeper
        self._taker = taker
        self._storage = storage
        self._clock = clock
        self._grace_ms = grace_ms
        self._is_saved = is_saved
        self._unsaved: dict[int, dict[str, int]] = {}
        """For each coordinator, its free files that are not deleted yet. Each file has the end of the
        coordinator's log at the time when the file was found. The record that freed the file is before that
        end.
        """
        self._released: dict[int, set[str]] = {}
        self._kept = KeptObjects(storage)
        scope = meters.scoped("moldau.diskless", "Reclaim")
        self._deleted = scope.counter(
            "FilesDeletedPerSec", "Objects that were deleted because they are not used any more."
        )
        self._deleted_bytes = scope.counter(
            "FileBytesDeletedPerSec",
            "Bytes of the objects that were deleted because they are not used any more.",
        )
        self._handed_over = scope.counter(
            "FilesHandedOverPerSec", "Files that were handed over to their next owner."
        )
        self._errors = scope.counter("ErrorsPerSec", "Deletions and hand-overs that failed and are repeated.")

    async def run_once(self) -> Reclaimed:
        """A limited pass over all coordinators that this broker leads."""
        deleted = deleted_bytes = handed_over = failed = 0
        for coordinator_id in self._keeper.coordinator_ids:
            if not self._keeper.is_active(coordinator_id):
                continue
            try:
                handed_over += await self._hand_over(coordinator_id)
                count, size_bytes = await self._delete(coordinator_id)
                deleted += count
                deleted_bytes += size_bytes
            except (StorageError, KafkaError, OSError) as error:
                failed += 1
                self._errors.value += 1
                logger.warning("files of coordinator %d cannot be deleted now: %s", coordinator_id, error)
        return Reclaimed(deleted, deleted_bytes, handed_over, failed)

    async def _delete(self, coordinator_id: int) -> tuple[int, int]:
        count = size_bytes = 0
        for _ in range(_ROUNDS_A_PASS):
            before_ms = self._clock.now_ms() - self._grace_ms
            waiting = len(self._unsaved.get(coordinator_id, ()))
            limit = _FILES_A_PASS + waiting + len(self._released.get(coordinator_id, ()))
            listed = self._keeper.free_files(coordinator_id, before_ms, limit)
            keys = self._not_released(coordinator_id, [file.object_key for file in listed])
            keys = self._saved(coordinator_id, keys)
            if not keys:
                break
            # Objects are deleted before their files are released. If a file were released first, only the
            # orphan scan could find its object.
            kept = frozenset(await self._kept.among(keys))
            await self._storage.delete([key for key in keys if key not in kept])
            await self._release(coordinator_id, keys)
            wanted = set(keys)
            freed_bytes = sum(file.size_bytes for file in listed if file.object_key in wanted)
            count += len(keys)
            size_bytes += freed_bytes
            self._deleted.value += len(keys)
            self._deleted_bytes.value += freed_bytes
        return count, size_bytes

    async def _hand_over(self, coordinator_id: int) -> int:
        limit = _HAND_OVERS_A_PASS + len(self._released.get(coordinator_id, ()))
        listed = {file.object_key: file for file in self._keeper.files_to_hand_over(coordinator_id, limit)}
        handed_over: list[str] = []
        for key in listed:
            if key in self._released.get(coordinator_id, ()):
                continue
            next_owner = listed[key].remaining_owner_ids[0]
            try:
                await self._taker.take_over(next_owner, listed[key])
            except (KafkaError, OSError) as error:
                self._errors.value += 1
                logger.info(
                    "%s stays with coordinator %d, because coordinator %d refused it: %s",
                    *(key, coordinator_id, next_owner, error),
                )
                continue
            handed_over.append(key)
        if handed_over:
            # The file is released only after its next owner has logged the file. Otherwise the file would
            # have no owner.
            await self._release(coordinator_id, handed_over)
            self._handed_over.value += len(handed_over)
        return len(handed_over)

    async def _release(self, coordinator_id: int, keys: list[str]) -> None:
        await self._keeper.release_files(coordinator_id, keys)
        self._released.setdefault(coordinator_id, set()).update(keys)

    def _saved(self, coordinator_id: int, free: list[str]) -> list[str]:
        """Return the files in ``free`` whose deletion is safe, because all records about them are saved. The
        other files remain for the next pass."""
        end_offset = self._keeper.committed_end(coordinator_id)
        known = self._unsaved.get(coordinator_id, {})
        found_at = {key: known.get(key, end_offset) for key in free}
        saved = [key for key in free if self._is_saved(coordinator_id, found_at[key])]
        self._unsaved[coordinator_id] = {key: found_at[key] for key in set(free).difference(saved)}
        return saved

    def _not_released(self, coordinator_id: int, listed: list[str]) -> list[str]:
        """Remove released files from a list. The list may still contain them, because the coordinator's
        database is updated slightly later than its log."""
        released = self._released.get(coordinator_id)
        if not released:
            return listed
        still_there = released.intersection(listed)
        self._released[coordinator_id] = still_there
        return [key for key in listed if key not in still_there]
