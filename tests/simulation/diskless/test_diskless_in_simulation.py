"""Unchanged code of diskless topics on a simulated machine and store. There are four kinds of faults with a
few seeds each. ``make simulate`` runs more seeds."""

import os
import subprocess
import sys

import pytest

from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORIES = ("diskless", "diskless-power", "diskless-disk", "diskless-store")
SEEDS_PER_PART = 2
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", STORIES)
def test_nothing_acknowledged_is_lost_and_no_object_leaks(name: str, part: int) -> None:
    scenario = SCENARIOS[name]()
    seeds = range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART)
    failed = {seed: found for seed in seeds if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"
    # In each run of the node, the states of coordinators were compared with the states that a replay of their
    # logs gives.
    tally = scenario.coordinator_tally
    assert tally.terms > 3 * len(seeds), "hardly any term but the first was compared"
    assert tally.states > 2 * tally.terms


@pytest.mark.parametrize("name", ["consolidation", "consolidation-power"])
def test_records_that_leave_the_wal_can_always_be_read(name: str) -> None:
    found = run_seed(SCENARIOS[name](), 0).violations
    assert not found, f"repeat with: python -m moldau.simulation --node {name} --seed 0"


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # This seed found a defect: if a node restarted while the store throttled requests, the node stopped,
        # and lost its metadata and caches.
        ("diskless-store", 6),
        # This seed found a defect: a kill between the commits to a file's coordinators left the file without
        # an owner, so the file was never deleted.
        ("diskless-power", 12),
    ],
)
def test_seeds_that_found_defects_have_no_violations_now(name: str, seed: int) -> None:
    assert run_seed(SCENARIOS[name](), seed).violations == []


def test_a_seed_is_one_history_whatever_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [
                sys.executable,
                "-m",
                "moldau.simulation",
                "--node",
                "diskless-store",
                "--seeds",
                "1",
                "--digest",
            ],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
