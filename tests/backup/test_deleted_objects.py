"""The store may lack WAL objects of the saved state, for example because they were deleted after an earlier
state was saved. A dry run and a restore name these objects."""

import asyncio
from pathlib import Path

import pytest
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


def test_objects_of_the_newest_state_that_a_copy_lacks_are_named(tmp_path: Path) -> None:
    """The store is an incomplete copy, or the cluster deleted objects after it had saved its last state."""

    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await writer.write(1, 0)
        (key,) = writer.keys
        for report in (await saved.examine(), await saved.restore()):
            expected = f"records in 1 WAL objects that are not in the store, the first is {key}"
            assert report.missing == [expected]

    asyncio.run(scene())


@pytest.mark.parametrize("until_ms", [None, LATER_MS], ids=["newest", "earlier"])
def test_a_state_with_all_objects_lacks_nothing(tmp_path: Path, until_ms: int | None) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0) as writer:
            await writer.write(1, 0)
        await saved.store_object(writer.keys[0])
        for report in (await saved.examine(until_ms), await saved.restore(until_ms)):
            assert report.missing == []

    asyncio.run(scene())
