"""The machine loses power immediately after the cache of remote metadata was created. The cache is then empty
and usable."""

import asyncio
import logging
from uuid import UUID

import pytest

from moldau.runtime import Machine
from moldau.simulation.world.world import World
from moldau.tiered.metadata.store import MetadataStore

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("seed", range(12))
def test_a_cache_that_was_just_made_is_not_rebuilt(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    open_stores: list[MetadataStore] = []

    async def program(machine: Machine) -> None:
        machine.disk.make_dirs("/data")
        machine.disk.sync_dir("/")
        open_stores.append(MetadataStore.open(machine, "/data/cache.sqlite", UUID(int=5)))
        await asyncio.Event().wait()

    async def story(world: World) -> None:
        host = world.host("node")
        for _ in range(3):
            process = host.start(program)
            assert process.main is not None
            await asyncio.wait([process.main], timeout=1)
            host.lose_power()

    with caplog.at_level(logging.WARNING, "moldau.tiered"), World(seed) as world:
        world.run(story(world))
        assert world.errors() == []
    assert len(open_stores) == 3
    assert caplog.messages == []
