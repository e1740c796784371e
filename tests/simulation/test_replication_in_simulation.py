"""Three nodes with replicated partitions, in virtual time: nothing acknowledged is lost, whatever strikes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.replication import reads
from moldau.replication.leader import Leader
from moldau.simulation.nodes import SCENARIOS
from moldau.simulation.scenario import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = 2
FLAW_SEEDS = range(3, 40)


@pytest.mark.parametrize("name", ["replication", "replication-power"])
def test_what_is_acknowledged_survives(name: str) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in range(SEEDS) if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_a_cluster_repeats_its_history() -> None:
    scenario = replace(SCENARIOS["replication"](), fault_count=2, records_per_producer=60)
    assert run_seed(scenario, 3).digest == run_seed(scenario, 3).digest


def watermark_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """A follower's fetch from an offset counts for the record that it asks for, too."""
    fetched: Callable[..., bool] = Leader.follower_fetched

    def generous(self: Leader, replica_id: int, fetch_offset: int, now_ms: int, **more: Any) -> bool:
        return fetched(self, replica_id, min(fetch_offset + 1, self.log_end_offset), now_ms, **more)

    patch.setattr(Leader, "follower_fetched", generous)


def truncation_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A leader does not compare a follower's log with its own."""
    patch.setattr(reads, "diverging_epoch", lambda *_: None)


def acknowledged_by_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """The watermark follows the leader's own log."""
    patch.setattr(Leader, "_bounds_changed", _alone)


def _alone(leader: Leader) -> None:
    leader._bounding, leader.alone = (), True


FLAWS = [watermark_one_too_far, truncation_forgotten, acknowledged_by_the_leader_alone]


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    scenario = SCENARIOS["replication"]()
    assert any(run_seed(scenario, seed).violations for seed in FLAW_SEEDS)
