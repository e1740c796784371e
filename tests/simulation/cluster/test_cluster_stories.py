"""Seeded stories of whole clusters. The tests also insert flaws, and the stories must detect them."""

from collections.abc import Callable
from typing import Any

import pytest
from loading_flaws import ignore_records

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.groups.records import OffsetRecord
from moldau.server.handlers.records import lone_produce
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

MUTANT_SEEDS = range(3)


@pytest.mark.parametrize("name", ["cluster", "cluster-combined"])
def test_a_cluster_keeps_all_acknowledged_records_and_offsets(name: str) -> None:
    scenario = SCENARIOS[name]()
    result = run_seed(scenario, 0)
    assert not result.violations, f"repeat with: python -m moldau.simulation --node {name} --seed 0"
    assert result.record_count > 300
    assert scenario.coordinator_tally.terms > 2
    assert scenario.coordinator_tally.generations


def acknowledge_one_offset_too_far(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the offset in the response to a producer is one higher than the offset of its
    records."""
    real = lone_produce.lone_packer

    def packer(version: int) -> Any:
        pack = real(version)
        return lambda topic, index, base, *rest: pack(topic, index, base + 1, *rest)

    patch.setattr(lone_produce, "lone_packer", packer)


def load_no_late_commit(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a group coordinator that loads its log ignores commits near the end of the log."""

    def is_late(loader: Any, entry: Any) -> bool:
        is_of_node = loader._name.startswith(CONSUMER_OFFSETS_TOPIC)
        is_at_end = loader._log.log_end_offset - entry.offset < 10
        return (
            is_of_node
            and is_at_end
            and isinstance(loader._codec.decode(entry.key, entry.value), OffsetRecord)
        )

    ignore_records(patch, is_late)


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        (acknowledge_one_offset_too_far, "was acknowledged at"),
        (load_no_late_commit, "from its log: "),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], words: str) -> None:
    scenario = SCENARIOS["cluster"]()
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        found = (run_seed(scenario, seed).violations for seed in MUTANT_SEEDS)
        assert any(words in text for texts in found for text in texts)
