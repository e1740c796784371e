"""The checkers of replicated logs detect errors, and accept correct histories."""

from collections.abc import Callable

import pytest

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.simulation.cluster.replica_agreement import (
    STATES_KEPT,
    LeaderAgreement,
    LogAgreement,
    StateAgreement,
    WatermarkMonotonicity,
)
from moldau.simulation.history import History


@pytest.fixture
def history() -> History:
    return History(lambda: 0.0)


def batch(value: bytes, base_offset: int = 0, epoch: int = 1) -> list[memoryview]:
    content = bytearray(build_batch([Record(0, 0, None, value)], leader_epoch=epoch))
    content[:8] = base_offset.to_bytes(8, "big")
    return [memoryview(content)]


def test_equal_logs_agree(history: History) -> None:
    logs = LogAgreement(history)
    for replica in ("one", "two"):
        logs.committed(replica, 0, 1, batch(b"a"))
        logs.committed(replica, 1, 2, batch(b"b", 1))
    logs.restored("three", 1)
    logs.committed("three", 1, 2, batch(b"b", 1))
    assert not history.violations


@pytest.mark.parametrize(("value", "epoch"), [(b"b", 1), (b"a", 2)])
def test_another_batch_at_an_offset_is_found(history: History, value: bytes, epoch: int) -> None:
    logs = LogAgreement(history)
    logs.committed("one", 0, 1, batch(b"a"))
    logs.committed("two", 0, 1, batch(value, epoch=epoch))
    assert "logs disagree" in history.violations[0]


def test_a_batch_that_is_applied_twice_is_found(history: History) -> None:
    logs = LogAgreement(history)
    logs.restored("one", 5)
    logs.committed("one", 4, 5, batch(b"a", 4))
    assert "one has applied 4 after 5" in history.violations[0]


def test_two_leaders_of_an_epoch_are_found(history: History) -> None:
    leaders = LeaderAgreement(history)
    leaders.led("one", 1, 1)
    leaders.led("two", 1, 1)
    leaders.led("two", 2, 2)
    assert not history.violations
    leaders.led("three", 2, 3)
    assert "epoch 2 is led by 3 and by 2" in history.violations[0]


def test_a_watermark_that_goes_back_is_found(history: History) -> None:
    watermarks = WatermarkMonotonicity(history)
    watermarks.seen("one.1", 5)
    watermarks.seen("one.1", 5)
    watermarks.seen("one.2", 3)  # one.2: the partition after a restart of its node
    assert not history.violations
    watermarks.seen("one.1", 4)
    assert "went back from 5 to 4" in history.violations[0]


def test_a_leader_that_answers_with_a_lower_watermark_than_its_predecessor_is_found(history: History) -> None:
    watermarks = WatermarkMonotonicity(history)
    watermarks.answered(2, 7)
    watermarks.answered(1, 5)  # a former leader, which does not know the newer epoch yet
    watermarks.answered(3, 7)
    assert not history.violations
    watermarks.answered(4, 6)
    assert "the watermark went back from 7" in history.violations[0]


@pytest.mark.parametrize(
    "report",
    [
        lambda states: states.reached("two", 4, {"a": 2}),
        lambda states: states.decides_on("one", {"a": 2}, {"a": 1}),
    ],
)
def test_a_state_that_does_not_follow_from_the_log_is_found(
    history: History, report: Callable[[StateAgreement], None]
) -> None:
    states = StateAgreement(history)
    states.reached("one", 4, {"a": 1})
    states.reached("two", 4, {"a": 1})
    states.decides_on("one", {"a": 1}, {"a": 1})
    assert not history.violations
    report(states)
    assert len(history.violations) == 1


def test_states_are_kept_for_a_bounded_number_of_offsets(history: History) -> None:
    states = StateAgreement(history)
    for offset in range(2 * STATES_KEPT):
        states.reached("one", offset, offset)
    states.reached("two", 0, "forgotten")
    assert not history.violations
    states.reached("two", 2 * STATES_KEPT - 1, "kept")
    assert history.violations
