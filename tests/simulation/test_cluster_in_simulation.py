"""Controllers and brokers as nodes of their own: clients write over two brokers while nodes are killed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.cluster.folders.formatter import FormatRequest, format_storage
from moldau.config.broker import BrokerConfig
from moldau.runtime import KafkaError, Machine
from moldau.server.node import Node
from moldau.simulation.clients.client import Bootstrap, Client, Consumer, Producer
from moldau.simulation.history import History, Partition
from moldau.simulation.judges.checker import check
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

CLUSTER_ID = "bW9sZGF1LXNpbXVsYXRlZA"
CONTROLLERS = (1, 2, 3)
BROKERS = (11, 12)
PARTITIONS = tuple(Partition("events", index) for index in range(4))


class Cluster:
    """Nodes on the hosts ``node-N``; ``nodes`` are their newest lives that have started."""

    def __init__(
        self, world: World, roles: dict[int, str], properties: dict[int, dict[str, str]] | None = None
    ) -> None:
        self.world = world
        self.properties = properties or {}
        self.roles = roles
        self.voters = ",".join(f"{n}@node-{n}:9093" for n, role in roles.items() if "controller" in role)
        self.nodes: dict[int, Node] = {}
        self.history = History(world.loop.elapsed_s)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.world.host(f"node-{node_id}").start(self._program(node_id))

    def kill(self, node_id: int) -> None:
        self.world.host(f"node-{node_id}").kill()
        del self.nodes[node_id]

    def leader(self) -> int:
        """The leader of the quorum, as the living nodes know it; 0 when they do not agree."""
        found = {node.metadata.driver.leader_id for node in self.nodes.values() if node.metadata}
        return next(iter(found)) or 0 if len(found) == 1 else 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def client(self, name: str, broker: int) -> Client:
        return Client(name, self.bootstrap(broker), self.history, stream(self.world.seed, name))

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
            machine.disk.make_dirs("/data")
            machine.disk.sync_dir("/")
            request = FormatRequest(
                cluster_id=CLUSTER_ID,
                node_id=node_id,
                log_dirs=config.log_dirs,
                metadata_dir=config.metadata_log_dir,
                ignore_formatted=True,
            )
            format_storage(machine.disk, machine.entropy, request, machine.clock.now_ms())
            node = Node(config, machine)
            await node.start()
            self.nodes[node_id] = node
            raise RuntimeError(await node.failed())

        return program


def separate() -> dict[int, str]:
    return dict.fromkeys(CONTROLLERS, "controller") | dict.fromkeys(BROKERS, "broker")


def combined() -> dict[int, str]:
    return {1: "controller", 11: "broker,controller", 12: "broker,controller"}


@pytest.mark.parametrize("roles", [separate(), combined()], ids=["separate", "combined"])
def test_clients_write_and_read_over_two_brokers_while_the_controller_moves(roles: dict[int, str]) -> None:
    with World(1) as world:
        cluster = Cluster(world, roles)
        history = cluster.history

        async def story() -> list[str]:
            cluster.start(*roles)
            await cluster.until(lambda: len(cluster.nodes) == len(roles) and cluster.leader() != 0)
            admin = cluster.client("admin", 11)
            await cluster.on("admin", admin.create_topic("events", len(PARTITIONS), {}))
            producers = [
                Producer(
                    f"producer-{number}",
                    cluster.bootstrap(BROKERS[number % 2]),
                    history,
                    stream(world.seed, "producer", number),
                    partition,
                )
                for number, partition in enumerate(PARTITIONS)
            ]
            writing = [cluster.on(each.name, each.run(60, pause_s=0.1)) for each in producers]
            await asyncio.sleep(2)
            first = cluster.leader()
            cluster.kill(first)
            await cluster.until(lambda: cluster.leader() not in (0, first))
            cluster.start(first)
            # The next controller decides, asked by way of the other broker.
            await cluster.on("admin", cluster.client("admin", 12).create_topic("later", 2, {}))
            await asyncio.gather(*writing)
            logs = {}
            for number, partition in enumerate(PARTITIONS):
                name = f"judge-{number}"
                consumer = Consumer(
                    name, cluster.bootstrap(BROKERS[number % 2]), history, stream(1, name), partition
                )
                logs[partition] = await cluster.on(name, consumer.read_to_end())
            metadata: Any = cluster.nodes[12].metadata
            topic = metadata.publisher.image.topics.get("events")
            assert {partition.leader for partition in topic.partitions} == set(BROKERS)
            assert sum(map(len, logs.values())) > 0
            return check(history, logs)

        assert not world.run(story())


def test_a_killed_broker_is_fenced_and_comes_back() -> None:
    with World(2) as world:
        cluster = Cluster(world, separate())

        def leaders() -> list[int]:
            metadata: Any = cluster.nodes[11].metadata
            topic = metadata.publisher.image.topics.get("events")
            return [partition.leader for partition in topic.partitions]

        def brokers() -> list[int]:
            metadata: Any = cluster.nodes[11].metadata
            found = metadata.publisher.image.brokers.values()
            return [broker.broker_id for broker in found if not broker.fenced]

        async def story() -> None:
            cluster.start(*CONTROLLERS, *BROKERS)
            await cluster.until(lambda: len(cluster.nodes) == 5 and brokers() == [11, 12])
            await cluster.on("admin", cluster.client("admin", 11).create_topic("events", 4, {}))
            await cluster.until(lambda: sorted(leaders()) == [11, 11, 12, 12])
            # In a version whose requests name topics in another way than the controller is asked.
            await cluster.on("other", cluster.client("other", 11).create_topic("passing", 1, {}))
            await cluster.on("deleter", cluster.client("deleter", 12).delete_topic("passing"))
            metadata: Any = cluster.nodes[12].metadata
            assert metadata.publisher.image.topics.get("passing") is None
            cluster.kill(12)
            await cluster.until(lambda: brokers() == [11] and sorted(leaders()) == [-1, -1, 11, 11])
            cluster.start(12)
            await cluster.until(lambda: brokers() == [11, 12] and sorted(leaders()) == [11, 11, 12, 12])

        world.run(story())


def test_no_broker_joins_one_that_must_be_the_only_one() -> None:
    with World(4) as world:
        cluster = Cluster(
            world,
            {1: "broker,controller", 11: "broker"},
            {1: {"diskless.system.enable": "true", "diskless.storage.url": "file:///data/objects"}},
        )

        async def story() -> None:
            cluster.start(1)
            await cluster.until(lambda: 1 in cluster.nodes)
            cluster.start(11)
            process = world.host("node-11").process
            assert process is not None
            assert process.main is not None
            with pytest.raises(KafkaError, match="could not register: invalid registration"):
                await process.main
            metadata: Any = cluster.nodes[1].metadata
            assert [broker.broker_id for broker in metadata.publisher.image.brokers.values()] == [1]

        world.run(story())
