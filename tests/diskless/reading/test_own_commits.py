"""A broker adds its own commits to its cache in order, with only one write to each log at a time. This is
also true after failures."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from moldau.coordinators.diskless.calls import BatchCoordinate, CommittedBatch
from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.writing.own_commits import OwnCommits, OwnRun
from moldau.diskless.writing.wal_file import FileShare
from moldau.protocol.partitions import PartitionKey
from moldau.records import Record, build_batch, parse_header
from moldau.runtime import ErrorCode, UnexpectedErrors
from moldau.storage.log.worker_appends import AsideWrite

P, Q = (PartitionKey(UUID(int=1), index) for index in range(2))


class HeldWorkers:
    """Workers that hold each job until the test releases it."""

    def __init__(self) -> None:
        self.held: list[asyncio.Event] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        event = asyncio.Event()
        self.held.append(event)
        await event.wait()
        return function(*args)

    def close(self) -> None: ...


class Write:
    def __init__(self, taker: "Taker", run: OwnRun) -> None:
        self._taker, self._run = taker, run

    def run(self) -> None:
        self._taker.seen.append(("written", *_name(self._run)))


class Taker:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.refused: set[PartitionKey] = set()
        self.failing: set[PartitionKey] = set()

    def promise(self, key: PartitionKey, batches: Sequence[BatchCoordinate]) -> bool:
        return key not in self.refused

    def begin(self, run: OwnRun) -> AsideWrite | None:
        if run.key in self.failing:
            raise RuntimeError("a bug")
        return cast(AsideWrite, Write(self, run))

    def end(self, run: OwnRun, write: AsideWrite) -> None:
        self.seen.append(("in the log", *_name(run)))

    def over(self, run: OwnRun) -> bool:
        self.seen.append(("over", *_name(run)))
        return ("in the log", *_name(run)) in self.seen


class Story:
    def __init__(self) -> None:
        self.taker, self.workers = Taker(), HeldWorkers()
        self.recent = RecentObjects(1 << 20)
        self.commits = OwnCommits(self.recent, self.taker, self.workers, UnexpectedErrors())
        self.over: list[str] = []

    def commit(
        self, name: str, *rows: tuple[PartitionKey, ErrorCode], transactional: bool = False
    ) -> FileShare:
        """Report the commit of an object that has one batch for each row. A row has the partition and the
        error code of its batch."""
        share = FileShare(cast(Any, SimpleNamespace(key=name)), 0)
        content, outcomes = bytearray(), []
        for offset, (key, error) in enumerate(rows):
            records = [Record(0, 1, None, b"value", ())]
            producer_id = 7 if transactional else -1
            batch = build_batch(
                records, producer_id=producer_id, producer_epoch=0, transactional=transactional
            )
            share.batches.append(
                cast(
                    Any,
                    SimpleNamespace(
                        key=key, byte_offset=len(content), header=parse_header(batch), timestamp_type=0
                    ),
                )
            )
            outcomes.append(CommittedBatch(error, offset))
            content += batch
        share.outcomes = outcomes
        self.recent.put(name, content, len(content))

        def is_over(share: FileShare) -> None:
            # After an error, the traceback in pytest's log still refers to the memory.
            if not self.taker.failing:
                # Clear the memory as before its next use; this raises an error if a view of the memory still
                # exists.
                content.clear()
            self.over.append(name)

        self.commits.committed(share, is_over)
        return share

    async def let_go(self) -> None:
        await turns()
        self.workers.held.pop(0).set()
        await turns()


def _name(run: OwnRun) -> tuple[int, int]:
    return run.key.partition, run.batches[0].base_offset


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(body: Callable[[Story], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(Story())

    asyncio.run(main())


OK, BAD = ErrorCode.none, ErrorCode.out_of_order_sequence_number


def test_files_are_cached_one_after_the_other_and_needed_until_then() -> None:
    async def body(story: Story) -> None:
        first, second = story.commit("a", (P, OK), (Q, OK)), story.commit("b", (P, OK))
        await turns()
        assert len(story.workers.held) == 1
        assert story.taker.seen == []
        await story.let_go()
        assert story.over == ["a"]
        done = [("written", 0, 0), ("written", 1, 1), ("in the log", 0, 0), ("in the log", 1, 1)]
        assert story.taker.seen == [*done, ("over", 0, 0), ("over", 1, 1)]
        await story.let_go()
        assert story.over == ["a", "b"]
        assert first.is_cached
        assert second.is_cached
        story.commits.finished([first])
        assert "a" not in story.recent
        assert "b" in story.recent

    run(body)


def test_batches_that_are_not_adjacent_are_written_one_after_the_other() -> None:
    async def body(story: Story) -> None:
        story.commit("a", (P, OK), (P, BAD), (P, OK))
        await story.let_go()
        assert story.taker.seen == [("written", 0, 0), ("in the log", 0, 0)]
        assert story.over == []
        await story.let_go()
        assert ("in the log", 0, 2) in story.taker.seen
        assert story.over == ["a"]

    run(body)


def test_transactional_batches_are_cached_from_memory() -> None:
    async def body(story: Story) -> None:
        share = story.commit("a", (P, OK), (Q, OK), transactional=True)
        await story.let_go()
        assert story.over == ["a"]
        assert share.is_cached

    run(body)


def test_a_commit_that_no_cache_accepts_ends_immediately_and_stays_in_memory() -> None:
    async def body(story: Story) -> None:
        story.taker.refused.add(P)
        share = story.commit("a", (P, OK))
        assert story.over == ["a"]
        story.commits.finished([share])
        assert "a" in story.recent
        half = story.commit("b", (P, OK), (Q, OK))
        await story.let_go()
        assert story.over == ["a", "b"]
        assert not half.is_cached

    run(body)


def test_a_defect_of_one_cache_does_not_delay_other_commits() -> None:
    async def body(story: Story) -> None:
        story.taker.failing.add(Q)
        share = story.commit("a", (P, OK), (Q, OK))
        story.commit("b", (P, OK))
        await turns()
        assert story.over == ["a"]
        assert not share.is_cached
        assert [seen for seen in story.taker.seen if seen[0] == "over"] == [("over", 0, 0), ("over", 1, 1)]
        await story.let_go()
        assert story.over == ["a", "b"]

    run(body)


def test_stopping_waits_only_for_writes_in_progress() -> None:
    async def body(story: Story) -> None:
        story.commit("a", (P, OK))
        story.commit("b", (P, OK))
        await turns()
        stopping = asyncio.ensure_future(story.commits.stop())
        await turns()
        assert not stopping.done()
        await story.let_go()
        await stopping
        assert story.over == ["a"]

    run(body)
