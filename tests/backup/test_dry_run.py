"""A dry run and the restore name the same missing data."""

import asyncio
from pathlib import Path
from uuid import UUID

from saved_cluster import SavedCluster

PRODUCER = 5
UNKNOWN = UUID(int=0xB)


def test_a_dry_run_names_topics_that_the_saved_state_lacks(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        key = await saved.store_wal_object(UNKNOWN)
        for report in (await saved.examine(), await saved.restore()):
            assert report.newer.unknown_topics == {UNKNOWN: 1}
            assert report.newer.kept == {key: {UNKNOWN}}

    asyncio.run(scene())


def test_a_dry_run_names_remote_records_that_cannot_be_read(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        await saved.save_remote_segment()
        async with saved.saving_partition(0):
            pass
        for report in (await saved.examine(), await saved.restore()):
            assert report.missing == ["remote records of t-0: remote.log.storage.system.enable is false"]

    asyncio.run(scene())


def test_transactional_batches_in_the_saved_state_are_not_reported_as_left_out(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        key = await saved.store_wal_object(producer_id=PRODUCER)
        async with saved.saving_partition(0) as writer:
            await writer.write(PRODUCER, 0, object_key=key)
        await saved.store_wal_object(producer_id=PRODUCER)
        report = await saved.restore()
        assert report.newer.transactional_batches == 1

    asyncio.run(scene())
