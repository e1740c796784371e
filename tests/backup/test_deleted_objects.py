"""A cluster can be restored to an earlier state, but objects of this state may have been deleted since then.
A dry run and a restore name these objects."""

import asyncio
from pathlib import Path

from saved_cluster import SavedCluster

LATER_MS = 1 << 50


def test_objects_of_an_earlier_state_that_were_deleted_later_are_named(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            for sequence in (0, 2, 4):
                await writer.write(1, 0, sequence)
        kept, *deleted = writer.keys
        await saved.store_object(kept)
        for report in (await saved.examine(LATER_MS), await saved.restore(LATER_MS)):
            (problem,) = report.missing
            assert problem.startswith("records in 2 WAL objects that were deleted after the state was saved")
            assert deleted[0] in problem

    asyncio.run(scene())


def test_an_earlier_state_with_all_objects_lacks_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await writer.write(1, 0)
        await saved.store_object(writer.keys[0])
        assert (await saved.examine(LATER_MS)).missing == []
        assert (await saved.restore(LATER_MS)).missing == []

    asyncio.run(scene())


def test_the_newest_state_needs_no_search_for_deleted_objects(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await writer.write(1, 0)
        assert (await saved.examine()).missing == []

    asyncio.run(scene())
