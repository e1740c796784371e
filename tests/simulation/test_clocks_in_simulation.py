"""A node's clock jumps by an hour both ways, under load, where records are kept for 45 minutes."""

from dataclasses import replace

import pytest

from moldau.runtime import DeletionClock
from moldau.simulation.nodes import SCENARIOS
from moldau.simulation.scenario import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

MUTANT_SEEDS = range(1)


@pytest.mark.parametrize(("name", "count"), [("node-clock", 10), ("tiered-clock", 3), ("diskless-clock", 3)])
def test_no_record_gets_old_because_a_clock_jumps(name: str, count: int) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in range(count) if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


@pytest.mark.parametrize("seed", [72, 90])
def test_a_jump_before_the_first_round_of_retention_deletes_nothing(seed: int) -> None:
    assert not run_seed(SCENARIOS["node-clock"](), seed).violations


@pytest.mark.parametrize("name", ["node-clock", "tiered-clock", "diskless-clock"])
def test_retention_by_the_clock_of_the_wall_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeletionClock, "now_ms", lambda clock: clock._clock.now_ms())
    scenario = replace(SCENARIOS[name](), time_limit_s=500.0)
    found = [text for seed in MUTANT_SEEDS for text in run_seed(scenario, seed).violations]
    assert any("is out of range" in text for text in found)
