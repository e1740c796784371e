"""A restore of a damaged state is refused before it changes anything, so the old cluster can go on."""

import asyncio
from pathlib import Path

import pytest
from saved_cluster import SavedCluster

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.objects.storage import StorageError


def test_a_damaged_log_does_not_end_the_old_cluster(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        key = await saved.damage_log(f"{DISKLESS_METADATA_TOPIC}-0")
        with pytest.raises(StorageError, match=f"{key} is damaged: its checksum is wrong"):
            await saved.restore()
        assert await saved.latest_generation() == 0
        assert not (tmp_path / "new").exists()

    asyncio.run(scene())
