"""After a new leader epoch, a session does not assume that the fetcher has used the last response."""

from uuid import UUID

import pytest

from moldau.server.requests.fetch_sessions import FetchSession, FetchTarget, SessionPosition

TARGET = FetchTarget("t", UUID(int=1), 0)


@pytest.mark.parametrize(("epoch", "told"), [(3, (7, 2)), (4, (-1, -1))], ids=["same epoch", "new epoch"])
def test_the_watermark_and_the_log_start_are_sent_again_after_a_new_leader_epoch(
    epoch: int, told: tuple[int, int]
) -> None:
    known = SessionPosition(7, 100, 3, told_high_watermark=7, told_log_start_offset=2)
    session = FetchSession(1, {TARGET: known}, 0.0)
    session.update({TARGET: SessionPosition(7, 100, epoch)}, ())
    now = session.positions[TARGET]
    assert now.current_leader_epoch == epoch
    assert (now.told_high_watermark, now.told_log_start_offset) == told
