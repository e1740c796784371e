"""One round of reads: batches of several partitions are read from objects.

Ranges are fetched in parallel. A partition gets its batches in order as they arrive, so the slow read of an
object delays only the partitions that need this object. When the read of an object fails, the round ends only
for the partitions that need this object.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.diskless.reading.batch_conversion import marker_batch
from moldau.diskless.reading.object_reads import DEFAULT_GAP_BYTES, ObjectReads, PlannedRead, plan_reads
from moldau.objects.storage import StorageError

ReadBatches: TypeAlias = list[tuple[BatchCoordinate, memoryview]]


class _Lot:
    """The batches of one partition that the round reads."""

    __slots__ = ("arrived", "coordinates", "given", "is_over")

    def __init__(self, coordinates: Sequence[BatchCoordinate]) -> None:
        self.coordinates = coordinates
        self.arrived: dict[int, memoryview] = {}
        self.given = 0
        self.is_over = not coordinates


class ReadRound:
    """Reads ``lots``. A lot is a list with the coordinates of one partition's batches. The number of a lot is
    its index in ``lots``. The callbacks get this number.

    ``deliver`` gets the next batches in order. ``fail`` is called at most once for a lot, and ends it.
    """

    def __init__(
        self,
        reads: ObjectReads,
        lots: Sequence[Sequence[BatchCoordinate]],
        deliver: Callable[[int, ReadBatches], None],
        fail: Callable[[int, StorageError], None],
        *,
        max_gap_bytes: int = DEFAULT_GAP_BYTES,
    ) -> None:
        self._reads = reads
        self._lots = [_Lot(lot) for lot in lots]
        self._deliver = deliver
        self._fail = fail
        self._owners = [(number, position) for number, lot in enumerate(lots) for position in range(len(lot))]
        self.plan = plan_reads([coordinate for lot in lots for coordinate in lot], max_gap_bytes)
        self.gets = 0

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the lots that have not ended: some of their batches have not been read yet."""
        return [number for number, lot in enumerate(self._lots) if not lot.is_over]

    def is_over(self, number: int) -> bool:
        """Whether a lot got all its batches, or failed."""
        return self._lots[number].is_over

    async def run(self) -> None:
        """Returns when every lot has ended. Raises only the errors of the callbacks."""
        away: list[PlannedRead] = []
        self._make_markers()
        for read in self.plan:
            view = self._reads.in_memory(read)
            if view is None:
                away.append(read)
            else:
                self._arrived(read, view)
        self.gets = len(away)
        if len(away) == 1:
            await self._fetch(away[0])
        elif away:
            async with asyncio.TaskGroup() as group:
                for read in away:
                    group.create_task(self._fetch(read))

    def _make_markers(self) -> None:
        for number, lot in enumerate(self._lots):
            for position, coordinate in enumerate(lot.coordinates):
                if coordinate.marker is not None:
                    lot.arrived[position] = marker_batch(coordinate)
            if lot.arrived:
                self._advance(number)

    async def _fetch(self, read: PlannedRead) -> None:
        try:
            view = await self._reads.fetch(read)
        except StorageError as error:
            for number in {self._owners[member][0] for member in read.members}:
                self._failed(number, error)
            return
        self._arrived(read, view)

    def _arrived(self, read: PlannedRead, view: memoryview) -> None:
        touched: dict[int, None] = {}
        wanted = 0
        for member in read.members:
            number, position = self._owners[member]
            lot = self._lots[number]
            if lot.is_over:
                continue
            coordinate = lot.coordinates[position]
            start = coordinate.byte_offset - read.start
            lot.arrived[position] = view[start : start + coordinate.size_bytes]
            wanted += coordinate.size_bytes
            touched[number] = None
        for number in touched:
            self._advance(number)
        if wanted * 2 < read.size_bytes:
            self._copy_waiting(touched)

    def _copy_waiting(self, numbers: dict[int, None]) -> None:
        """Copy the batches that wait for earlier batches. Their views would otherwise keep larger buffers in
        memory."""
        for number in numbers:
            arrived = self._lots[number].arrived
            for position, view in arrived.items():
                arrived[position] = memoryview(bytes(view))

    def _advance(self, number: int) -> None:
        lot = self._lots[number]
        ready: ReadBatches = []
        while (view := lot.arrived.pop(lot.given, None)) is not None:
            ready.append((lot.coordinates[lot.given], view))
            lot.given += 1
        lot.is_over = lot.given == len(lot.coordinates)
        if ready:
            self._deliver(number, ready)

    def _failed(self, number: int, error: StorageError) -> None:
        lot = self._lots[number]
        if not lot.is_over:
            lot.is_over = True
            lot.arrived.clear()
            self._fail(number, error)

    def give_up(self, number: int) -> None:
        """End a lot without ``fail``. Its remaining batches are not delivered."""
        self._lots[number].is_over = True
        self._lots[number].arrived.clear()
