"""Restarts of a whole node on a simulated machine. The tests read the internal state of the node."""

import asyncio
import logging
from collections import Counter

import pytest

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC, DISKLESS_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.runtime import ErrorCode
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.stories.tiny_node import PORT
from moldau.simulation.world.world import World

pytestmark = pytest.mark.simulation

FIND_COORDINATOR_VERSION = 4
LOADED = " is loaded"


async def find_coordinator() -> None:
    """Wait until a group has a coordinator. The lookup of the coordinator creates the topic of committed
    offsets."""
    while True:
        await asyncio.sleep(1)
        try:
            connection = await RpcConnection.open("test", "node-1", PORT)
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
            answer = await connection.request(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, request)
            connection.close()
            if answer.coordinators[0].error_code is ErrorCode.none:
                return
        except OSError:
            continue


@pytest.mark.parametrize("seed", range(3))
def test_coordinators_load_once_after_a_kill(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "moldau.coordinators")
    with World(seed) as world:
        node = world.host("node-1")
        program = SCENARIOS["diskless"]().program

        async def story() -> None:
            node.start(program)
            await find_coordinator()
            for _ in range(2):
                await asyncio.sleep(20)
                node.kill()
                caplog.clear()
                node.start(program)
                await find_coordinator()
                await asyncio.sleep(20)
                messages = [record.getMessage() for record in caplog.records]
                loads = Counter(text.partition(LOADED)[0] for text in messages if LOADED in text)
                assert loads[f"{CONSUMER_OFFSETS_TOPIC}-0"] == loads[f"{DISKLESS_METADATA_TOPIC}-0"] == 1, (
                    loads
                )
                assert set(loads.values()) == {1}, loads

        client = world.host("client").start(lambda machine: story())
        assert client.main is not None
        world.run(asyncio.wait_for(client.main, 1_000))
