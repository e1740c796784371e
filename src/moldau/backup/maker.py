"""Makes cuts: asks the leaders of all logs to save them, in the order of a cut, and stores the cut."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from crc32c import crc32c

from moldau.backup.calls import LogsToSave, SavedLog
from moldau.backup.cut import (
    CUTS_FOLDER,
    DATA_FOLDER,
    STEPS,
    BrokenCutError,
    ClusterCut,
    LogId,
    ObjectPart,
    created_of,
    cut_key,
    encode_cut,
    generation_of,
    new_key,
    parse_cut,
)
from moldau.backup.image_object import encode_image
from moldau.backup.ledger import Ledger, LedLog
from moldau.cluster.image.image import MetadataImage
from moldau.metrics import Meters
from moldau.objects.storage import ObjectInfo, ObjectStorage
from moldau.runtime import ErrorCode, KafkaError, Machine

logger = logging.getLogger(__name__)

__all__ = ["BackupCluster", "CutMaker", "CutSettings", "read_cut"]

UNUSED_DATA_AGE_MS: Final = 3_600_000
"""Age from which an object that no kept cut refers to is deleted. Another broker may be making a cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSettings:
    """How often cuts are made, and how long they are kept."""

    interval_ms: int
    retention_ms: int
    """Cuts are kept at least this long, for a restore of an earlier state. The newest one is always kept."""


class BackupCluster(Protocol):
    """The cluster as the maker of cuts sees it."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def generation(self) -> int:
        """The number of restores of the cluster before."""
        ...

    @property
    def image(self) -> MetadataImage: ...

    def is_maker(self) -> bool:
        """Whether this broker makes the cluster's cuts now."""
        ...

    async def save_logs(self, broker_id: int, wanted: LogsToSave) -> Sequence[SavedLog]:
        """Ask the leader of logs, which may be this broker. Raises ``KafkaError``."""
        ...

    def until_current(self) -> Awaitable[None]:
        """Return when this broker's image has every record that was committed at the time of the call."""
        ...


