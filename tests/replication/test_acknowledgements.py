"""Appends that wait for the watermark get their responses in order. Many waiting appends cost little."""

import asyncio

from moldau.replication.appending.acknowledgements import KEPT_DONE_MAX, Acknowledgements
from moldau.replication.partition_interface import AppendOutcome
from moldau.replication.waiters import Deadlines
from moldau.runtime import ErrorCode

HOUR_MS = 3_600_000


def appended(offset: int) -> AppendOutcome:
    return AppendOutcome(ErrorCode.none, offset)


def test_a_move_of_the_watermark_completes_the_appends_below_it() -> None:
    async def scenario() -> None:
        waiting = Acknowledgements(Deadlines())
        answers = [waiting.add(offset, appended(offset), HOUR_MS) for offset in range(5)]
        waiting.advance(0)
        assert not any(answer.done() for answer in answers)
        waiting.advance(3)
        assert [answer.done() for answer in answers] == [True, True, True, False, False]
        assert answers[2].result() == appended(2)
        assert len(waiting) == 2
        waiting.advance(9, AppendOutcome(ErrorCode.not_enough_replicas_after_append))
        assert answers[4].result().error is ErrorCode.not_enough_replicas_after_append

    asyncio.run(scenario())


def test_a_duplicate_is_answered_with_the_first_append() -> None:
    async def scenario() -> None:
        waiting = Acknowledgements(Deadlines())
        last = waiting.add(7, appended(7), HOUR_MS)
        first = waiting.add(3, appended(3), HOUR_MS)
        between = waiting.add(5, appended(5), HOUR_MS)
        waiting.advance(4)
        assert [last.done(), first.done(), between.done()] == [False, True, False]
        waiting.advance(8)
        assert last.done()
        assert between.done()

    asyncio.run(scenario())


def test_a_producer_whose_wait_timed_out_gets_an_error_and_is_not_held_any_longer() -> None:
    async def scenario() -> None:
        deadlines = Deadlines()
        waiting = Acknowledgements(deadlines)
        stuck = waiting.add(0, appended(0), HOUR_MS)
        hasty = [waiting.add(offset, appended(offset), 1) for offset in range(1, 3 * KEPT_DONE_MAX)]
        assert all([(await answer).error is ErrorCode.request_timed_out for answer in hasty])
        assert len(waiting) == 1
        assert len(waiting._waiting) <= KEPT_DONE_MAX + 1
        assert len(deadlines._ticks) == 1
        waiting.advance(3 * KEPT_DONE_MAX)
        assert stuck.result() == appended(0)
        assert (len(waiting), len(waiting._waiting), len(deadlines._ticks)) == (0, 0, 0)

    asyncio.run(scenario())


def test_a_move_of_the_watermark_reads_only_the_completed_waiters_and_the_next_one() -> None:
    class Counted:
        looks = 0

        def __init__(self, offset: int) -> None:
            self.offset = offset

        def __lt__(self, watermark: int) -> bool:
            Counted.looks += 1
            return self.offset < watermark

        def __gt__(self, other: object) -> bool:
            return False

    async def scenario() -> None:
        deadlines = Deadlines()
        waiting = Acknowledgements(deadlines)
        for offset in range(10_000):
            waiting.add(Counted(offset), appended(offset), HOUR_MS)  # type: ignore[arg-type]
        assert len(deadlines._ticks) <= 100, "waits that begin together share timers"
        for watermark in range(1, 101):
            waiting.advance(watermark)
        assert Counted.looks == 200
        waiting.fail(appended(-1))
        assert len(deadlines._ticks) == 0

    asyncio.run(scenario())


def test_a_new_term_answers_all_that_wait() -> None:
    async def scenario() -> None:
        waiting = Acknowledgements(Deadlines())
        answer = waiting.add(1, appended(1), HOUR_MS)
        cancelled = waiting.add(2, appended(2), HOUR_MS)
        cancelled.cancel()
        waiting.fail(AppendOutcome(ErrorCode.not_leader_or_follower))
        assert answer.result().error is ErrorCode.not_leader_or_follower
        assert len(waiting) == 0

    asyncio.run(scenario())
