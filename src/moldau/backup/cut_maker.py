"""Makes cuts: asks the leaders of all logs to save the logs, in the order of a cut, and stores the cut."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from crc32c import crc32c

from moldau.backup.calls import LogsToSave, SavedLog
from moldau.backup.cut_format import CUTS_FOLDER, STEPS, ClusterCut, LogPieces, ObjectPart, data_key
from moldau.backup.image_object import ImageEncoder
from moldau.backup.ledger import Ledger, LedLog
from moldau.backup.store_generations import LEASE_INTERVALS
from moldau.backup.stored_cuts import StoredCuts
from moldau.cluster.image.image import MetadataImage
from moldau.metrics import Meters
from moldau.objects.storage import ObjectStorage
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError, Machine

__all__ = ["BackupCluster", "CutMaker", "CutSettings"]

_NEWS_TIMEOUT_S: Final = 5.0
"""Timeout of a call to a broker that leads no log. A cut does not wait longer for such a broker."""
_PASSES_MAX: Final = 5
"""Maximum number of times that one cut reads all logs. More than two passes are needed only if snapshots are
made during the passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSettings:
    """The interval between cuts, and their retention."""

    interval_ms: int
    retention_ms: int
    """Minimum time for which cuts are kept, for a restore of an earlier state. The newest cut is always kept.
    """


class BackupCluster(Protocol):
    """The functions of the cluster that :class:`CutMaker` uses."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def generation(self) -> int:
        """The number of times that the cluster was restored."""
        ...

    @property
    def image(self) -> MetadataImage: ...

    def fail(self, reason: str) -> None:
        """End this node."""
        ...

    def is_maker(self) -> bool:
        """Whether this broker makes the cluster's cuts now."""
        ...

    async def save_logs(self, broker_id: int, wanted: LogsToSave) -> Sequence[SavedLog]:
        """Ask the broker ``broker_id``, which leads the logs, to save them. This may be the local broker.
        Raises ``KafkaError``.
        """
        ...

    def until_current(self) -> Awaitable[None]:
        """Wait until this broker's image has every record that was committed at the time of the call."""
        ...


