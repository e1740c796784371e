"""A coordinator forgets the outcome of an old object when it has no live batches of the object.

The object stays in the store while another coordinator has live batches of it. In a copy of a bucket, the
store's time of every object is the time of the copy. So old objects look new in this copy, and a restore
reads them, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from saved_cluster import SavedCluster, Writer

OLD_MS = 1_200_000


async def _commit(writer: Writer) -> None:
    await writer.write(1, 0)


async def _expire(writer: Writer) -> None:
    """The coordinator commits a file, and forgets it after a long time without commits."""
    await writer.write(1, 0)
    await writer.expire()


@pytest.mark.parametrize("before_save", [_commit, _expire])
def test_an_object_that_the_coordinator_may_have_forgotten_is_not_committed_again(
    before_save: Callable[[Writer], Awaitable[None]], tmp_path: Path
) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await before_save(writer)
        await saved.store_wal_object(age_ms=OLD_MS)
        await saved.store_wal_object(age_ms=-OLD_MS)
        report = await saved.restore()
        assert (report.newer.objects, report.newer.batches) == (2, 1)

    asyncio.run(scene())
