"""A transaction coordinator that writes its markers to a list."""

import asyncio
from collections.abc import Iterable

from moldau.coordinators.transactions.service import TransactionPorts, TransactionService
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import Clock, SystemClock, UnexpectedErrors


class RecordingWriter:
    """A writer that records markers. It writes no markers to the partitions in ``deaf``, and returns these
    partitions, as after a retriable error."""

    def __init__(self) -> None:
        self.written: list[tuple[TransactionMarker, TopicPartition]] = []
        self.deaf: set[TopicPartition] = set()

    async def write(
        self, marker: TransactionMarker, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        left = {each for each in partitions if each in self.deaf}
        self.written += [(marker, each) for each in sorted(partitions) if each not in left]
        return left


def new_service(writer: RecordingWriter, clock: Clock | None = None) -> TransactionService:
    ids = iter(range(100, 200))

    async def new_id() -> int:
        return next(ids)

    ports = TransactionPorts(
        new_producer_id=new_id, markers=writer, level=lambda: 2, partition_count=lambda topic: 1
    )
    return TransactionService(clock or SystemClock(), TransactionSettings(), ports, UnexpectedErrors())


async def until_done(service: TransactionService, name: str) -> TransactionPhase:
    for _ in range(1000):
        found = await service.describe(name)
        if not found.state.is_prepared:
            return found.state
        await asyncio.sleep(0)
    raise AssertionError("the transaction is not completed")


class LoopClock:
    """A clock that shows the time of the event loop, which is virtual in a ``World``."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)
