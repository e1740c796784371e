"""Finds files whose owner does not know them, and assigns them to a coordinator that knows them.

A file with batches of several coordinators is committed at each of these coordinators. The first coordinator
in the file's list owns the file. The file's broker may crash between two commits, or the owner may refuse its
part. Then some coordinators know the file, but no coordinator owns it. Such a file would never be deleted.
Among the coordinators that know the file, the coordinator with the lowest id must adopt the file. It does so
when all of these conditions hold:

1. This coordinator no longer needs the file.
2. The file is old: its age is more than the maximum age of a file at its commit plus the clocks' skew.
3. Every coordinator of the cluster was asked, and no coordinator owns the file.
4. The coordinators that do not know the file have logged that the file is closed. They will therefore never
   know it.

From then on the file is treated like every other file. It is handed over to the other coordinators that know
it, and the last of these coordinators deletes it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import DescribedFile, FileToHandOver, FreeFile
from moldau.diskless.object_keys import parse_object_key
from moldau.diskless.upkeep.orphans import FileWitness
from moldau.runtime import Clock, ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_ASKED_AT_A_TIME: Final = 200
_FILES_A_SCAN: Final = 10_000


class UnownedFileStore(Protocol):
    """Files that have batches of this broker's coordinators, but have other owners."""

    @property
    def coordinator_ids(self) -> list[int]: ...

    def is_active(self, coordinator_id: int) -> bool: ...

    def files_of_others(
        self, coordinator_id: int, unused_before_ms: int, limit: int = 1000, *, unused_from_ms: int = 0
    ) -> Sequence[FreeFile]: ...

    async def take_over(self, coordinator_id: int, file: FileToHandOver) -> None: ...


class UnownedFileScan:
    """Scans a limited number of files at a time. The next scan continues after them."""

    def __init__(
        self,
        keeper: UnownedFileStore,
        witness: FileWitness,
        coordinator_ids: Callable[[], Sequence[int]],
        clock: Clock,
        min_age_ms: int,
    ) -> None:
        """``coordinator_ids`` are all coordinators of the cluster. ``min_age_ms`` is the minimum age of a
        file (see above).
        """
        self._keeper = keeper
        self._witness = witness
        self._coordinator_ids = coordinator_ids
        self._clock = clock
        self._min_age_ms = min_age_ms
        self._resume_from_ms: dict[int, int] = {}

    async def run(self) -> int:
        """A limited scan over the coordinators that this broker leads. Returns the number of adopted
        files."""
        adopted = 0
        for coordinator_id in self._keeper.coordinator_ids:
            try:
                if self._keeper.is_active(coordinator_id):
                    adopted += await self._scan(coordinator_id)
            except (KafkaError, OSError) as error:
                logger.info("files without an owner cannot be checked now: %s", error)
        return adopted

    async def _scan(self, coordinator_id: int) -> int:
        before_ms = self._clock.now_ms() - self._min_age_ms
        from_ms = self._resume_from_ms.pop(coordinator_id, 0)
        listed = self._keeper.files_of_others(
            coordinator_id, before_ms, _FILES_A_SCAN, unused_from_ms=from_ms
        )
        if len(listed) == _FILES_A_SCAN:
            # If all of these files became unused in the same millisecond, the scan continues with the next
            # millisecond. Otherwise it would find the same files again.
            last_ms = listed[-1].free_since_ms
            self._resume_from_ms[coordinator_id] = last_ms + (last_ms == from_ms)
        files: dict[str, tuple[int, int]] = {}
        for file in listed:
            parsed = parse_object_key(file.object_key)
            if parsed is not None and parsed.created_ms < before_ms:
                files[file.object_key] = (file.size_bytes, parsed.created_ms)
        adopted, keys = 0, list(files)
        for start in range(0, len(keys), _ASKED_AT_A_TIME):
            some = keys[start : start + _ASKED_AT_A_TIME]
            for key, others in (await self._without_owner(coordinator_id, some)).items():
                await self._keeper.take_over(coordinator_id, FileToHandOver(key, others, *files[key]))
                logger.info("coordinator %d adopts %s, whose owner does not know it", coordinator_id, key)
                adopted += 1
        return adopted

    async def _without_owner(self, adopter_id: int, keys: Sequence[str]) -> dict[str, list[int]]:
        """Find the files that have no owner and that the coordinator ``adopter_id`` must adopt. For each key,
        the result has the other coordinators that know the file.
        """
        knowing: dict[str, list[int]] = {key: [] for key in keys}
        # The coordinator ``adopter_id`` is asked last. Another coordinator may hand the file over to
        # ``adopter_id`` during these requests. Then at least one of the two coordinators reports the file as
        # its own.
        others = [found for found in self._coordinator_ids() if found != adopter_id]
        for coordinator_id in (*others, adopter_id):
            if not knowing:
                break
            described = await self._described(coordinator_id, list(knowing))
            unknown = []
            for key, file in described.items():
                if file.is_owned or (coordinator_id < adopter_id and _is_there(file)):
                    del knowing[key]
                elif not _is_there(file):
                    unknown.append(key)
                elif coordinator_id != adopter_id:
                    knowing[key].append(coordinator_id)
            for key in await self._refused_to_close(coordinator_id, unknown):
                del knowing[key]
        return knowing

    async def _described(self, coordinator_id: int, keys: list[str]) -> dict[str, DescribedFile]:
        described = await self._witness.describe_files(coordinator_id, keys)
        found = {file.object_key: file for file in described}
        if found.keys() != set(keys):
            raise KafkaError(ErrorCode.unknown_server_error, "a coordinator left objects out of its answer")
        return found

    async def _refused_to_close(self, coordinator_id: int, keys: list[str]) -> list[str]:
        if not keys:
            return []
        closed = await self._witness.close_files(coordinator_id, keys)
        agreed = {file.object_key for file in closed if file.error is ErrorCode.none}
        return [key for key in keys if key not in agreed]


def _is_there(file: DescribedFile) -> bool:
    """Whether the coordinator still has the file, and not only the stored result of the file's commit."""
    return file.size_bytes >= 0
