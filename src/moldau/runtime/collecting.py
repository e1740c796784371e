"""Garbage collection of cycles in a process that holds many objects for long.

A full collection visits every object: 400 ms of CPU with 13,000 partitions, at an unpredictable moment.
Most objects of a node live long and are freed by reference counts, not as parts of cycles. So, while the
node grows, its objects are collected once and then frozen (excluded from later collections). Newer objects
are collected as usual. A full collection, which finds cycles among frozen objects, runs when the number of
objects has doubled. In a large process, where it would block the event loop, it runs only if ended cycles
are likely: if the collections of newer objects have found some.
"""

import asyncio
import gc
import sys
from typing import Final

__all__ = ["collect_rarely", "keep_collections_short"]

LOOK_EVERY_S: Final = 0.1
PIECE_BLOCKS: Final = 100_000
"""Growth, in blocks of memory, after which new objects are collected and frozen: some 25 ms of CPU."""
FULL_EVERY_S: Final = 60.0
"""Minimum interval between two full collections."""
GROWTH: Final = 2.0
LARGE_BLOCKS: Final = 300_000
"""Blocks of a large process: a full collection of them takes some 75 ms of CPU."""
CYCLES_WORTH_IT: Final = 1_000
"""Objects in ended cycles that make a full collection of a large process worthwhile."""


def collect_rarely() -> None:
    """Configure the garbage collector for a process with few cycles and many long-lived objects.

    Looking for cycles in short-lived records took a seventh of a diskless coordinator's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 20)


async def keep_collections_short() -> None:
    """Until cancelled: exclude the objects that a node has accumulated from collections."""
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
        # Before the freeze: an ended cycle would otherwise stay until the next full collection.
        gc.collect()
        gc.freeze()
        blocks = sys.getallocatedblocks()
        if is_full_due:
            kept, found, last_full_s = blocks, _found_in_cycles(), loop.time()


def _found_in_cycles() -> int:
    """Objects that all collections of this process have found in ended cycles."""
    return sum(generation["collected"] for generation in gc.get_stats())
