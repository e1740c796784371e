"""Idempotent producers change brokers while their requests are in flight, so batches arrive before their
predecessors. Such a batch is held. If it were refused, clients would begin a new epoch and send all their
batches again, and some records would be stored twice."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.coordinators.diskless.state import commit
from moldau.coordinators.diskless.state.producers import Verdict
from moldau.diskless.writing.writer import DisklessWriter
from moldau.runtime import ErrorCode
from moldau.simulation.history import Production
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORIES = [("diskless-cluster", 7), ("diskless-racks-changes", 3)]


class Tally:
    """What happened to batches that arrived before their predecessors."""

    def __init__(self) -> None:
        self.held = 0
        """How often a batch was written again into a later object."""
        self.refused: list[str] = []
        """Batches that a producer got back with OUT_OF_ORDER_SEQUENCE_NUMBER."""


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Tally:
    found = Tally()
    hold: Callable[..., bool] = DisklessWriter._hold
    is_given_up: Callable[..., bool] = Production.is_given_up

    def counted(*given: Any) -> bool:
        is_held = hold(*given)
        found.held += is_held
        return is_held

    def noted(self: Production, error: ErrorCode, now_s: float) -> bool:
        if error is ErrorCode.out_of_order_sequence_number:
            found.refused.append(f"{self.producer}: {self.first_number}")
        return is_given_up(self, error, now_s)

    monkeypatch.setattr(DisklessWriter, "_hold", counted)
    monkeypatch.setattr(Production, "is_given_up", noted)
    return found


@pytest.mark.parametrize(("story", "seed"), STORIES)
def test_a_batch_that_arrives_before_its_predecessor_is_held(tally: Tally, story: str, seed: int) -> None:
    assert run_seed(SCENARIOS[story](), seed).violations == []
    assert tally.held > 10, "the story proves nothing"
    assert tally.refused == []


def refused_at_once(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the coordinator refuses a batch that leaves a gap."""
    patch.setitem(commit._VERDICTS, Verdict.AHEAD, ErrorCode.out_of_order_sequence_number)


def refused_after_two_seconds(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the coordinator's patience ends long before that of clients."""
    patch.setattr(commit, "PATIENCE_MS", 2_000)


@pytest.mark.parametrize("defect", [refused_at_once, refused_after_two_seconds])
def test_an_early_refusal_is_noticed(
    tally: Tally, defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    run_seed(SCENARIOS["diskless-cluster"](), 7)
    assert tally.refused
