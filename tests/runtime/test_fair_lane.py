"""The thread that clients share fairly: the order of steps, and jobs that are not completed."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from moldau.runtime.fair_lane import ClientGoneError, FairLane
from moldau.runtime.steps import NextTurn, Steps, exhaust
from moldau.runtime.workers import InlineWorkers, ThreadWorkers


@dataclass(eq=False)
class Connection:
    name: str
    peer_host: str = "host"
    principal: str = "User:ANONYMOUS"
    closed: bool = False


class TurningWorkers:
    """Runs each function on the event loop, one turn later."""

    async def run(self, function, *args):
        await asyncio.sleep(0)
        return function(*args)


class Journal:
    """Makes jobs, and records each completed step by the name of its job."""

    def __init__(self):
        self.steps = []

    def job(self, name, steps=3, large_from=None, result=None):
        for number in range(steps):
            self.steps.append(name)
            yield NextTurn.LARGE if number == large_from else NextTurn.NEXT
        return result


def run(scenario):
    journal = Journal()

    async def main():
        await asyncio.wait_for(scenario(FairLane(TurningWorkers()), journal), 60)

    asyncio.run(main())
    return journal.steps


def test_a_client_waits_for_only_one_step_of_another_client_with_many_jobs():
    async def scenario(lane, journal):
        attacker, victim = Connection("attacker"), Connection("victim")
        bombs = [lane.put(attacker, journal.job(f"bomb {n}", steps=50)) for n in range(20)]
        assert await lane.put(victim, journal.job("victim", steps=2, result="done")) == "done"
        assert journal.steps[:4] == ["bomb 0", "victim"] * 2
        assert len(journal.steps) < 10
        await asyncio.gather(*bombs)

    steps = run(scenario)
    bombs = [step for step in steps if step != "victim"]
    assert bombs == [f"bomb {number}" for number in range(20) for _ in range(50)]


def test_connections_of_one_host_share_a_turn():
    async def scenario(lane, journal):
        crowd = [Connection("crowd", peer_host="theirs") for _ in range(30)]
        bombs = [lane.put(each, journal.job("bomb", steps=9)) for each in crowd]
        await lane.put(Connection("victim", peer_host="other"), journal.job("victim", steps=3))
        await asyncio.gather(*bombs)

    steps = run(scenario)
    assert steps[:6] == ["bomb", "victim"] * 3


def test_one_job_with_much_memory_continues_at_a_time():
    async def scenario(lane, journal):
        first = lane.put(Connection("a"), journal.job("large a", steps=4, large_from=0))
        second = lane.put(Connection("b"), journal.job("large b", steps=4, large_from=0))
        small = lane.put(Connection("c"), journal.job("small", steps=3))
        await asyncio.gather(first, second, small)

    steps = run(scenario)
    assert steps.index("large b") < 3, "it begins"
    assert steps.index("large b", 2) > max(n for n, step in enumerate(steps) if step == "large a")
    assert max(n for n, step in enumerate(steps) if step == "small") < len(steps) - 4


def test_jobs_of_a_closed_connection_are_dropped():
    async def scenario(lane, journal):
        gone = Connection("gone")
        under_way = lane.put(gone, journal.job("under way"))
        waiting = lane.put(gone, journal.job("waiting"))
        lasting = lane.put(gone, journal.job("lasting", result=7), is_lasting=True)
        await asyncio.sleep(0)
        gone.closed = True
        for dropped in (under_way, waiting):
            with pytest.raises(ClientGoneError):
                await dropped
        assert await lasting == 7

    steps = run(scenario)
    assert "waiting" not in steps
    assert steps.count("lasting") == 3


def test_a_job_that_fails_fails_alone():
    async def scenario(lane, journal):
        def broken():
            yield NextTurn.NEXT
            raise ValueError("broken")

        failed = lane.put(Connection("a"), broken())
        assert await lane.put(Connection("b"), journal.job("b", result=1)) == 1
        with pytest.raises(ValueError, match="broken"):
            await failed
        assert await lane.put(None, journal.job("c", result=2)) == 2

    run(scenario)


def test_steps_run_in_the_thread_one_at_a_time():
    async def main():
        workers = ThreadWorkers(1, "one")
        lane = FairLane(workers)
        names = set()

        def job():
            for _ in range(20):
                names.add(threading.current_thread().name)
                yield NextTurn.NEXT

        try:
            await asyncio.gather(*(lane.put(Connection(str(n)), job()) for n in range(5)))
        finally:
            workers.close()
        assert names == {"one_0"}

    asyncio.run(main())


def test_no_job_waits_after_its_lane_was_cancelled():
    async def main():
        workers = ThreadWorkers(1)
        lane = FairLane(workers)
        begun, go_on = threading.Event(), threading.Event()

        def job():
            begun.set()
            go_on.wait(60)
            yield NextTurn.NEXT

        answers = [lane.put(None, job()), lane.put(None, job())]
        await asyncio.to_thread(begun.wait, 60)
        (task,) = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        task.cancel()
        done, _ = await asyncio.wait(answers, timeout=60)
        assert all(answer.cancelled() for answer in done)
        assert len(done) == 2
        go_on.set()
        workers.close()

    asyncio.run(main())


def test_a_job_can_run_without_the_thread():
    journal = Journal()
    assert exhaust(journal.job("spot", result="x")) == "x"
    assert journal.steps == ["spot"] * 3


def test_the_error_of_a_job_keeps_none_of_its_variables() -> None:
    def opening() -> Steps[int]:
        opened = bytearray(1 << 20)
        yield NextTurn.NEXT
        try:
            len(opened) // 0
        except ZeroDivisionError:
            raise ValueError("bad records") from None
        return len(opened)

    async def story() -> None:
        lane = FairLane(InlineWorkers())
        with pytest.raises(ValueError, match="bad records") as failure:
            await lane.put(None, opening())
        error: BaseException | None = failure.value
        names: set[str] = set()
        while error is not None:
            at = error.__traceback__
            while at is not None:
                names |= {name for name in at.tb_frame.f_locals if at.tb_frame.f_code.co_name == "opening"}
                at = at.tb_next
            error = error.__cause__ or error.__context__
        assert names == set()

    asyncio.run(story())