class CutMaker:
    """Makes a cut in each call of :meth:`run_once`, if something has changed since the last one."""

    def __init__(
        self,
        machine: Machine,
        storage: ObjectStorage,
        cluster: BackupCluster,
        settings: CutSettings,
        meters: Meters,
    ) -> None:
        self._machine = machine
        self._clock = machine.clock
        self._storage = storage
        self._cluster = cluster
        self._settings = settings
        self._ledger: Ledger | None = None
        self._image: MetadataImage | None = None
        """The image of the newest cut, if this broker made it."""
        self._used: dict[str, frozenset[str]] = {}
        """The data of the kept cuts, by the keys of the cuts."""
        self._round_keys: set[str] = set()
        """The objects that were stored for the cut in progress. They are deleted if it is not made."""
        self._next_deletion_s = 0.0
        self._current_at: float | None = None
        """Time of the loop up to which all changes are saved."""
        self.last_error = "no state was saved yet"
        """Reason of the last failure."""
        scope = meters.scoped("moldau.backup", "Cuts")
        self._cuts = scope.counter("CutsPerSec", "Cuts of the cluster's state that were stored.")
        self._bytes = scope.counter("BytesPerSec", "Bytes of logs and metadata stored for cuts.")
        self._failures = scope.counter("FailuresPerSec", "Cuts that could not be made.")
        scope.gauge("LagMs", lambda: self.lag_ms or 0.0, "Age of the newest state that is saved, in ms.")

    @property
    def lag_ms(self) -> float | None:
        """Age of the newest saved state; None when this broker does not make cuts, or has made none yet."""
        if self._current_at is None:
            return None
        return (asyncio.get_running_loop().time() - self._current_at) * 1000

    async def run_once(self) -> None:
        """Make a cut if this broker is the maker. Raises ``StorageError`` and ``KafkaError``."""
        if not self._cluster.is_maker():
            self._ledger = self._image = self._current_at = None
            return
        if self._ledger is None:
            self._current_at = asyncio.get_running_loop().time()
            self._ledger = Ledger(await newest_cut(self._storage))
        begun_at, created_ms = asyncio.get_running_loop().time(), self._clock.now_ms()
        try:
            cut = await self._new_cut(self._ledger, created_ms)
            if cut is not None:
                # From here on the cut may be in the store, even if the store's answer is an error.
                self._round_keys = set()
                await self._store(cut)
                self._ledger.complete(cut)
                self._cuts.mark()
        except BaseException as error:
            self._ledger.abandon()
            self.last_error = str(error) or type(error).__name__
            self._failures.mark()
            if isinstance(error, Exception) and self._round_keys:
                await self._storage.delete(self._round_keys)
            raise
        self._current_at = begun_at
        self._ledger.rounds += 1
        if cut is not None:
            await self._delete_old(cut)

    async def _new_cut(self, ledger: Ledger, created_ms: int) -> ClusterCut | None:
        """Read all logs and the metadata; None when nothing has changed since the newest cut."""
        cluster = self._cluster
        key = new_key(DATA_FOLDER, created_ms, cluster.broker_id, self._unique())
        self._round_keys = set()
        for number, topics in enumerate(STEPS):
            await self._save_step(ledger, _led_logs(cluster.image, topics), f"{key}-{number}")
        await cluster.until_current()
        image = cluster.image
        existing = [log.log_id for topics in STEPS for log in _led_logs(image, topics)]
        logs_now = ledger.logs(existing)
        newest = ledger.newest
        if newest is not None and image == self._image and logs_now == newest.logs:
            return None
        content = await encode_image(image)
        part = ObjectPart(f"{key}-image", 0, len(content), crc32c(content))
        if newest is not None and part[2:] == newest.metadata[2:]:
            part = newest.metadata
            if logs_now == newest.logs:
                self._image = image
                return None
        else:
            self._round_keys.add(part.object_key)
            await self._storage.upload(part.object_key, content, len(content))
            self._bytes.mark(len(content))
        self._image = image
        return ClusterCut(
            cluster_id=cluster.cluster_id,
            created_ms=created_ms,
            generation=cluster.generation,
            metadata=part,
            metadata_offset=image.provenance.offset,
            metadata_epoch=image.provenance.epoch,
            logs=logs_now,
        )

    async def _save_step(self, ledger: Ledger, logs: Sequence[LedLog], key: str) -> None:
        """Save logs at all their leaders."""
        by_leader: dict[int, list[LedLog]] = defaultdict(list)
        for log in logs:
            by_leader[log.leader_id].append(log)
        answers = await asyncio.gather(
            *(
                self._cluster.save_logs(
                    leader_id,
                    LogsToSave(f"{key}-{leader_id}", ledger.rounds, [ledger.request(log) for log in led]),
                )
                for leader_id, led in by_leader.items()
            )
        )
        topics = {log.log_id: log.topic for log in logs}
        for answer in answers:
            for saved in answer:
                self._round_keys.update(piece.part.object_key for piece in saved.pieces)
                ledger.saved(topics[saved.log_id], saved)
                self._bytes.mark(sum(piece.part.size_bytes for piece in saved.pieces))

    async def _store(self, cut: ClusterCut) -> None:
        content = encode_cut(cut)
        key = cut_key(cut, self._cluster.broker_id, self._unique())
        await self._storage.upload(key, content, len(content))

    def _unique(self) -> str:
        return f"{self._machine.entropy.uuid4().int & (1 << 48) - 1:012x}"

    async def _delete_old(self, newest: ClusterCut) -> None:
        """Delete cuts older than the retention, and data that no kept cut refers to."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_deletion_s:
            return
        self._next_deletion_s = now_s + max(
            self._settings.retention_ms / 10_000, self._settings.interval_ms / 1000
        )
        keep_from_ms = newest.created_ms - self._settings.retention_ms
        listed = await _listing(self._storage, CUTS_FOLDER)
        kept: dict[str, frozenset[str]] = {}
        for info in listed:
            if (created_of(info.key) or newest.created_ms) >= keep_from_ms:
                known = self._used.get(info.key)
                kept[info.key] = known or frozenset((await read_cut(self._storage, info)).object_keys())
        # Cuts are deleted first, so that none is left without its data.
        await self._storage.delete([info.key for info in listed if info.key not in kept])
        self._used = kept
        used = newest.object_keys().union(*kept.values())
        before_ms = min(keep_from_ms, newest.created_ms - UNUSED_DATA_AGE_MS)
        data = await _listing(self._storage, DATA_FOLDER)
        await self._storage.delete(
            [
                info.key
                for info in data
                if info.key not in used and (created_of(info.key) or newest.created_ms) < before_ms
            ]
        )


async def newest_cut(storage: ObjectStorage, *, until_ms: int | None = None) -> ClusterCut | None:
    """The newest cut of the latest generation, not newer than ``until_ms``; None when there is none.

    A damaged cut is skipped and logged. Raises ``StorageError``.
    """
    listed = await _listing(storage, CUTS_FOLDER)
    for info in sorted(listed, key=lambda info: (generation_of(info.key), info.key), reverse=True):
        created_ms = created_of(info.key)
        if created_ms is None or (until_ms is not None and created_ms > until_ms):
            continue
        try:
            return await read_cut(storage, info)
        except (BrokenCutError, ValueError, LookupError) as error:
            logger.warning("%s is skipped: %s", info.key, error)
    return None


async def read_cut(storage: ObjectStorage, info: ObjectInfo) -> ClusterCut:
    """Read a cut. Raises ``StorageError`` and :class:`BrokenCutError`."""
    return parse_cut(await storage.fetch(info.key, 0, info.size_bytes))


async def _listing(storage: ObjectStorage, folder: str) -> list[ObjectInfo]:
    return sorted([info async for page in storage.list(folder) for info in page], key=lambda info: info.key)


def _led_logs(image: MetadataImage, topics: Sequence[str]) -> list[LedLog]:
    """The partitions of topics that exist. Raises ``KafkaError`` when one has no leader."""
    found: list[LedLog] = []
    for name in topics:
        topic = image.topics.get(name)
        for index, partition in enumerate(() if topic is None else topic.partitions):
            assert topic is not None
            if partition.leader < 0:
                raise KafkaError(ErrorCode.leader_not_available, f"{name}-{index} has no leader")
            log_id = LogId(topic.topic_id, index)
            found.append(LedLog(name, log_id, partition.leader, partition.leader_epoch))
    return found
