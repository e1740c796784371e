"""Reads of offsets that no local segment contains: from objects, with separate budgets.

All reads of a Fetch request begin in the same iteration of the event loop. They share a request to the
coordinator, and one ranged request for each object. The coordinator responds with the coordinates of batches
(their objects and positions). This response is cached for later reads. It expires before a deleted object is
removed, so no cached coordinate refers to a removed object.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from moldau.cluster.image.log_generations import LogGenerations
from moldau.coordinators.diskless.calls import (
    BatchCoordinate,
    FindBatchesCall,
    FoundPartition,
    PartitionToFind,
)
from moldau.diskless.cache.follow_lane import BatchFinder
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.reading.batch_conversion import finish_batches
from moldau.diskless.reading.object_reads import ObjectReads
from moldau.diskless.reading.read_meters import ColdReadMeters
from moldau.diskless.reading.read_round import ReadBatches, ReadRound
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors

_ATTEMPTS: Final = 3
_RETRY_DELAY_S: Final = 0.05
_REMEMBERED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ColdReadSettings:
    """Limits of cold reads, in bytes and milliseconds."""

    budget_bytes: int = 64 * 1024**2
    look_ahead_bytes: int = 8 * 1024**2
    """One request to the coordinator asks for the coordinates (objects and positions) of batches that have
    this total size in bytes."""
    coordinate_lifetime_ms: int = 10_000
    """Time for which the coordinator's response is used. It must be shorter than the grace period of deleted
    objects."""
    timeout_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class ColdOutcome:
    """The result of a cold read. Its first batch is the batch that contains the requested offset. The result
    has no batches when the requested offset is the high watermark."""

    batches: Sequence[tuple[BatchCoordinate, memoryview]] = ()
    """The batches as they are in the objects; :meth:`finished` sets their offsets."""
    failure: KafkaError | None = None
    moved_to_tier: bool = False
    """Whether the records at the offset have left the WAL. This read then has no batches, and the caller must
    read from remote storage."""
    last_stable_offset: int = 0
    """The last stable offset at the time when the coordinator found the batches. Aborted transactions before
    this offset are known."""

    def committed(self) -> "ColdOutcome":
        """A copy that contains only the batches before the last stable offset."""
        end = self.last_stable_offset
        return replace(self, batches=[each for each in self.batches if each[0].last_offset < end])

    def finished(self, generations: LogGenerations) -> memoryview:
        """The batches in the form that consumers get. Raises :class:`CorruptRecordError`."""
        return finish_batches(self.batches, generations)


@dataclass(slots=True)
class _WaitingRead:
    cache: PartitionCache
    offset: int
    max_bytes: int
    answer: "asyncio.Future[ColdOutcome]"
    batches: ReadBatches = field(default_factory=list)
    failure: StorageError | None = None
    last_stable_offset: int = 0


@dataclass(frozen=True, slots=True)
class _NextBatches:
    """Cached coordinates (objects and positions) of the batches that follow the batches of the last read.

    Reads of these batches do not extend the lifetime, which ends at ``dies_at_s`` on the event loop's clock.
    """

    next_offset: int
    coordinates: Sequence[BatchCoordinate]
    dies_at_s: float


class ColdReads:
    """Handles all cold reads of a broker."""

    def __init__(
        self,
        finder: BatchFinder,
        reads: ObjectReads,
        meters: ColdReadMeters,
        settings: ColdReadSettings,
        unexpected: UnexpectedErrors,
    ) -> None:
        self._finder = finder
        self._reads = reads
        self._meters = meters
        self._settings = settings
        self._unexpected = unexpected
        self._asked: list[_WaitingRead] = []
        self._remembered: dict[PartitionKey, _NextBatches] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def in_hand(self) -> Mapping[str, int]:
        """Return the amounts of resources that are in use; see :meth:`DisklessWriter.in_hand`."""
        return {
            "cold reads asked": len(self._asked),
            "cold reads": len(self._tasks),
            "cold read bytes": self._reads.taken_bytes,
        }

    def read(self, cache: PartitionCache, offset: int, max_bytes: int) -> "asyncio.Future[ColdOutcome]":
        """Read at most ``max_bytes`` of batches, beginning with the batch that contains ``offset``. This
        first batch is returned even if it is larger than ``max_bytes``.

        A failure is a ``KafkaError`` in the outcome: OFFSET_OUT_OF_RANGE outside the committed range,
        KAFKA_STORAGE_ERROR when the object store or the coordinator does not respond.
        """
        loop = asyncio.get_running_loop()
        ask = _WaitingRead(cache, offset, max_bytes, loop.create_future())
        if not self._asked:
            loop.call_soon(self._begin)
        self._asked.append(ask)
        return ask.answer

    def forget(self, key: PartitionKey) -> None:
        """Drop the cached coordinates of a partition that has left this broker."""
        self._remembered.pop(key, None)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        asked, self._asked = self._asked, []
        task = asyncio.get_running_loop().create_task(self._answer(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, asked: list[_WaitingRead]) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                await self._try(asked)
        except (TimeoutError, KafkaError, OSError) as error:
            self._fail_rest(asked, str(error) or "no answer in time")
        except asyncio.CancelledError:
            self._fail_rest(asked, "the node stops")
            raise
        except Exception as error:
            self._unexpected.report("reading from objects", error)
            self._fail_rest(asked, "the read failed")

    @staticmethod
    def _fail_rest(asked: list[_WaitingRead], reason: str) -> None:
        for ask in asked:
            _give(ask, ColdOutcome(failure=KafkaError(ErrorCode.kafka_storage_error, reason)))

    async def _try(self, asked: list[_WaitingRead]) -> None:
        gets = 0
        try:
            gets = await self._try_again(asked)
        finally:
            self._meters.gets_per_fetch.update(gets)
        for ask in asked:
            reason = str(ask.failure or "the coordinator's answers do not fit")
            _give(ask, ColdOutcome(failure=KafkaError(ErrorCode.kafka_storage_error, reason)))

    async def _try_again(self, asked: list[_WaitingRead]) -> int:
        """Repeat until all reads are complete, or until the maximum number of attempts is reached. Returns
        the number of requests.
        """
        gets = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_RETRY_DELAY_S * 2**attempt)
            lots = await self._resolve([ask for ask in asked if not ask.answer.done()])
            gets += await self._read(lots)
            if all(ask.answer.done() for ask in asked):
                break
        return gets

    async def _resolve(
        self, asked: list[_WaitingRead]
    ) -> list[tuple[_WaitingRead, Sequence[BatchCoordinate]]]:
        """Find the batches of each read. Reads that need no bytes are then complete."""
        lots: list[tuple[_WaitingRead, Sequence[BatchCoordinate]]] = []
        unknown: list[_WaitingRead] = []
        for ask in asked:
            known = self._recall(ask)
            if known is not None:
                stable = known.coordinates[-1].last_offset + 1
                lots.append((ask, self._needed_part(ask, known.coordinates, stable, known.dies_at_s)))
            else:
                unknown.append(ask)
        if unknown:
            wanted_bytes = self._settings.look_ahead_bytes
            call = FindBatchesCall(
                [PartitionToFind(*ask.cache.partition_id, ask.offset, wanted_bytes) for ask in unknown],
                max_bytes=wanted_bytes * len(unknown),
            )
            begin = asyncio.get_running_loop().time()
            found = await self._finder.find_batches(call)
            self._meters.find_time_ms.update((asyncio.get_running_loop().time() - begin) * 1000)
            # The lifetime begins when the request is sent, because the coordinator may remove the batches of
            # its response at any time after that.
            dies_at_s = begin + self._settings.coordinate_lifetime_ms / 1000
            for ask, partition in zip(unknown, found, strict=True):
                if self._has_batches(ask, partition):
                    stable = _stable_of(partition)
                    lots.append((ask, self._needed_part(ask, partition.batches, stable, dies_at_s)))
        return lots

    def _has_batches(self, ask: _WaitingRead, found: FoundPartition) -> bool:
        """Process the offsets in the response. A read without batches is then complete."""
        if found.high_watermark >= 0:
            ask.cache.learn(
                log_start_offset=found.log_start_offset,
                wal_start_offset=found.wal_start_offset,
                high_watermark=found.high_watermark,
                last_stable_offset=found.last_stable_offset,
                remote_metadata_position=found.remote_metadata_position,
            )
            ask.cache.learn_aborted(found.aborted)
        failure: KafkaError | None = None
        if found.moved_to_tier:
            failure = KafkaError(
                ErrorCode.kafka_storage_error, f"offset {ask.offset} is only in remote storage"
            )
        elif found.error is not ErrorCode.none:
            failure = client_error(found.error, found.message, ErrorCode.kafka_storage_error)
        elif not found.log_start_offset <= ask.offset <= found.high_watermark:
            failure = KafkaError(
                ErrorCode.offset_out_of_range,
                f"{ask.offset} is not in [{found.log_start_offset}, {found.high_watermark}]",
            )
        elif found.batches:
            return True
        _give(ask, ColdOutcome(failure=failure, moved_to_tier=found.moved_to_tier))
        return False

    def _recall(self, ask: _WaitingRead) -> _NextBatches | None:
        remembered = self._remembered.pop(ask.cache.key, None)
        if remembered is None or remembered.next_offset != ask.offset or ask.failure is not None:
            return None
        return remembered if asyncio.get_running_loop().time() < remembered.dies_at_s else None

    def _needed_part(
        self,
        ask: _WaitingRead,
        coordinates: Sequence[BatchCoordinate],
        last_stable_offset: int,
        dies_at_s: float,
    ) -> Sequence[BatchCoordinate]:
        """The coordinates that the read needs. Remaining coordinates before the last stable offset are kept
        for the next read.

        The kept coordinates are used until ``dies_at_s``. Coordinates after the last stable offset are not
        kept, because they may belong to a transaction that is aborted later. Only a new response of the
        coordinator would contain the abort.
        """
        ask.last_stable_offset = last_stable_offset
        size_bytes, count = 0, 0
        for coordinate in coordinates:
            size_bytes += coordinate.size_bytes
            if count and size_bytes > ask.max_bytes:
                break
            count += 1
        rest = [each for each in coordinates[count:] if each.last_offset < last_stable_offset]
        if rest and len(self._remembered) < _REMEMBERED_MAX:
            self._remembered[ask.cache.key] = _NextBatches(rest[0].base_offset, rest, dies_at_s)
        return coordinates[:count]

    async def _read(self, lots: list[tuple[_WaitingRead, Sequence[BatchCoordinate]]]) -> int:
        def deliver(number: int, batches: ReadBatches) -> None:
            ask, wanted = lots[number]
            ask.batches += batches
            if len(ask.batches) == len(wanted):
                _give(ask, ColdOutcome(tuple(ask.batches), last_stable_offset=ask.last_stable_offset))

        def fail(number: int, error: StorageError) -> None:
            ask = lots[number][0]
            ask.failure = error
            ask.batches.clear()
            self._remembered.pop(ask.cache.key, None)
            if isinstance(error, ObjectNotFoundError):
                self._meters.lost_objects.value += 1
            else:
                # The storage layer has already retried, and the consumer will repeat its fetch. Therefore the
                # read is not repeated here.
                _give(ask, ColdOutcome(failure=KafkaError(ErrorCode.kafka_storage_error, str(error))))

        if not lots:
            return 0
        for ask, _ in lots:
            ask.batches.clear()
        read_round = ReadRound(self._reads, [wanted for _, wanted in lots], deliver, fail)
        self._meters.rounds.value += 1
        await read_round.run()
        self._meters.gets_per_round.update(read_round.gets)
        self._meters.round_bytes.update(sum(batch.size_bytes for _, wanted in lots for batch in wanted))
        return read_round.gets


def _stable_of(found: FoundPartition) -> int:
    """Return the last stable offset of a response. If the response has none, the coordinator does not support
    transactions, and the result is the high watermark."""
    return found.high_watermark if found.last_stable_offset < 0 else found.last_stable_offset


def _give(ask: _WaitingRead, outcome: ColdOutcome) -> None:
    if not ask.answer.done():
        ask.answer.set_result(outcome)


def check_lifetimes(coordinate_lifetime_ms: int, timeout_ms: int, grace_period_ms: int) -> None:
    """Check that a deleted object is removed only after all cached coordinates have expired and all requests
    that use them have ended. Otherwise raises ``ValueError``, which names the settings.
    """
    if coordinate_lifetime_ms + timeout_ms >= grace_period_ms:
        raise ValueError(
            "diskless.coordinator.orphan.scan.grace.period.ms: a grace of"
            f" {grace_period_ms} ms is not longer than the lifetime of cached coordinates"
            f" ({coordinate_lifetime_ms} ms) and the timeout of a read ({timeout_ms} ms) together"
        )
