"""A node logs once that its clock differs from the active controller's clock. The age of an old record does
not count as a difference."""

import logging

import pytest

from moldau.cluster.clock_comparison import ClockComparison
from moldau.cluster.metadata_log import MetadataBatch

HOUR_MS = 3_600_000


class Node:
    """A node whose clock differs from the controller's by ``off_ms``."""

    def __init__(self, off_ms: int) -> None:
        self.off_ms = off_ms
        self.elapsed_s = 0.0
        self.comparison = ClockComparison(lambda: self._time_ms() + self.off_ms, lambda: self.elapsed_s)
        self.comparison.on_leader(101, 1)

    def _time_ms(self) -> int:
        return 1_700_000_000_000 + int(self.elapsed_s * 1000)

    def idle(self, seconds: int, *, lag_ms: int = 20) -> None:
        """The node gets a no-op record every half second. Each record arrives ``lag_ms`` after its append."""
        for _ in range(2 * seconds):
            self.elapsed_s += 0.5
            self.comparison.on_commit([MetadataBatch(0, 1, self._time_ms() - lag_ms, ())])


@pytest.mark.parametrize(
    ("off_ms", "said"),
    [(HOUR_MS, "3600 s ahead of"), (-HOUR_MS, "3599 s behind"), (30_000, ""), (-30_000, "")],
)
def test_a_large_difference_is_logged_once(off_ms: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(off_ms)
    node.idle(200)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(said)
    assert all(said in line and "active controller 101" in line for line in lines)


def test_the_last_difference_and_its_limit_are_known() -> None:
    node = Node(30_000)
    node.idle(40)
    assert 29_000 < node.comparison.difference_ms < 31_000
    assert not node.comparison.is_large
    node.comparison = ClockComparison(lambda: node._time_ms() + node.off_ms, lambda: node.elapsed_s, 5_000)
    node.idle(40)
    assert node.comparison.is_large
    node.off_ms = 0
    node.idle(70)
    assert not node.comparison.is_large


def test_a_replay_of_old_records_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(0)
    node.idle(20, lag_ms=24 * HOUR_MS)
    node.idle(200)
    assert not caplog.records


def test_a_corrected_clock_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node(HOUR_MS)
    node.idle(40)
    node.off_ms = 0
    node.idle(70)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
