"""The clocks of three nodes differ by hours. Diskless produce continues while coordinators move between the
nodes."""

from dataclasses import replace

import pytest

from moldau.simulation.clients.client import Producer, Sending
from moldau.simulation.cluster.stories.commit_order_stories import PinnedProducer
from moldau.simulation.cluster.stories.diskless_cluster_stories import (
    BROKER_PORT,
    PARTITIONS,
    DisklessClusterStory,
)
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

HOUR_MS = 3_600_000
SLOW = 3
SKEWS_MS = {1: 0, 2: HOUR_MS, SLOW: -HOUR_MS}


class WrongClocksStory(DisklessClusterStory):
    """A story in which the clocks of two nodes are wrong from the start to the end. All producers send to the
    node with the clock that is furthest behind."""

    async def run(self) -> list[str]:
        for node_id, skew_ms in SKEWS_MS.items():
            self._world.host(f"node-{node_id}").clock.skew_ms = skew_ms
        return await super().run()

    def _producer(self, number: int) -> Producer:
        where = PARTITIONS[number % len(PARTITIONS)]
        producer: PinnedProducer = self._begin_at_any(
            PinnedProducer, f"producer-{number}", where, Sending(idempotent=True)
        )
        producer.broker = (f"node-{SLOW}", BROKER_PORT)
        return producer


@pytest.mark.parametrize("seed", range(2))
def test_coordinators_commit_the_files_of_brokers_with_other_clocks(seed: int) -> None:
    scenario = replace(SCENARIOS["diskless-cluster"](), story=WrongClocksStory, time_limit_s=400.0)
    assert not run_seed(scenario, seed).violations
