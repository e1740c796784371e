"""A node is ready when its coordinators are loaded, or after a time limit."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from moldau.cluster.internal_topics import InternalTopic
from moldau.replication.classic_partition import ClassicPartition
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.simulation.world.world import World


class _Nobody:
    def lead(self, partition: ClassicPartition, epoch: int) -> None: ...

    def leave(self, partition: int, epoch: int) -> None: ...


def _entry(name: str, until_loaded: Callable[[], Awaitable[None]] | None) -> CoordinatorEntry:
    return CoordinatorEntry(
        topic=InternalTopic(name, 1, 1, "offsets.topic.replication.factor", {}),
        leaders=_Nobody(),
        until_loaded=until_loaded,
    )


@pytest.mark.parametrize(
    ("load_s", "loaded", "waited_s"), [(0.0, True, 0.0), (2.0, True, 2.0), (60.0, False, 5.0)]
)
def test_a_start_waits_for_loads_up_to_its_limit(load_s: float, loaded: bool, waited_s: float) -> None:
    async def load() -> None:
        await asyncio.sleep(load_s)

    async def main() -> tuple[bool, float]:
        registry = CoordinatorRegistry([_entry("__slow", load), _entry("__unasked", None)])
        began = asyncio.get_running_loop().time()
        answer = await registry.until_loaded(5.0)
        return answer, asyncio.get_running_loop().time() - began

    with World(0) as world:
        answer, took_s = world.run(main())
    assert answer is loaded
    assert took_s == pytest.approx(waited_s, abs=0.01)


def test_a_start_without_coordinators_does_not_wait() -> None:
    async def main() -> bool:
        return await CoordinatorRegistry([_entry("__unasked", None)]).until_loaded(5.0)

    with World(0) as world:
        assert world.run(main())
