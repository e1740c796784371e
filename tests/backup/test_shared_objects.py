"""A WAL object has batches of two coordinators, and only the saved state of one of them knows the object."""

import asyncio
from pathlib import Path

from saved_cluster import SavedCluster

PRODUCER = 5


def test_an_object_is_not_deleted_before_all_coordinators_have_deleted_their_batches(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path, count=2)
        await saved.save_transactions({})
        key = await saved.store_wal_batches({0: PRODUCER, 1: -1})
        async with saved.saving_partition(0) as writer:
            await writer.write(PRODUCER, 0, object_key=key)
        async with saved.saving_partition(1):
            pass
        report = await saved.restore()
        assert report.newer.batches == 1
        known, committed = [await saved.file(index, key) for index in range(2)]
        assert known.has_live_batches
        assert committed.has_live_batches
        # An owner without a next owner deletes the object as soon as its own batches are deleted.
        assert (committed.is_owned, committed.next_owner_ids) != (True, ())

    asyncio.run(scene())
