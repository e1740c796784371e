"""Garbage collection of cycles in a process that holds many objects for long.

A full collection visits every object: 400 ms of CPU with 13,000 partitions, in the middle of whatever
allocated the last of them. What a node keeps lives for long and goes by reference counts, not in cycles. So
while the node grows it is taken out of the collector's sight piece by piece, each looked through once; what
comes and goes between two pieces is collected as ever. A full collection, which finds the cycles that ended
since, is made when the objects have doubled; in a large process, where it would keep the event loop for long,
only where cycles end at all: the collections of what comes and goes have found some.
"""

import asyncio
import gc
import sys
from typing import Final

__all__ = ["collect_rarely", "keep_collections_short"]

LOOK_EVERY_S: Final = 0.1
PIECE_BLOCKS: Final = 100_000
"""Growth, in blocks of memory, after which a piece is looked through: some 25 ms of CPU."""
FULL_EVERY_S: Final = 60.0
"""No two full collections are closer to each other."""
GROWTH: Final = 2.0
LARGE_BLOCKS: Final = 300_000
"""A full collection of as many takes some 75 ms of CPU."""
CYCLES_WORTH_IT: Final = 1_000
"""Objects in ended cycles, found among what comes and goes since the last full collection."""


def collect_rarely() -> None:
    """Tell the garbage collector what this process is like: hardly any cycles, and a start that stays.

    Looking for cycles in short-lived records took a seventh of a diskless coordinator's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 20)


async def keep_collections_short() -> None:
    """Until cancelled: collections do not visit what the node has kept as it grew."""
    loop = asyncio.get_running_loop()
    # Not gc.get_freeze_count(): it counts them one by one.
    blocks = sys.getallocatedblocks()
    kept, found, last_full_s = blocks, _found_in_cycles(), loop.time()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now_blocks = sys.getallocatedblocks()
        blocks = min(blocks, now_blocks)
        if now_blocks - blocks < PIECE_BLOCKS:
            continue
        has_doubled = loop.time() - last_full_s >= FULL_EVERY_S and now_blocks > GROWTH * kept
        is_full_due = has_doubled and (
            now_blocks < LARGE_BLOCKS or _found_in_cycles() - found >= CYCLES_WORTH_IT
        )
        if is_full_due:
            gc.unfreeze()
        # Before the freeze: a cycle that nobody needs any more would stay for long otherwise.
        gc.collect()
        gc.freeze()
        blocks = sys.getallocatedblocks()
        if is_full_due:
            kept, found, last_full_s = blocks, _found_in_cycles(), loop.time()


def _found_in_cycles() -> int:
    """Objects that all collections of this process have found in ended cycles."""
    return sum(generation["collected"] for generation in gc.get_stats())
