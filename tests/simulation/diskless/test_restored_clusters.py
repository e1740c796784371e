"""All disks vanish, and the cluster comes back from its object store, in virtual time."""

from collections.abc import Iterable
from typing import Any

import pytest

from moldau.backup.restore import restoring
from moldau.backup.restore.recommit import FoundObject, ObjectWindow, Recommit
from moldau.backup.saved_ends import SavedEnds
from moldau.backup.stored_cuts import FoundCut
from moldau.simulation.restore.story import restore
from moldau.simulation.scenario import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize("seed", [0, 2])
def test_a_cluster_comes_back_from_its_store(seed: int) -> None:
    result = run_seed(restore(), seed)
    assert result.violations == []


async def _commit_nothing(recommit: Recommit, found: Iterable[FoundObject]) -> None:
    """Newer objects are not committed again."""


def _always(saved: SavedEnds, *_: Any) -> bool:
    """Objects are deleted although the records that freed them are not saved."""
    return True


def _late_objects(found: FoundCut, until_ms: int | None) -> ObjectWindow:
    """Objects from the time of the cut are not looked at."""
    return ObjectWindow(found.cut.created_ms + 1_500, 1 << 60, until_ms)


@pytest.mark.parametrize(
    ("holder", "name", "flaw", "seed"),
    [
        (Recommit, "commit", _commit_nothing, 0),
        (SavedEnds, "covers", _always, 0),
        (restoring, "_window", _late_objects, 0),
    ],
    ids=["no newer objects", "no wait for a save", "objects of late commits are missing"],
)
def test_a_flaw_is_found(
    holder: Any, name: str, flaw: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, name, flaw)
    assert run_seed(restore(), seed).violations
