"""Six brokers in three racks, in virtual time. Replicas and coordinators move, a topic is deleted and created
again, and brokers and the store fail, all while clients work."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.coordinators.diskless.state.commit import _CommitRule
from moldau.diskless.image_sync import ImageSync
from moldau.replication.core.leader import LeaderReplica
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORY = "diskless-racks-changes"


@pytest.mark.parametrize("seed", [1, 9])
def test_nothing_is_lost_or_left_over_while_everything_moves(seed: int) -> None:
    """Seed 1: a topic is deleted while its records are written. This must not end its producer. Seed 9: a
    broker without a replica of a coordinator starts while the store is down."""
    assert run_seed(SCENARIOS[STORY](), seed).violations == []


def deleted_topics_stay(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: coordinators are not told which topics are deleted."""

    async def nothing(self: ImageSync, coordinator_id: int, topic_ids: Any) -> None:
        return None

    patch.setattr(ImageSync, "_delete", nothing)


def batches_may_overtake(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a batch is accepted although the batch before it is missing."""
    patch.setattr(_CommitRule, "_check_ahead", lambda *given: None)


def fetch_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower's fetch acknowledges all records of its leader."""
    fetched: Callable[..., bool] = LeaderReplica.follower_fetched

    def generous(self: LeaderReplica, replica_id: int, fetch_offset: int, now_ms: int, **more: Any) -> bool:
        return fetched(self, replica_id, self.log_end_offset, now_ms, **more)

    patch.setattr(LeaderReplica, "follower_fetched", generous)


SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""
FLAWS = [
    (deleted_topics_stay, 0),
    (batches_may_overtake, 6),
    (fetch_counts_for_all, 3),
]


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    scenario = SCENARIOS[STORY]()
    assert any(run_seed(scenario, each).violations for each in range(seed, seed + SEEDS_MAX))
