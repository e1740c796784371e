"""Gathers the commits of one file that go to the same broker, and sends them in one request.

When the object of a file is stored, the parts of all its coordinators can be committed. So their commits are
requested in the same iteration of the event loop, and can be sent together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult
from moldau.coordinators.diskless.calls.subjects.commit_parts import CommitParts, PartResults
from moldau.runtime import ErrorCode, KafkaError


class _GatheredPart(NamedTuple):
    coordinator_id: int
    call: CommitFileCall
    answer: "asyncio.Future[CommitFileResult]"


class GatheredCommits:
    """The commits that were requested in this turn of the event loop, by leader and object."""

    def __init__(
        self,
        send_one: Callable[[int, CommitFileCall], Awaitable[CommitFileResult]],
        send_parts: Callable[[CommitParts], Awaitable[PartResults]],
    ) -> None:
        self._send_one = send_one
        self._send_parts = send_parts
        self._gathered: dict[tuple[int, str], list[_GatheredPart]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def commit(
        self, leader_id: int, coordinator_id: int, call: CommitFileCall
    ) -> "asyncio.Future[CommitFileResult]":
        """Commit a part of a file at its coordinator. The broker ``leader_id`` leads this coordinator."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CommitFileResult] = loop.create_future()
        key = (leader_id, call.object_key)
        if key not in self._gathered:
            self._gathered[key] = []
            loop.call_soon(self._send, key)
        self._gathered[key].append(_GatheredPart(coordinator_id, call, answer))
        return answer

    def _send(self, key: tuple[int, str]) -> None:
        parts = self._gathered.pop(key)
        task = asyncio.get_running_loop().create_task(self._answer(parts), name=f"commit {key[1]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, parts: "Sequence[_GatheredPart]") -> None:
        if len(parts) > 1:
            results: dict[int, CommitFileResult | Exception] = {}
            try:
                results.update(await self._send_parts([part[:2] for part in parts]))
            except Exception as error:
                # Every exception is passed to the caller, even an unexpected exception that a defect has
                # caused. Otherwise the caller would wait until its time-out, and then repeat the call.
                if not (isinstance(error, KafkaError) and error.code is ErrorCode.unsupported_version):
                    results.update((part.coordinator_id, error) for part in parts)
            for part in parts:
                if part.coordinator_id in results:
                    _settle(part.answer, results[part.coordinator_id])
        # A broker of an older version does not support the request for several parts. It gets each part in a
        # separate request.
        await asyncio.gather(*(self._answer_one(part) for part in parts if not part.answer.done()))

    async def _answer_one(self, part: "_GatheredPart") -> None:
        result: CommitFileResult | Exception
        try:
            result = await self._send_one(part.coordinator_id, part.call)
        except Exception as error:
            result = error
        _settle(part.answer, result)

    async def close(self) -> None:
        """End all requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _settle(answer: "asyncio.Future[CommitFileResult]", result: CommitFileResult | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, CommitFileResult):
        answer.set_result(result)
    else:
        answer.set_exception(result)
