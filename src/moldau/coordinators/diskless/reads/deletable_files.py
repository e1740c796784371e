"""Finds the deletable objects of the WAL, which are the unused files of a coordinator.

If the coordinator owns a file, and all its batches in the file are deleted, there are two cases. If there is
no next owner, the file is *free*. Its object is deleted after a grace period
(``diskless/upkeep/file_deletion.py``). If there are next owners, the file is *handed over* to the first of
them. If another coordinator owns the file, this coordinator does neither; :meth:`DeletableFiles.of_others`
lists such files.
"""

from moldau.coordinators.diskless.calls import FileToHandOver, FreeFile
from moldau.coordinators.diskless.store.database import END_OF_LOG, Database, decode_owners


class DeletableFiles:
    """Finds the files whose batches are all deleted. The file that has been unused for the longest time comes
    first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def to_hand_over(self, limit: int) -> list[FileToHandOver]:
        """Return this coordinator's files that must be handed over to their next owner."""
        return [
            FileToHandOver(key, decode_owners(owners), size, created)
            for key, owners, size, created, _ in self._database.all(
                "select object_key, next_owners, size_bytes, created_ms, unused_since_ms from files"
                " where live_batches = 0 and owned = 1 and next_owners <> '[]'"
                " order by unused_since_ms, id limit ?",
                (limit,),
            )
        ]

    def free(self, limit: int, unused_before_ms: int = END_OF_LOG) -> list[FreeFile]:
        """Return this coordinator's files that are unused and have no next owner.

        ``diskless/upkeep/file_deletion.py`` also waits for the grace period and for the backup before it
        deletes them."""
        return self._unused("owned = 1 and next_owners = '[]'", limit, unused_before_ms)

    def of_others(self, limit: int, unused_before_ms: int, unused_from_ms: int = 0) -> list[FreeFile]:
        """Return files that have other owners, and no batch of this coordinator any more."""
        return self._unused("owned = 0", limit, unused_before_ms, unused_from_ms)

    def _unused(
        self, condition: str, limit: int, unused_before_ms: int, unused_from_ms: int = 0
    ) -> list[FreeFile]:
        return [
            FreeFile(key, since, size)
            for key, size, since in self._database.all(
                "select object_key, size_bytes, unused_since_ms from files"
                f" where live_batches = 0 and {condition} and unused_since_ms between ? and ?"
                " order by unused_since_ms, id limit ?",
                (unused_from_ms, unused_before_ms, limit),
            )
        ]
