"""Garbage collection of cycles in a process that keeps many objects for a long time.

A full collection visits every object. With 13,000 partitions this takes 400 ms of CPU, at an unpredictable
moment. Most objects of a node exist long and are freed by reference counts, not as parts of cycles. Therefore
new objects are collected once and then frozen (excluded from later collections). New objects are collected
and frozen in steps of some milliseconds. They are also frozen when their number has not changed for some
seconds, because each check of their number visits all of them. Newer objects are collected as usual.

A full collection finds cycles among frozen objects. It runs when the number of objects has doubled. In a
large process a full collection would block the event loop. Therefore it runs in a large process only if many
dead cycles are likely, because the collections of newer objects have found many cycles.

:func:`weakly` prevents cycles: with it, the parts of an object call this object without a reference to it.
"""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Final, ParamSpec

__all__ = ["collect_rarely", "keep_collections_short", "keep_imported", "weakly"]

P = ParamSpec("P")

LOOK_EVERY_S: Final = 0.2
"""Maximum interval of the checks in seconds, except for slow checks; see ``LOOK_RARELY_S``."""
LOOK_RARELY_S: Final = 0.5
"""Maximum interval of slow checks, in seconds, if the number of new objects does not grow."""
LOOK_AGAIN_S: Final = 0.02
"""Minimum interval of the checks in seconds. A check costs a millisecond of CPU time if there are many new
objects."""
LOOK_SHARE: Final = 0.005
"""Maximum share of the time that the checks may take, if a check takes less than a millisecond. Near
``PIECE_OBJECTS`` objects, a busy process would otherwise check each ``LOOK_AGAIN_S``, which took 8 % of the
time of a node with many small transactions."""
HURRY_SHARE: Final = 0.02
"""Maximum share of the time that the checks may take while the number of new objects grows fast. With the
first limit alone, it could reach twice ``PIECE_OBJECTS`` before the next check."""
PIECE_OBJECTS: Final = 30_000
"""Number of new objects after which they are collected and frozen. This takes about 8 ms of CPU, and up to 16
ms if the number grows fast. It takes longer if many objects are made within one interval of the checks."""
STABLE_S: Final = 10.0
"""Time in seconds after which new objects are frozen if their number does not change."""
STABLE_OBJECTS: Final = 1_000
"""Minimum number of new objects that are frozen for this reason. In an idle process, the objects are not in
the CPU's caches. The checks of 1,700 objects then take 0.2 % of a core, and those of 20,000 up to 4 %."""
STABLE_CHANGE: Final = 500
"""Number of objects by which a number that counts as unchanged may grow."""
STABLE_SHARE: Final = 0.5
"""Share to which a number that counts as unchanged may fall. A broker with 10,000 idle partitions frees
thousands of objects with each of its rare requests, and makes them again. If this counted as a change, the
other 20,000 objects would be visited in each check."""
THRESHOLDS: Final = (10_000, 2, 50)
"""Thresholds of the automatic collections. Such a collection visits at most about 30,000 objects of the
youngest two generations."""
OLDEST: Final = 2
"""The oldest generation. It contains the objects that have survived a collection of all objects that are not
frozen."""
FULL_EVERY_S: Final = 60.0
"""Minimum interval between two full collections, in seconds."""
GROWTH: Final = 2.0
LARGE_BLOCKS: Final = 150_000
"""A process with at least this number of memory blocks is large. A full collection of so many blocks takes
about 40 ms of CPU time."""
CYCLES_WORTH_IT: Final = 1_000
"""A full collection of a large process runs only if other collections have found at least this number of
objects in dead cycles since the last full collection. For fewer objects, it is not worth its cost.
"""
CYCLES_SHARE: Final = 0.05
"""A second minimum for the number of objects in dead cycles, as in ``CYCLES_WORTH_IT``. It is a share of the
process's memory blocks, because a collection of more blocks takes longer (200 ms for a million blocks).
"""


def keep_imported() -> None:
    """Enable collections, and exclude the imported modules from them. Call it after the imports."""
    gc.freeze()
    gc.enable()