class CutMaker:
    """Makes a cut in each call of :meth:`run_once`, if something has changed since the last cut."""

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
        self._encoder = ImageEncoder()
        self._image: MetadataImage | None = None
        """The image of the newest cut, if this broker made it."""
        self._stored = StoredCuts(storage)
        self._round_keys: set[str] = set()
        """The objects that were stored for the cut in progress. They are deleted if the cut is
        not made."""
        self._next_deletion_s = 0.0
        self._current_at: float | None = None
        """Time of the event loop. All changes before this time are saved."""
        self.last_error = "no state was saved yet"
        """The reason why there is no newer cut: the error of the last attempt, if it failed."""
        scope = meters.scoped("moldau.backup", "Cuts")
        self._cuts = scope.counter("CutsPerSec", "Cuts of the cluster's state that were stored.")
        self._bytes = scope.counter("BytesPerSec", "Bytes of logs and metadata stored for cuts.")
        self._objects = scope.counter("ObjectsPerSec", "Objects that were stored for cuts: PUT requests.")
        self._failures = scope.counter("FailuresPerSec", "Cuts that could not be made.")
        scope.gauge("LagMs", lambda: self.lag_ms or 0.0, "Age of the newest state that is saved, in ms.")

    @property
    def lag_ms(self) -> float | None:
        """Age of the newest saved state; None when this broker does not make cuts, or has made no cut yet."""
        if self._current_at is None:
            return None
        return (asyncio.get_running_loop().time() - self._current_at) * 1000

    async def run_once(self) -> None:
        """Make a cut if this broker makes the cluster's cuts. Raises ``StorageError`` and ``KafkaError``."""
        if not self._cluster.is_maker():
            self._ledger = self._image = self._current_at = None
            self._encoder = ImageEncoder()
            return
        begun_at, created_ms = asyncio.get_running_loop().time(), self._clock.now_ms()
        if self._current_at is None:
            # The age of the unsaved records is not known. Therefore the age of the saved state is counted
            # from the beginning of this call.
            self._current_at = begun_at
        try:
            if self._ledger is None:
                self._ledger = await self._begin()
            cut = await self._new_cut(self._ledger, created_ms)
            if cut is not None:
                # From this line on, the cut may be in the store even if the store returns an error. Therefore
                # the objects with the data of the cut must not be deleted after an error.
                self._round_keys = set()
                await self._stored.store(cut, self._cluster.broker_id, self._unique())
                self._ledger.complete(cut)
                self._cuts.mark()
                self._objects.mark()
        except BaseException as error:
            await self._abandon(error)
            raise
        self._current_at = begun_at
        self.last_error = "the next save has not ended"
        self._ledger.rounds += 1
        if cut is not None and begun_at >= self._next_deletion_s:
            settings = self._settings
            self._next_deletion_s = begun_at + max(settings.retention_ms / 10, settings.interval_ms) / 1000
            await self._stored.delete_old(cut, settings.retention_ms)

    async def _abandon(self, error: BaseException) -> None:
        """Discard the unfinished cut, and delete the objects that were stored for it."""
        self.last_error = str(error) or type(error).__name__
        self._failures.mark()
        if self._ledger is not None:
            self._ledger.abandon()
        if isinstance(error, Exception) and self._round_keys:
            await self._storage.delete(self._round_keys)

    async def _begin(self) -> Ledger:
        """Continue from the newest cut of this generation.

        After a restore, the logs are saved again from their start. This is needed because the old cluster may
        have made more cuts after the restored cut, with other records at the same offsets. A cluster that has
        lost metadata since the newest cut must not continue from that cut.
        """
        found = await self._stored.newest()
        await self._cluster.until_current()
        if found is None or found.cut.generation != self._cluster.generation:
            return Ledger(None, self._unique())
        offset, saved_offset = self._cluster.image.provenance.offset, found.cut.metadata_offset
        if saved_offset > offset:
            self._cluster.fail(
                f"the metadata end at offset {offset}, and those of offset {saved_offset} are saved in the"
                " object store: the folders of this node are an older copy. `moldau storage restore` brings"
                " back what is saved. To go on from the older copy, and lose what came later, delete the"
                f" newer states below {CUTS_FOLDER}"
            )
            raise KafkaError(ErrorCode.kafka_storage_error, "the folders are older than a saved state")
        return Ledger(found.cut, self._unique())

    async def _new_cut(self, ledger: Ledger, created_ms: int) -> ClusterCut | None:
        """Save all logs and the metadata, and return the new cut. Returns None when nothing has changed since
        the newest cut."""
        cluster = self._cluster
        key = data_key(cluster.generation, created_ms, cluster.broker_id, self._unique())
        self._round_keys = set()
        await self._notify_other_brokers(ledger, key)
        await self._save_all(ledger, key)
        await cluster.until_current()
        image = cluster.image
        existing = [log.log_id for topics in STEPS for log in _led_logs(image, topics)]
        logs_now = ledger.logs(existing)
        _check(existing, logs_now)
        newest = ledger.newest
        if newest is not None and self._has_same_metadata(image) and logs_now == newest.logs:
            return None
        content = await self._encoder.encode(image)
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
            self._objects.mark()
        self._image = image
        return ClusterCut(
            cluster_id=cluster.cluster_id,
            created_ms=created_ms,
            generation=cluster.generation,
            number=0 if newest is None else newest.number + 1,
            lease_ms=LEASE_INTERVALS * self._settings.interval_ms,
            metadata=part,
            metadata_offset=image.provenance.offset,
            metadata_epoch=image.provenance.epoch,
            logs=logs_now,
        )

    async def _save_all(self, ledger: Ledger, key: str) -> None:
        """Ask the leaders to save all logs, in the order of :data:`STEPS`.

        A pass saves all logs once. If a log begins with a new snapshot after a pass, another pass follows,
        because the snapshot may have been made during the pass. The snapshot may then contain the commit of a
        transaction that was decided after the pass had saved ``__transaction_state``. A restore could not
        revoke such a commit, because a snapshot has no markers. The next pass saves the decision, and stores
        only records that are not stored yet.
        """
        for number in range(_PASSES_MAX):
            has_new_snapshot = False
            for step, topics in enumerate(STEPS, number * len(STEPS)):
                logs = _led_logs(self._cluster.image, topics)
                has_new_snapshot |= await self._save_step(ledger, logs, f"{key}-{step}")
            if not has_new_snapshot:
                return
        raise KafkaError(ErrorCode.leader_not_available, "each pass of the save met a new snapshot")

    def _has_same_metadata(self, image: MetadataImage) -> bool:
        known = self._image
        if known is None:
            return False
        return image.provenance.offset == known.provenance.offset or image == known

    async def _notify_other_brokers(self, ledger: Ledger, key: str) -> None:
        """Send the number of the round to the brokers that lead none of the logs. A broker that does not
        receive this number deletes no objects.
        """
        cluster = self._cluster
        leaders = {log.leader_id for topics in STEPS for log in _led_logs(cluster.image, topics)}
        others = [each.broker_id for each in cluster.image.active_brokers() if each.broker_id not in leaders]
        wanted = LogsToSave(key, ledger.rounds, (), ledger.name)
        calls = (asyncio.wait_for(cluster.save_logs(each, wanted), _NEWS_TIMEOUT_S) for each in others)
        await asyncio.gather(*calls, return_exceptions=True)

    async def _save_step(self, ledger: Ledger, logs: Sequence[LedLog], key: str) -> bool:
        """Ask all leaders to save their logs. Returns whether any log now begins with another snapshot than
        before this call.
        """
        by_leader: dict[int, list[LedLog]] = defaultdict(list)
        for log in logs:
            by_leader[log.leader_id].append(log)
        answers: list[Sequence[SavedLog] | BaseException] = await asyncio.gather(
            *(
                self._cluster.save_logs(
                    leader_id,
                    LogsToSave(
                        f"{key}-{leader_id}",
                        ledger.rounds,
                        [ledger.request(log) for log in led],
                        ledger.name,
                    ),
                )
                for leader_id, led in by_leader.items()
            ),
            return_exceptions=True,
        )
        topics = {log.log_id: log.topic for log in logs}
        has_new_snapshot = False
        stored_before = len(self._round_keys)
        for answer in answers:
            for saved in () if isinstance(answer, BaseException) else answer:
                self._round_keys.update(piece.part.object_key for piece in saved.pieces)
                ledger.saved(topics[saved.log_id], saved)
                self._bytes.mark(sum(piece.part.size_bytes for piece in saved.pieces))
                has_new_snapshot |= any(piece.is_snapshot for piece in saved.pieces)
        self._objects.mark(len(self._round_keys) - stored_before)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return has_new_snapshot

    def _unique(self) -> str:
        return f"{self._machine.entropy.uuid4().int & (1 << 48) - 1:012x}"


def _led_logs(image: MetadataImage, topics: Sequence[str]) -> list[LedLog]:
    """The partitions of the given topics. Topics that do not exist are left out. Raises ``KafkaError`` when a
    partition has no leader.
    """
    found: list[LedLog] = []
    for name in topics:
        topic = image.topics.get(name)
        for index, partition in enumerate(() if topic is None else topic.partitions):
            assert topic is not None
            if partition.leader < 0:
                raise KafkaError(ErrorCode.leader_not_available, f"{name}-{index} has no leader")
            log_id = PartitionKey(topic.topic_id, index)
            found.append(LedLog(name, log_id, partition.leader, partition.leader_epoch))
    return found


def _check(existing: Sequence[PartitionKey], logs: Mapping[PartitionKey, LogPieces]) -> None:
    """Raise ``KafkaError`` if the cluster could not be restored from this cut."""
    for log_id in existing:
        log = logs.get(log_id)
        if log is None:
            raise KafkaError(ErrorCode.leader_not_available, f"{log_id} was created meanwhile")
        if (problem := log.problem()) is not None:
            raise KafkaError(ErrorCode.corrupt_message, f"{log.topic}-{log_id.partition}: {problem}")
