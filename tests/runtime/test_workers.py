import asyncio
import threading

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
