"""Footers of WAL objects are read in parallel."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from moldau.backup.restore.recommit import (
    FoundObject,
    ObjectWindow,
    RecommitReport,
    find_objects,
    list_objects,
)
from moldau.objects.storage import ObjectInfo, StorageError

COUNT = 300
TURNS_MAX = 10_000


class SlowFirst:
    """A store that sends its first response after all other responses."""

    def __init__(self) -> None:
        self.answered = 0

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        if prefix == "wal/0/":
            yield [
                ObjectInfo(f"wal/0/2026112316/{number:012x}-1-{number:020x}", 10, number)
                for number in range(COUNT)
            ]

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        turns = 0
        while key.endswith(f"-{0:020x}") and self.answered < COUNT - 1:
            turns += 1
            if turns > TURNS_MAX:
                raise StorageError("the others wait for the first", transient=False)
            await asyncio.sleep(0)
        self.answered += 1
        return memoryview(b"no footer!")


async def _found(storage: SlowFirst, report: RecommitReport) -> list[FoundObject]:
    listed = await list_objects(storage)  # type: ignore[arg-type]
    return await find_objects(storage, listed, ObjectWindow(0, 0), report)  # type: ignore[arg-type]


def test_a_slow_footer_does_not_delay_other_footers() -> None:
    report = RecommitReport()
    found = asyncio.run(_found(SlowFirst(), report))
    assert found == []
    assert len(report.damaged) == 20  # the report has the names of at most 20 objects


class Empty(SlowFirst):
    """A store with an empty object. It refuses ranges without bytes, as obstore does."""

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        if prefix == "wal/0/":
            yield [ObjectInfo(f"wal/0/2026112316/{1:012x}-1-{0:020x}", 0, 1)]

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        raise ValueError(f"invalid range: {offset} to {offset + size}")


def test_an_empty_object_is_damaged_and_does_not_end_the_restore() -> None:
    report = RecommitReport()
    found = asyncio.run(_found(Empty(), report))
    assert found == []
    assert len(report.damaged) == 1
