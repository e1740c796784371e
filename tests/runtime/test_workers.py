import asyncio
import threading

import pytest

from moldau.runtime import ThreadWorkers


def test_separate_threads_do_not_delay_other_work_and_end_with_the_other_threads() -> None:
    async def main() -> None:
        workers = ThreadWorkers(1)
        apart = workers.apart(1, "apart")
        go_on, ended = threading.Event(), threading.Event()

        def long() -> None:
            assert go_on.wait(60)
            ended.set()

        running = asyncio.ensure_future(apart.run(long))
        assert await workers.run(lambda: 5) == 5
        assert not ended.is_set()
        go_on.set()
        await asyncio.get_running_loop().run_in_executor(None, workers.close)
        assert ended.is_set()
        await running

    asyncio.run(main())


def test_more_functions_than_threads_all_run_and_give_their_results_and_errors() -> None:
    def root(number: int) -> float:
        if number < 0:
            raise ValueError(number)
        return number**0.5

    async def main() -> None:
        workers = ThreadWorkers(2)
        results = await asyncio.gather(
            *(workers.run(root, number) for number in range(-50, 50)), return_exceptions=True
        )
        assert [str(each) for each in results[:50]] == [str(number) for number in range(-50, 0)]
        assert results[50:] == [number**0.5 for number in range(50)]
        workers.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            await workers.run(root, 4)

    asyncio.run(main())


def test_a_function_whose_caller_was_cancelled_before_its_turn_does_not_run() -> None:
    async def main() -> None:
        workers = ThreadWorkers(1)
        go_on = threading.Event()
        began = threading.Event()
        ran: list[str] = []

        def first() -> None:
            began.set()
            assert go_on.wait(60)

        running = asyncio.ensure_future(workers.run(first))
        await asyncio.get_running_loop().run_in_executor(None, began.wait)
        cancelled = asyncio.ensure_future(workers.run(ran.append, "cancelled"))
        last = asyncio.ensure_future(workers.run(ran.append, "last"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        go_on.set()
        await running
        await last
        assert ran == ["last"]
        workers.close()

    asyncio.run(main())


def test_close_waits_for_functions_that_have_no_thread_yet() -> None:
    async def main() -> None:
        workers = ThreadWorkers(1)
        ran: list[int] = []
        calls = [asyncio.ensure_future(workers.run(ran.append, number)) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, workers.close)
        assert ran == list(range(20))
        await asyncio.gather(*calls)

    asyncio.run(main())
