"""A restore waits until nodes of the old cluster can no longer write."""

import asyncio
from pathlib import Path

import pytest
from saved_cluster import SavedCluster

LEASE_MS = 200
EARLY_MS = 1
LATER_MS = 1 << 50


@pytest.mark.parametrize(
    ("until_ms", "waits"),
    [
        pytest.param(None, True, id="newest state"),
        # Records of old nodes may be older than this time.
        pytest.param(LATER_MS, True, id="time in the future"),
        # All records that the old nodes still write are newer than this time.
        pytest.param(EARLY_MS, False, id="time in the past"),
    ],
)
def test_a_restore_waits_if_it_restores_records_of_old_nodes(
    tmp_path: Path, until_ms: int | None, waits: bool
) -> None:
    async def scene() -> list[float]:
        saved = SavedCluster(tmp_path)
        saved.lease_ms = LEASE_MS
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        await saved.restore(until_ms, waits=True)
        return saved.waits

    assert bool(asyncio.run(scene())) is waits
