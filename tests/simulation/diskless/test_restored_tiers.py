"""A node with remote segments loses all disks, in virtual time."""

from collections.abc import Mapping
from typing import Any

import pytest

from moldau.backup.restore import restoring
from moldau.backup.restore.tiered_logs import WrittenLogs
from moldau.simulation.restore import tiers
from moldau.simulation.scenario import run_seed
from moldau.tiered.removal.pending_deletions import PendingDeletions

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]
SEED = 1
DELETED_BEFORE_A_READ = 60_556
"""In this seed, retention deletes the records at the position of the story's reader."""


@pytest.fixture(autouse=True)
def no_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the orphan scans at the end of a story, because another test covers them. Long runs of the
    story include these scans."""
    monkeypatch.setattr(tiers, "SCANS_S", 0.0)


@pytest.mark.parametrize("seed", [SEED, DELETED_BEFORE_A_READ])
def test_remote_records_come_back(seed: int) -> None:
    assert run_seed(tiers.restored_tiers(), seed).violations == []


def _at_once(pending: PendingDeletions, _: Any) -> bool:
    """Inserted defect: segments are deleted although the records that freed the segments are not saved."""
    return True


async def _write_nothing(*_: Mapping[Any, Any]) -> WrittenLogs:
    """Inserted defect: the logs of classic topics are empty after the restore."""
    return WrittenLogs()


@pytest.mark.parametrize(
    ("holder", "name", "flaw"),
    [(PendingDeletions, "may_delete", _at_once), (restoring, "write_tiered_logs", _write_nothing)],
    ids=["no wait for a save", "empty logs"],
)
def test_a_flaw_is_found(holder: Any, name: str, flaw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, name, flaw)
    assert run_seed(tiers.restored_tiers(), SEED).violations
