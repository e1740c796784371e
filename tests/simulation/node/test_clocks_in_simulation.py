"""The clocks of nodes jump by an hour in both directions under load. The retention of records is
45 minutes."""

from dataclasses import replace

import pytest

from moldau.runtime import DeletionClock
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

MUTANT_SEEDS = range(1)
STORIES = {
    "node-clock": range(5),
    "tiered-clock": range(2),
    "diskless-clock": range(2),
    "replication-clock": range(2),
    # At the end of these stories, the clocks of the nodes still differ by an hour or two. Coordinators must
    # commit files of all nodes.
    "diskless-cluster-clock": (0, 6),
}


@pytest.mark.parametrize("name", STORIES)
def test_no_record_gets_old_because_a_clock_jumps(name: str) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in STORIES[name] if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


@pytest.mark.parametrize("seed", [72, 90])
def test_a_jump_before_the_first_round_of_retention_deletes_nothing(seed: int) -> None:
    assert not run_seed(SCENARIOS["node-clock"](), seed).violations


@pytest.mark.parametrize("name", STORIES)
def test_retention_by_the_clock_of_the_wall_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeletionClock, "now_ms", lambda clock: clock._clock.now_ms())
    limit_s = 100.0 if name in ("replication-clock", "diskless-cluster-clock") else 500.0
    scenario = replace(SCENARIOS[name](), time_limit_s=limit_s)
    found = [text for seed in MUTANT_SEEDS for text in run_seed(scenario, seed).violations]
    # With this mutant, each follower also deletes records by its own clock, so replicas may differ.
    assert any("is out of range" in text or "are not equal" in text for text in found)
