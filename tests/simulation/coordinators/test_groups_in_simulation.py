"""Generations of groups survive restarts of their coordinator. Mutants are detected. A snapshot of a
coordinator's log removes records only after the check of the coordinator's state has replayed these
records."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.records import GroupRecord
from moldau.coordinators.loader import ShardLoader
from moldau.simulation.coordinators import agreement
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

MUTANT_SEEDS = range(4)


def test_generations_are_compared_in_every_term() -> None:
    scenario = SCENARIOS["offsets"]()
    assert not run_seed(scenario, 0).violations
    assert scenario.coordinator_tally.generations > 10


def test_a_snapshot_waits_for_the_reference_and_ends_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test the state of a coordinator is checked rarely, so that a snapshot is always written before
    the next check."""
    monkeypatch.setattr(agreement, "_LOOK_EVERY_S", 2.0)
    scenario = SCENARIOS["diskless"]()
    assert not run_seed(scenario, 0).violations
    assert scenario.coordinator_tally.states
    assert not scenario.coordinator_tally.gaps


def restore_a_generation_late(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a loaded group has a generation that is one higher than the generation in its
    record."""
    restore = Group.restore.__func__  # type: ignore[attr-defined]

    def restore_late(cls: Any, group_id: str, stored: Any) -> Any:
        group = restore(cls, group_id, stored)
        group.generation += _is_loading_a_node.pop("now", 0)
        return group

    replay = ShardLoader._replay_record

    def replay_marked(loader: Any, header: Any, entry: Any) -> None:
        if loader._name.startswith(CONSUMER_OFFSETS_TOPIC):
            _is_loading_a_node["now"] = 1
        replay(loader, header, entry)
        _is_loading_a_node.clear()

    patch.setattr(Group, "restore", classmethod(restore_late))
    patch.setattr(ShardLoader, "_replay_record", replay_marked)


_is_loading_a_node: dict[str, int] = {}


def forget_the_last_group_on_load(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a group coordinator that loads its log ignores the newest generation."""
    replay = ShardLoader._replay_record

    def replay_most(loader: Any, header: Any, entry: Any) -> None:
        is_of_node = loader._name.startswith(CONSUMER_OFFSETS_TOPIC)
        if is_of_node and isinstance(loader._codec.decode(entry.key, entry.value), GroupRecord):
            later = loader._log.log_end_offset - entry.offset
            if later < 20:
                return
        replay(loader, header, entry)

    patch.setattr(ShardLoader, "_replay_record", replay_most)


@pytest.mark.parametrize("mutate", [restore_a_generation_late, forget_the_last_group_on_load])
def test_a_coordinator_with_other_generations_than_its_log_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None],
) -> None:
    scenario = SCENARIOS["offsets"]()
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        found = (run_seed(scenario, seed).violations for seed in MUTANT_SEEDS)
        assert any("from its log: group members" in text for texts in found for text in texts)


def test_an_assignment_that_is_given_before_it_is_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inserted defect: members get their assignments, but the log does not contain the assignments. So
    partitions are assigned again after a kill."""
    from moldau.coordinators.groups.classic import syncing

    assign = syncing._assign

    def assign_without_a_record(turn: Any, group: Any, assignments: dict[str, bytes]) -> None:
        assign(turn, group, assignments)
        turn.out.records.clear()

    monkeypatch.setattr(syncing, "_assign", assign_without_a_record)
    scenario = SCENARIOS["offsets"]()
    found = (run_seed(scenario, seed).violations for seed in MUTANT_SEEDS)
    told = ("is given out after", "has two owners")
    assert any(any(word in text for word in told) for texts in found for text in texts)
