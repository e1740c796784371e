"""Coordinators forget a producer that was idle for a long time, and accept its next batches.

A coordinator of a running cluster first waits for earlier batches of this producer. A restore has all
batches, so it does not wait.
"""

import asyncio
from pathlib import Path

from saved_cluster import SavedCluster

PRODUCER = 5


def test_batches_of_a_forgotten_producer_come_back_once(tmp_path: Path) -> None:
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        for age_ms, sequence in ((3_000, 8), (2_000, 7), (1_000, 7), (0, 10)):
            await saved.store_wal_batches(
                {0: PRODUCER}, sequence=sequence, is_transactional=False, age_ms=age_ms
            )
        newer = (await saved.restore()).newer
        # Between 8 and 10, a batch is missing.
        assert (newer.batches, newer.repeated_batches, newer.refused_batches) == (2, 1, 1)

    asyncio.run(scene())
