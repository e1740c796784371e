"""A restore commits no batch of an idempotent producer whose previous batches are missing.

Such a batch may be one of several batches in flight. Its producer sends the missing batch again after the
restore, and then also this batch. If the restore had committed it, the missing batch could not be appended
before it any more, and the producer could not continue.
"""

import asyncio
from pathlib import Path

from saved_cluster import SavedCluster

PRODUCER = 5


def test_batches_after_a_missing_first_batch_are_not_committed(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        for age_ms, sequence in ((2_000, 1), (1_000, 2)):
            await saved.store_wal_batches(
                {0: PRODUCER}, sequence=sequence, is_transactional=False, age_ms=age_ms
            )
        newer = (await saved.restore()).newer
        assert (newer.batches, newer.refused_batches) == (0, 2)

    asyncio.run(scene())
