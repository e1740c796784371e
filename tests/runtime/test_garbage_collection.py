"""Garbage collections exclude the objects that a node has accumulated. Newer objects are collected
as usual."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from moldau.runtime import garbage_collection
from moldau.simulation.world.world import World


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(*garbage_collection.THRESHOLDS)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def rings_of(count: int) -> tuple[list[Ring], "weakref.ref[Ring]"]:
    """Create cycles. Returns them, and a weak reference that shows whether the last cycle still exists."""
    rings = [Ring() for _ in range(count)]
    return rings, weakref.ref(rings[-1])


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def beside_it() -> None:
        task = asyncio.get_running_loop().create_task(garbage_collection.keep_collections_short())
        await asyncio.sleep(0)
        await story()
        assert not task.done()
        task.cancel()

    with World(1) as world:
        world.run(beside_it())


def test_kept_objects_are_not_collected_until_the_number_of_objects_has_doubled(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection, "GROWTH", 1.01)
    monkeypatch.setattr(garbage_collection, "LARGE_BLOCKS", 2**62)

    async def story() -> None:
        rings, last = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(1)
        assert len(gc.get_objects(2)) < len(rings)
        rings.clear()
        gc.collect()
        assert last() is not None
        more, _ = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(1)
        assert last() is not None  # it is too early for a full collection
        await asyncio.sleep(garbage_collection.FULL_EVERY_S)
        more += rings_of(garbage_collection.PIECE_OBJECTS)[0]
        await asyncio.sleep(1)
        assert last() is None

    play(story)


@pytest.mark.parametrize(
    "ended_share", [0.1 * garbage_collection.CYCLES_SHARE, 2 * garbage_collection.CYCLES_SHARE]
)
def test_a_large_process_collects_only_if_many_cycles_have_ended(
    collector: None, monkeypatch: pytest.MonkeyPatch, ended_share: float
) -> None:
    monkeypatch.setattr(garbage_collection, "GROWTH", 1.01)
    monkeypatch.setattr(garbage_collection, "LARGE_BLOCKS", 0)

    async def story() -> None:
        rings, last = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(garbage_collection.FULL_EVERY_S)
        rings.clear()
        rings_of(int(ended_share * sys.getallocatedblocks()))
        gc.collect()
        more, _ = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(1)
        assert (last() is None) == (ended_share > garbage_collection.CYCLES_SHARE)
        more.clear()

    play(story)


def test_objects_that_replace_freed_objects_are_excluded_too(collector: None) -> None:
    async def story() -> None:
        old = [[str(index)] for index in range(4 * garbage_collection.PIECE_OBJECTS)]
        await asyncio.sleep(1)
        new = []
        for _ in range(8):
            del old[: garbage_collection.PIECE_OBJECTS // 2]
            new += rings_of(garbage_collection.PIECE_OBJECTS // 2)[0]
            await asyncio.sleep(1)
        assert len(gc.get_objects(2)) < 2 * garbage_collection.PIECE_OBJECTS
        assert len(new) == 4 * garbage_collection.PIECE_OBJECTS

    play(story)


def test_the_youngest_generation_stays_small_while_as_many_objects_are_freed_as_made(collector: None) -> None:
    async def story() -> None:
        old = [[str(index)] for index in range(4 * garbage_collection.PIECE_OBJECTS)]
        await asyncio.sleep(1)
        new, largest = [], 0
        while old:
            for _ in range(2_000):
                old.pop()
                new.append([str(len(new))])
            largest = max(largest, len(gc.get_objects(0)))
            await asyncio.sleep(0.02)
        assert largest < 2 * garbage_collection.PIECE_OBJECTS
        assert len(new) == 4 * garbage_collection.PIECE_OBJECTS

    play(story)


def test_growth_is_detected_without_a_count_of_all_objects(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> int:
        raise AssertionError("it visits every object: 100 ms with 13,000 partitions")

    async def story() -> None:
        monkeypatch.setattr(gc, "get_freeze_count", count)
        kept, _ = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(2 * garbage_collection.FULL_EVERY_S)
        kept += rings_of(garbage_collection.PIECE_OBJECTS)[0]
        await asyncio.sleep(1)

    play(story)


def test_a_reference_cycle_that_is_garbage_is_not_frozen(collector: None) -> None:
    async def story() -> None:
        _, gone = rings_of(1)
        kept, _ = rings_of(garbage_collection.PIECE_OBJECTS)
        await asyncio.sleep(1)
        assert gc.get_freeze_count() > len(kept)
        assert gone() is None

    play(story)


def test_objects_are_frozen_when_their_number_does_not_change(collector: None) -> None:
    async def story() -> None:
        _, gone = rings_of(1)
        kept, _ = rings_of(2 * garbage_collection.STABLE_OBJECTS)
        for _ in range(3):
            await asyncio.sleep(0.6 * garbage_collection.STABLE_S)
            assert sum(garbage_collection._new_objects()) > len(kept)
            kept += rings_of(2 * garbage_collection.STABLE_CHANGE)[0]
        await asyncio.sleep(1.5 * garbage_collection.STABLE_S)
        assert sum(garbage_collection._new_objects()) < garbage_collection.STABLE_OBJECTS
        assert gc.get_freeze_count() > len(kept)
        assert gone() is None

    play(story)


def test_objects_are_frozen_although_some_of_them_are_made_again_and_again(collector: None) -> None:
    """Otherwise each check visits all objects of a broker with many idle partitions."""

    async def story() -> None:
        kept, _ = rings_of(8 * garbage_collection.STABLE_CHANGE)
        some, _ = rings_of(2 * garbage_collection.STABLE_CHANGE)
        for _ in range(4):
            await asyncio.sleep(garbage_collection.STABLE_S / 3)
            some.clear()
            gc.collect(0)
            await asyncio.sleep(2 * garbage_collection.LOOK_EVERY_S)
            some += rings_of(2 * garbage_collection.STABLE_CHANGE)[0]
        assert sum(garbage_collection._new_objects()) < len(kept)
        assert gc.get_freeze_count() > len(kept)

    play(story)


def test_objects_of_a_busy_process_are_not_frozen_again_and_again(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a freeze, the process has soon as many new objects as before. They do not stay."""
    freeze, freezes = gc.freeze, 0

    def counted() -> None:
        nonlocal freezes
        freezes += 1
        freeze()

    async def story() -> None:
        monkeypatch.setattr(gc, "freeze", counted)
        objects: list[list[int]] = []
        for _ in range(5_000):
            # All objects are made again between two checks.
            objects.clear()
            objects += [[number] for number in range(2 * garbage_collection.STABLE_OBJECTS)]
            await asyncio.sleep(garbage_collection.LOOK_AGAIN_S / 2)

    play(story)
    assert 1 <= freezes <= 5_000 * garbage_collection.LOOK_AGAIN_S / 2 / garbage_collection.STABLE_S


