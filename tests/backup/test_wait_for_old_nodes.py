"""A restore waits until nodes of the old cluster can no longer write."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from saved_cluster import SavedCluster

LEASE_MS = 24 * 3_600_000
"""The lease is long, because a restore does not wait if it lasts longer than the lease on a busy machine."""
EARLY_MS = 1
LATER_MS = 1 << 50


class Waiting(Exception):
    """The restore has begun to wait. Raised to end the restore."""


def stop(_: float) -> None:
    raise Waiting


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
    async def scene() -> None:
        saved = SavedCluster(tmp_path)
        saved.lease_ms, saved.on_wait = LEASE_MS, stop
        await saved.save_transactions({})
        async with saved.saving_partition(0):
            pass
        with pytest.raises(Waiting) if waits else contextlib.nullcontext():
            await saved.restore(until_ms, waits=True)

    asyncio.run(scene())
