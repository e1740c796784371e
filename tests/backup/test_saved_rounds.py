"""A deletion waits for a save round that began after the deletion's record was written. The code is compared
with a model of the rounds."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.backup.saved_rounds import SavedRounds


@given(st.lists(st.sampled_from(["request", "complete", "fail", "new maker", "wait"]), max_size=60))
def test_a_wait_is_over_after_a_round_that_began_later(steps: list[str]) -> None:
    """A request for the saved ends may reach this broker at any time of a round, or not at all."""
    now = 0
    rounds = SavedRounds(lambda: float(now))
    maker, complete, round_began = 0, 0, 0
    newest_covered = -1
    """Latest beginning of a complete round."""
    waits = []
    for step in steps:
        now += 1
        match step:
            case "request":
                rounds.see(f"maker {maker}", complete)
            case "complete":
                newest_covered = max(newest_covered, round_began)
                complete, round_began = complete + 1, now
            case "fail":
                round_began = now
            case "new maker":
                maker, complete, round_began = maker + 1, 0, now
            case _:
                waits.append((now, rounds.wait()))
        for began, is_over in waits:
            assert not is_over() or newest_covered >= began
    if not any(not is_over() for _, is_over in waits):
        assert rounds.waiting_s == 0
    for _ in range(4):
        rounds.see(f"maker {maker}", complete)
        complete += 1
    assert all(is_over() for _, is_over in waits)
    assert rounds.waiting_s == 0


def test_the_waiting_time_is_measured_from_the_oldest_wait() -> None:
    now = 5.0
    rounds = SavedRounds(lambda: now)
    rounds.wait()
    now = 7.0
    rounds.wait()
    assert rounds.waiting_s == 2.0
