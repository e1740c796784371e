"""A cluster of nodes in a simulated world, for stories that a test plays step by step."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.runtime import Machine
from moldau.server.node import ServerNode
from moldau.simulation.clients.client import Bootstrap, SimulatedClient
from moldau.simulation.cluster.formatted import format_folders
from moldau.simulation.history import History
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

CLUSTER_ID = "bW9sZGF1LXNpbXVsYXRlZA"
CONTROLLERS = (1, 2, 3)
BROKERS = (11, 12)


class Cluster:
    """Nodes on the hosts ``node-N``. ``nodes`` has the node that was started last on each host."""

    def __init__(
        self, world: World, roles: dict[int, str], properties: dict[int, dict[str, str]] | None = None
    ) -> None:
        self.world = world
        self.properties = properties or {}
        self.roles = roles
        self.voters = ",".join(f"{n}@node-{n}:9093" for n, role in roles.items() if "controller" in role)
        self.nodes: dict[int, ServerNode] = {}
        self.history = History(world.loop.elapsed_s)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.world.host(f"node-{node_id}").start(self._program(node_id))

    def kill(self, node_id: int) -> None:
        self.world.host(f"node-{node_id}").kill()
        del self.nodes[node_id]

    def leader(self) -> int:
        """The leader of the quorum according to the running nodes, or 0 if they do not agree."""
        found = {node.metadata.driver.leader_id for node in self.nodes.values() if node.metadata}
        return next(iter(found)) or 0 if len(found) == 1 else 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def client(self, name: str, broker: int) -> SimulatedClient:
        return SimulatedClient(name, self.bootstrap(broker), self.history, stream(self.world.seed, name))

    def bootstrap(self, broker: int) -> Bootstrap:
        return Bootstrap(f"node-{broker}", 9092)

    def on(self, name: str, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        async def program(_machine: Machine) -> Any:
            return await work

        host = self.world.host(name)
        if host.process is not None and host.process.main is not None and host.process.main.done():
            host.kill()
        process = host.start(program)
        assert process.main is not None
        return process.main

    def _program(self, node_id: int) -> Callable[[Machine], Any]:
        role = self.roles[node_id]
        listeners = [f"PLAINTEXT://node-{node_id}:9092"] if "broker" in role else []
        listeners += [f"CONTROLLER://node-{node_id}:9093"] if "controller" in role else []
        config = BrokerConfig.from_properties(
            {
                "node.id": str(node_id),
                "process.roles": role,
                "controller.quorum.voters": self.voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": ",".join(listeners),
                "log.dirs": "/data",
                "offsets.topic.replication.factor": "1",
                **self.properties.get(node_id, {}),
            }
        )

        async def program(machine: Machine) -> None:
            format_folders(machine, config, CLUSTER_ID)
            node = ServerNode(config, machine)
            await node.start()
            self.nodes[node_id] = node
            raise RuntimeError(await node.failed())

        return program


def separate() -> dict[int, str]:
    return dict.fromkeys(CONTROLLERS, "controller") | dict.fromkeys(BROKERS, "broker")


def combined() -> dict[int, str]:
    return {1: "controller", 11: "broker,controller", 12: "broker,controller"}


class KeptSectors(random.Random):
    """The chance of a disk that keeps all of its unsynced writes when power is lost, or none of them."""

    def __init__(self, *, keeps_all: bool) -> None:
        super().__init__(0)
        self._keeps_all = keeps_all

    def randrange(self, *_: Any) -> int:
        return int(self._keeps_all)

    def random(self) -> float:
        return 0.4 if self._keeps_all else 0.9
