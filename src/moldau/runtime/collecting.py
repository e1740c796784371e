"""Garbage collection of cycles in a process that holds many objects for long.

A full collection visits every object: 400 ms of CPU with 13,000 partitions, in the middle of whatever
allocated the last of them. Nearly all that lives for seconds lives on, and goes by reference counts, not in
cycles. So it is taken out of the collector's sight, and a full collection, which finds the cycles that ended
since, is made when the objects have doubled, and seldom.
"""

import asyncio
import gc
from typing import Final

__all__ = ["collect_rarely", "keep_collections_short"]

FREEZE_EVERY_S: Final = 1.0
LOOK_EVERY: Final = 60
"""Freezes between two looks at how many objects there are."""
FULL_EVERY_S: Final = 600.0
"""No two full collections are closer to each other."""
GROWTH: Final = 2.0


def collect_rarely() -> None:
    """Tell the garbage collector what this process is like: hardly any cycles, and a start that stays.

    Looking for cycles in short-lived records took a seventh of a diskless coordinator's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 20)


async def keep_collections_short() -> None:
    """Until cancelled: automatic collections see only the objects of the last second."""
    loop = asyncio.get_running_loop()
    kept, last_full_s, freezes = gc.get_freeze_count(), loop.time(), 0
    while True:
        await asyncio.sleep(FREEZE_EVERY_S)
        gc.freeze()
        freezes += 1
        if freezes % LOOK_EVERY or loop.time() - last_full_s < FULL_EVERY_S:
            continue
        if gc.get_freeze_count() > GROWTH * kept:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            kept, last_full_s = gc.get_freeze_count(), loop.time()