def collect_rarely() -> None:
    """Configure the garbage collector for a process with few cycles and many long-lived objects.

    With the default settings, the search for cycles in short-lived records took a seventh of a diskless
    coordinator's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


async def keep_collections_short() -> None:
    """Freeze the objects that a node has accumulated, so that later collections do not visit them. Repeat
    this until this coroutine is cancelled.
    """
    loop = asyncio.get_running_loop()
    # gc.get_freeze_count() is not used, because it counts the objects one by one.
    kept, found, last_full_s = sys.getallocatedblocks(), _found_in_cycles(), loop.time()
    pause_s, last = LOOK_EVERY_S, 0
    stable, stable_since_s = 0, last_full_s
    while True:
        await asyncio.sleep(pause_s)
        began_s = loop.time()
        young, old = _new_objects()
        new, now_s = young + old, loop.time()
        grown = _lasting(young, old)
        if not STABLE_SHARE * stable <= new <= stable + STABLE_CHANGE:
            stable, stable_since_s = new, now_s
        is_stable = new >= STABLE_OBJECTS and now_s - stable_since_s >= STABLE_S
        if new < PIECE_OBJECTS and not is_stable:
            pause_s, last = _pause_s(new, (grown - last) / pause_s, now_s - began_s), grown
            continue
        pause_s, last = LOOK_AGAIN_S, 0
        # The new objects from now on are others, even if there are soon as many.
        stable, stable_since_s = 0, now_s
        blocks = sys.getallocatedblocks()
        has_doubled = loop.time() - last_full_s >= FULL_EVERY_S and blocks > GROWTH * kept
        worth_it = max(CYCLES_WORTH_IT, CYCLES_SHARE * blocks)
        is_full_due = has_doubled and (blocks < LARGE_BLOCKS or _found_in_cycles() - found >= worth_it)
        if is_full_due:
            gc.unfreeze()
        # The collection runs before the freeze. Otherwise a dead cycle would stay until the next full
        # collection.
        gc.collect()
        if is_full_due or is_stable or len(gc.get_objects(OLDEST)) >= PIECE_OBJECTS / 4:
            gc.freeze()
        if is_full_due:
            kept, found, last_full_s = sys.getallocatedblocks(), _found_in_cycles(), loop.time()


def _pause_s(new: int, growth_per_s: float, check_s: float) -> float:
    """The time until there are ``PIECE_OBJECTS`` new objects, if their number continues to grow by
    ``growth_per_s``. In a process that does not grow, the automatic collections keep this number within
    limits. ``check_s`` is the duration of the last check, in seconds."""
    if growth_per_s <= 0:
        return max(LOOK_EVERY_S, min(LOOK_RARELY_S, check_s / LOOK_SHARE))
    needed_s = (PIECE_OBJECTS - new) / growth_per_s
    late_s = (2 * PIECE_OBJECTS - new) / growth_per_s
    spared_s = min(check_s / LOOK_SHARE, max(check_s / HURRY_SHARE, late_s))
    return min(LOOK_EVERY_S, max(LOOK_AGAIN_S, spared_s, needed_s))


def _lasting(young: int, old: int) -> int:
    """Return the number of objects whose change counts as growth. Automatic collections limit the youngest
    generation, so its first ``THRESHOLDS[0]`` objects come and go."""
    return old + max(0, young - THRESHOLDS[0])


def _new_objects() -> tuple[int, int]:
    """Return the number of tracked objects that are not frozen: the objects of the youngest generation, and
    all others.

    It cannot be computed from ``gc.get_count()``, because freed objects are subtracted from that count. If
    objects are freed as fast as new objects are made, the youngest generation grows without limit and no
    automatic collection starts.
    """
    young, *others = (len(gc.get_objects(generation)) for generation in range(OLDEST + 1))
    return young, sum(others)


def _found_in_cycles() -> int:
    """Return the number of objects that all collections of this process have found in dead cycles."""
    return sum(generation["collected"] for generation in gc.get_stats())


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """A bound method that does not keep its object in memory. When the object is gone, calls do nothing.

    If a part calls its owner back, the two refer to each other, which is a cycle of references. A node has
    tens of thousands of objects of some classes. These objects must be freed by reference counts, because a
    garbage collection of so many objects takes a second.
    """
    # A WeakMethod does the same, but makes a bound method for each call, which takes a microsecond.
    owner = weakref.ref(method.__self__)  # type: ignore[attr-defined]
    function = method.__func__  # type: ignore[attr-defined]

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *args, **kwargs)

    return call
