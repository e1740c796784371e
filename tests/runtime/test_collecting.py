"""Collections of cycles see the objects of the last second; others wait until the objects have doubled."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from moldau.runtime import collecting
from moldau.simulation.world.world import World


class Ring:
    """An object in a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_a_full_collection_is_made_when_objects_have_doubled(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "GROWTH", 1.01)

    async def story() -> None:
        task = asyncio.get_running_loop().create_task(collecting.keep_collections_short())
        await asyncio.sleep(0)
        rings = [Ring() for _ in range(gc.get_freeze_count() // 20)]
        await asyncio.sleep(2)
        assert len(gc.get_objects(2)) < len(rings)
        gone = weakref.ref(rings[0])
        rings.clear()
        gc.collect()
        assert gone() is not None  # out of the collector's sight
        await asyncio.sleep(collecting.FULL_EVERY_S - 60)
        assert gone() is not None
        await asyncio.sleep(180)
        assert gone() is None
        task.cancel()

    with World(1) as world:
        world.run(story())
