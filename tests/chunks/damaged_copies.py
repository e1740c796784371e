"""A broker that has every chunk, but whose copies are damaged."""

from typing import Any

from active_replica import machine

from moldau.chunks.holder import ChunkHolder


class DamagedStore:
    """A store that has every chunk but cannot read it."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def __contains__(self, chunk: Any) -> bool:
        return True

    async def open(self, *wanted: Any) -> Any:
        raise self._failure

    files = read_file = open


class IncompleteStore(DamagedStore):
    """A store in which every chunk is incomplete, but whose files can be read."""

    async def files(self, chunk: Any) -> dict[str, int]:
        return {"f": 1}


class DamagedLog:
    """A log that begins at offset 0 and ends at offset 10, and whose records cannot be read."""

    local_log_start_offset = 0
    log_end_offset = 10

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def read(self, *wanted: Any, **limits: Any) -> Any:
        raise self._failure

    timestamp_step = read


class StoreOfDamagedLogs(DamagedStore):
    """A store whose logs can be opened, but whose records cannot be read."""

    async def open(self, *wanted: Any) -> Any:
        return DamagedLog(self._failure)


def holder_of(store: DamagedStore, unreadable: list[Any]) -> ChunkHolder:
    """Reads the chunks of ``store``. Chunks that cannot be read are added to ``unreadable``."""
    stored: Any = store
    hand_overs: Any = None
    holder = ChunkHolder(machine(), stored, hand_overs)
    holder.on_unreadable = unreadable.append
    return holder