def test_few_objects_of_a_node_that_does_not_grow_are_not_frozen(collector: None) -> None:
    async def story() -> None:
        before = gc.get_freeze_count()
        rings, last = rings_of(100)
        await asyncio.sleep(120)
        assert gc.get_freeze_count() <= before
        rings.clear()
        gc.collect()
        assert last() is None

    play(story)


def test_a_slow_check_of_a_growing_process_is_repeated_later() -> None:
    """Near the number of objects that are frozen together, checks would otherwise take a large share of the
    time."""
    almost = garbage_collection.PIECE_OBJECTS - 1
    quick_s, slow_s = (garbage_collection._pause_s(almost, 1_000.0, check_s) for check_s in (0.0, 0.0005))
    assert quick_s == garbage_collection.LOOK_AGAIN_S
    assert slow_s == pytest.approx(0.0005 / garbage_collection.LOOK_SHARE)
    assert garbage_collection._pause_s(almost, 1_000.0, 60.0) == garbage_collection.LOOK_EVERY_S


def test_a_slow_check_of_a_process_that_does_not_grow_is_repeated_later() -> None:
    quick_s, slow_s, slowest_s = (
        garbage_collection._pause_s(20_000, 0.0, check_s) for check_s in (0.0005, 0.002, 0.1)
    )
    assert quick_s == garbage_collection.LOOK_EVERY_S
    assert slow_s == pytest.approx(0.002 / garbage_collection.LOOK_SHARE)
    assert slowest_s == garbage_collection.LOOK_RARELY_S


def test_transient_objects_are_no_growth() -> None:
    limit = garbage_collection.THRESHOLDS[0]
    assert garbage_collection._lasting(0, 5_000) == garbage_collection._lasting(limit, 5_000) == 5_000
    assert garbage_collection._lasting(limit + 7, 5_000) == 5_007
    assert garbage_collection._lasting(100, 5_200) == 5_200


def test_a_check_of_a_process_that_grows_fast_is_repeated_soon() -> None:
    almost = garbage_collection.PIECE_OBJECTS - 1
    pause_s = garbage_collection._pause_s(almost, 600_000.0, 0.0005)
    assert almost + 600_000.0 * pause_s == pytest.approx(2 * garbage_collection.PIECE_OBJECTS)
    pause_s = garbage_collection._pause_s(almost, 1e9, 0.0005)
    assert pause_s == pytest.approx(0.0005 / garbage_collection.HURRY_SHARE)
