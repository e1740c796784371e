"""A broker may start with old metadata. It must not delete a replica because of the old metadata. For
example, a replica may have been removed and added again after the old metadata were written. Such a replica
keeps all its records."""

from collections.abc import Callable
from functools import partial

import pytest

from moldau.quorum import subscriptions
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.cluster.stories.replication_stories import (
    NODE_IDS,
    PARTITIONS,
    ReplicationStory,
    replication,
)
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


class OldImageStory(ReplicationStory):
    """Node 2 restarts with an old snapshot. Its replica was removed and added again after this snapshot."""

    async def run(self) -> list[str]:
        node_2 = self._world.host("node-2")
        for node_id in NODE_IDS:
            self._world.host(f"node-{node_id}").start(partial(self._node, node_id))
        await self._on("admin", self._create_topic(self._begin_at_any(SimulatedClient, "admin")))
        await self._converge()
        self._properties = {}
        await self._again(node_2.kill)  # After this restart, node 2 writes no snapshots.
        await self._on("producer", self._producer(0).run(50, pause_s=0.01))
        mover = Mover(self._begin_at_any(SimulatedClient, "mover"), PARTITIONS[:1], NODE_IDS, replicas_min=2)
        await self._on("away", self._move(mover, (1, 3)))
        await self._on("back", self._move(mover, NODE_IDS))
        await self._converge()
        before = self._retired()
        assert len(before) == 1
        await self._again(node_2.kill)
        await self._converge()
        return [] if self._retired() == before else [f"{self._retired()} are on their way out, not {before}"]

    async def _move(self, mover: Mover, target: tuple[int, ...]) -> None:
        assert await mover.move(PARTITIONS[0], target)
        await mover.moved()

    async def _again(self, kill: Callable[[], None]) -> None:
        kill()
        self._world.host("node-2").start(partial(self._node, 2))
        await self._converge()

    def _retired(self) -> set[str]:
        host = self._world.host("node-2")
        assert host.process is not None
        names = host.disk.mount(host.process).list("/data")
        return {name for name in names if name.endswith(("-delete", "-stray"))}


def test_a_starting_broker_waits_for_current_metadata_before_it_applies_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With this limit, the broker needs several reads for the metadata log.
    monkeypatch.setattr(subscriptions, "READ_MAX_BYTES", 1)
    snapshots = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    with World(3) as world:
        story = OldImageStory(world, replication(), properties=snapshots)
        assert world.run(story.run()) == []
