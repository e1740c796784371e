"""The cuts in an object store: finds the newest cut, and deletes old cuts with their data."""

import logging
from typing import NamedTuple

from moldau.backup.cut_format import (
    CUTS_FOLDER,
    DATA_FOLDER,
    BrokenCutError,
    ClusterCut,
    created_of,
    cut_key,
    encode_cut,
    parse_cut,
    parse_cut_key,
)
from moldau.objects.storage import ObjectInfo, ObjectStorage

logger = logging.getLogger(__name__)

__all__ = ["UNUSED_DATA_AGE_MS", "FoundCut", "StoredCuts"]

UNUSED_DATA_AGE_MS = 3_600_000
"""Minimum age of an object that may be deleted because no kept cut refers to it. A younger object may belong
to a cut that another broker is making now."""


class FoundCut(NamedTuple):
    """A cut, and the time at which it was stored, by the clock of the store."""

    cut: ClusterCut
    stored_ms: int
    damaged: tuple[str, ...] = ()
    """Keys of newer cuts, which were skipped because they are damaged."""


class StoredCuts:
    """The cuts of one cluster in its store. All methods raise ``StorageError``."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self._used: dict[str, frozenset[str]] = {}
        """The data of the kept cuts, by the keys of the cuts."""

    async def newest(self, *, until_ms: int | None = None) -> FoundCut | None:
        """The newest cut that was made at ``until_ms`` or before; None when there is no such cut.

        A damaged cut is skipped and logged.
        """
        names = {key: info for info in await self.listed() if (key := parse_cut_key(info.key)) is not None}
        damaged: list[str] = []
        for name in sorted(names, reverse=True):
            if until_ms is not None and name.created_ms > until_ms:
                continue
            info = names[name]
            try:
                return FoundCut(await self._read(info), info.last_modified_ms, tuple(damaged))
            except BrokenCutError as error:
                damaged.append(info.key)
                logger.warning("%s is skipped: %s", info.key, error)
        return None

    async def store(self, cut: ClusterCut, broker_id: int, unique: str) -> None:
        """Store a cut. ``unique`` must differ between the cuts of a broker."""
        content = encode_cut(cut)
        await self._storage.upload(cut_key(cut, broker_id, unique), content, len(content))

    async def delete_old(self, newest: ClusterCut, retention_ms: int) -> None:
        """Delete cuts that are older than the retention. Also delete data to which no kept cut refers."""
        keep_from_ms = newest.created_ms - retention_ms
        kept: dict[str, frozenset[str]] = {}
        old: list[str] = []
        for info in await self.listed():
            name = parse_cut_key(info.key)
            if name is None:
                continue  # the object does not belong to a cut
            if name.created_ms < keep_from_ms:
                old.append(info.key)
            else:
                kept[info.key] = self._used.get(info.key) or await self._data_of(info)
        # Cuts are deleted before their data. Otherwise a cut could remain without its data.
        await self._storage.delete(old)
        self._used = kept
        used = newest.object_keys().union(*kept.values())
        before_ms = min(keep_from_ms, newest.created_ms - UNUSED_DATA_AGE_MS)
        unused = [
            info.key
            for info in await self.listed(DATA_FOLDER)
            if info.key not in used and (created_of(info.key) or newest.created_ms) < before_ms
        ]
        await self._storage.delete(unused)

    async def listed(self, folder: str = CUTS_FOLDER) -> list[ObjectInfo]:
        """The objects of a folder."""
        return [info async for page in self._storage.list(folder) for info in page]

    async def _data_of(self, info: ObjectInfo) -> frozenset[str]:
        try:
            return frozenset((await self._read(info)).object_keys())
        except BrokenCutError as error:
            logger.warning("%s is damaged, and its data are not kept: %s", info.key, error)
            return frozenset()

    async def _read(self, info: ObjectInfo) -> ClusterCut:
        return parse_cut(await self._storage.fetch(info.key, 0, info.size_bytes))
