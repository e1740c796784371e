"""Runs a coroutine function for many items, with a limited number in parallel."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

__all__ = ["CALLS_A_TURN", "side_by_side"]

CALLS_A_TURN: Final = 50
"""After this number of calls by all workers, other tasks of the event loop can run. This is needed because
calls for idle partitions never wait."""

T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(
    function: Callable[[T], Awaitable[R]], arguments: Sequence[T], at_a_time: int
) -> list[R]:
    """Apply ``function`` to each argument, at most ``at_a_time`` in parallel. Returns the results in order.

    Raises the first error. Before that, the calls in progress are cancelled, and their end is awaited.
    """
    results: dict[int, R] = {}
    numbered = enumerate(arguments)
    # All workers run in each iteration of the event loop, one worker after another.
    calls_a_turn = max(1, CALLS_A_TURN // at_a_time)

    async def work() -> None:
        for number, argument in numbered:
            results[number] = await function(argument)
            if number % calls_a_turn == calls_a_turn - 1:
                await asyncio.sleep(0)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_a_time, len(arguments))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[number] for number in range(len(arguments))]
