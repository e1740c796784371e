"""The commits of a broker stay in order while several commits are in progress and coordinators move."""

from dataclasses import replace

import pytest

from moldau.coordinators.diskless.state.commit_order import CommitOrder, CommitTurn
from moldau.diskless.writing.open_commits import OpenCommits
from moldau.simulation.scenario import Result, run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


SEEDS_MAX = 24
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""


def run_short(seed: int, *, faults: int = 4) -> Result:
    scenario = replace(SCENARIOS["diskless-order"](), records_per_producer=100 * faults, fault_count=faults)
    return run_seed(scenario, seed)


def test_records_without_sequences_stay_in_order_while_coordinators_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_progress: list[int] = []
    open_next = OpenCommits.open_next

    def counted(self: OpenCommits) -> int:
        number = open_next(self)
        in_progress.append(len(self))
        return number

    monkeypatch.setattr(OpenCommits, "open_next", counted)
    assert run_short(0).violations == []
    assert max(in_progress) > 4


def test_commits_that_are_decided_as_they_arrive_are_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitOrder, "turn", lambda self, broker_id, place: CommitTurn.NOW)
    assert any(
        "stands behind" in violation
        for seed in range(7, 7 + SEEDS_MAX)
        for violation in run_short(seed, faults=2).violations
    )
