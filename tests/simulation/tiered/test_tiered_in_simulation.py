"""Unchanged code of tiered topics on a simulated machine and store. No record is lost, and no unneeded object
remains."""

import pytest

from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(("name", "count"), [("tiered", 2), ("tiered-power", 2), ("tiered-disk", 1)])
def test_acknowledged_records_stay_readable_and_no_object_leaks(name: str, count: int) -> None:
    failed = {seed: found for seed in range(count) if (found := run_seed(SCENARIOS[name](), seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # This seed found a defect: if a log began after the start of its first local segment, only the leader
        # epochs of the log contained this log start. After a kill the log start moved back.
        ("tiered", 15),
        # This seed found a defect: a segment was copied although its topic had been deleted and the metadata
        # of the segment had been dropped.
        ("consolidation", 60029),
        # This seed found a wrong check: the check expected deletions of objects, although a start had
        # truncated a log and therefore delayed all deletions.
        ("tiered-power", 77),
    ],
)
def test_seeds_that_found_defects_have_no_violations_now(name: str, seed: int) -> None:
    assert run_seed(SCENARIOS[name](), seed).violations == []
