"""Committed offsets survive kills, losses of power and failing disks. Mutants are detected."""

from collections.abc import Callable
from typing import Any

import pytest
from loading_flaws import ignore_records

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.simulation.offsets.committer import UNDER_WAY_S, Commits
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.storage.log.partition_log import PartitionLog

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = 4
MUTANT_SEEDS = range(8)


@pytest.mark.parametrize("name", ["offsets", "offsets-power", "offsets-disk"])
def test_no_acknowledged_commit_is_forgotten(name: str) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in range(SEEDS) if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"
    # In each run of the node, the state of the coordinator was compared with the state that a replay of its
    # log gives.
    tally = scenario.coordinator_tally
    assert tally.terms > 3 * SEEDS, "hardly any term but the first was compared"
    assert tally.states > 2 * tally.terms


def test_a_commit_without_an_answer_may_take_effect_for_a_while() -> None:
    commits = Commits()
    commits.sent(7, now_s=1.0)
    assert commits.allowed() == {-1, 7}
    commits.sent(8, now_s=2.0)
    commits.acknowledged(8, now_s=2.5)
    assert commits.allowed() == {7, 8}
    commits.fetched(8, now_s=2.0 + UNDER_WAY_S)
    assert commits.allowed() == {8}


def forget_the_last_commits(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator that loads its log ignores the end of the log."""

    def is_last(loader: Any, entry: Any) -> bool:
        is_at_end: bool = entry.offset >= loader._log.log_end_offset - 3
        return is_at_end and loader._name.startswith(CONSUMER_OFFSETS_TOPIC)

    ignore_records(patch, is_last)


def acknowledge_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: an append is acknowledged before it is on the disk."""
    patch.setattr(PartitionLog, "must_flush", property(lambda _log: False))


@pytest.mark.parametrize(
    ("mutate", "name"), [(forget_the_last_commits, "offsets"), (acknowledge_before_sync, "offsets-power")]
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], name: str) -> None:
    scenario = SCENARIOS[name]()
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        found = (text for seed in MUTANT_SEEDS for text in run_seed(scenario, seed).violations)
        is_caught = any(text.startswith("group-") for text in found)
    assert is_caught, f"{mutate.__doc__} is missed"
