"""A cluster loses all disks, and is restored from its object store, in virtual time."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from moldau.backup.restore import restoring
from moldau.backup.restore.recommit import FoundObject, ObjectWindow, Recommit
from moldau.backup.saved_ends import SavedEnds
from moldau.backup.stored_cuts import FoundCut
from moldau.runtime import Machine
from moldau.simulation.restore.cluster_story import restore_cluster
from moldau.simulation.restore.story import restore
from moldau.simulation.scenario import Scenario, run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize("scenario", [restore, restore_cluster])
def test_a_cluster_comes_back_from_its_store(scenario: Callable[[], Scenario]) -> None:
    assert run_seed(scenario(), 0).violations == []


async def _commit_nothing(recommit: Recommit, found: Iterable[FoundObject]) -> None:
    """Inserted defect: objects that are newer than the cut are not committed again."""


def _always(saved: SavedEnds, *_: Any) -> bool:
    """Inserted defect: objects are deleted although the records that freed the objects are not saved."""
    return True


def _late_objects(found: FoundCut, until_ms: int | None) -> ObjectWindow:
    """Inserted defect: objects that were created at about the time of the cut are ignored."""
    return ObjectWindow(found.cut.created_ms + 1_500, 1 << 60, until_ms)


def _copy_nothing(machine: Machine, source: str, target: str) -> None:
    """Inserted defect: only one replica of a log gets the saved records."""


async def _list_at_once(*_: object) -> None:
    """Inserted defect: the restore lists the objects while old nodes can still write."""


SEEDS_MAX = 12
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""


@pytest.mark.parametrize(
    ("holder", "name", "flaw", "scenario", "seed"),
    [
        (SavedEnds, "covers", _always, restore, 0),
        (Recommit, "commit", _commit_nothing, restore, 0),
        (restoring, "_window", _late_objects, restore, 0),
        (restoring, "copy_log", _copy_nothing, restore_cluster, 0),
        (restoring.Restoring, "_until_nobody_writes", _list_at_once, restore_cluster, 36),
    ],
    ids=[
        "no wait for a save",
        "no newer objects",
        "objects of late commits are missing",
        "empty replicas",
        "no wait for old nodes",
    ],
)
def test_a_flaw_is_found(
    holder: Any,
    name: str,
    flaw: Any,
    scenario: Callable[[], Scenario],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holder, name, flaw)
    assert any(run_seed(scenario(), seed + more).violations for more in range(SEEDS_MAX))
