"""A node logs once that its clock differs from the active controller's clock. The age of an old record does
not count as a difference. The node also estimates the time of the active controller."""

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

    def error_ms(self) -> int:
        """The difference between the node's estimate and the real time of the controller."""
        return self.comparison.controller_now_ms() - self._time_ms()


@pytest.mark.parametrize("off_ms", [HOUR_MS, -HOUR_MS])
def test_the_time_of_the_controller_does_not_depend_on_the_own_clock(off_ms: int) -> None:
    node = Node(off_ms)
    node.idle(1)
    assert node.error_ms() == -20
    node.off_ms = 3 * off_ms
    assert node.error_ms() == -20
    node.elapsed_s += 1_000.0  # there are no batches for a long time
    assert node.error_ms() == -20


def test_before_the_first_batch_the_own_clock_is_used() -> None:
    assert Node(HOUR_MS).error_ms() == HOUR_MS


def test_late_batches_do_not_change_the_time_of_the_controller() -> None:
    node = Node(0)
    node.idle(3, lag_ms=24 * HOUR_MS)  # the replay of old batches at the start
    node.idle(1)
    assert node.error_ms() == -20
    node.idle(3, lag_ms=HOUR_MS)
    node.idle(1, lag_ms=30)
    assert node.error_ms() == -20


def test_a_controller_whose_clock_was_set_back_is_followed_after_some_seconds() -> None:
    node = Node(0)
    node.idle(1)
    node.idle(10, lag_ms=HOUR_MS)
    assert node.error_ms() == -HOUR_MS
    node.idle(1)
    assert node.error_ms() == -20


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
