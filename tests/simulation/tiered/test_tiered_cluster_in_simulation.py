"""Tiered topics on three nodes and one object store, in virtual time. No record is lost, and no unneeded
object remains."""

from dataclasses import replace
from typing import Any

import pytest

from moldau.server.subsystems.tiered import reads
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.storage.log.auxiliary_state import AuxiliaryState

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(("name", "count"), [("tiered-cluster", 1), ("tiered-cluster-power", 1)])
def test_followers_continue_after_the_remote_tier_and_no_object_is_lost(name: str, count: int) -> None:
    failed = {seed: found for seed in range(count) if (found := run_seed(SCENARIOS[name](), seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_a_follower_that_forgets_the_epochs_of_remote_records_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = reads.fetch_auxiliary_state

    async def forgetful(*arguments: Any) -> AuxiliaryState:
        return (await fetched(*arguments))._replace(leader_epochs=())

    monkeypatch.setattr(reads, "fetch_auxiliary_state", forgetful)
    scenario = replace(SCENARIOS["tiered-cluster"](), step_limit=200_000)
    assert run_seed(scenario, 1).violations
