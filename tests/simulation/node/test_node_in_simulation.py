"""An unchanged node on a simulated machine. There are three kinds of faults with some seeds each. ``make
simulate`` runs more seeds."""

import pytest

from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


SEEDS_PER_PART = 20
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["node", "node-power", "node-disk"])
def test_nothing_acknowledged_is_lost(name: str, part: int) -> None:
    scenario = SCENARIOS[name]()
    seeds = range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART)
    failed = {seed: found for seed in seeds if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_a_node_repeats_its_history() -> None:
    scenario = SCENARIOS["node"]()
    assert run_seed(scenario, 3).digest == run_seed(scenario, 3).digest
