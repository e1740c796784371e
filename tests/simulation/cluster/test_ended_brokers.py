"""A broker whose process has ended is fenced long before its session ends. Other brokers keep their
session."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.cluster.controller.process_watch import ProcessWatch
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SESSION_S = 60
ROLES = {1: "controller", 2: "controller", 3: "controller", 11: "broker", 12: "broker"}
COMBINED = {1: "broker,controller", 11: "broker,controller", 12: "broker,controller"}
PROPERTIES = {
    "broker.session.timeout.ms": str(SESSION_S * 1000),
    "broker.heartbeat.interval.ms": "2000",
    "min.insync.replicas": "1",
}


class Story:
    """A cluster with a topic whose only partition has a replica on each broker."""

    def __init__(self, world: World, roles: dict[int, str], **properties: str) -> None:
        self.world = world
        self.brokers = [node_id for node_id, role in roles.items() if "broker" in role]
        properties = PROPERTIES | {
            "default.replication.factor": str(len(self.brokers)),
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        self.cluster = Cluster(world, roles, dict.fromkeys(roles, properties))

    async def start(self) -> None:
        cluster = self.cluster
        cluster.start(*cluster.roles)
        await cluster.until(lambda: len(cluster.nodes) == len(cluster.roles) and cluster.leader() != 0)
        await cluster.until(lambda: all(len(self.active(each)) == len(self.brokers) for each in self.brokers))
        admin = cluster.client("admin", self.brokers[0])
        await cluster.on("admin", admin.create_topic("events", 1, {}))
        await cluster.until(lambda: all(self.leader_of(each) in self.brokers for each in self.brokers))

    def image(self, node_id: int) -> Any:
        metadata: Any = self.cluster.nodes[node_id].metadata
        return metadata.publisher.image

    def active(self, node_id: int) -> list[int]:
        """The unfenced brokers according to a node."""
        return [broker.broker_id for broker in self.image(node_id).active_brokers()]

    def leader_of(self, node_id: int) -> int | None:
        """The leader of the partition according to a node."""
        topic = self.image(node_id).topics.get("events")
        return None if topic is None else topic.partitions[0].leader

    def elapsed_s(self) -> float:
        return self.world.loop.elapsed_s()


def play(story: Story, test: Callable[[], Any]) -> None:
    async def playing() -> None:
        await story.start()
        await test()

    story.world.run(playing())
    assert not story.world.errors()


def test_another_leader_is_elected_long_before_the_session_of_a_killed_leader_ends() -> None:
    with World(1) as world:
        story = Story(world, ROLES)

        async def test() -> None:
            killed = story.leader_of(11)
            other = 23 - (killed or 0)
            began_s = story.elapsed_s()
            story.cluster.kill(killed or 0)
            await story.cluster.until(lambda: story.leader_of(other) == other)
            # The time is virtual.
            assert story.elapsed_s() - began_s < 2
            # The session of the killed process has not expired, but the next process can register.
            story.cluster.start(killed or 0)
            await story.cluster.until(lambda: story.active(other) == [11, 12])
            assert story.elapsed_s() - began_s < SESSION_S / 2

        play(story, test)


def test_the_session_decides_if_the_key_is_off() -> None:
    with World(1) as world:
        story = Story(world, ROLES, broker_session_early_end_enable="false")

        async def test() -> None:
            killed = story.leader_of(11) or 0
            began_s = story.elapsed_s()
            story.cluster.kill(killed)
            await story.cluster.until(lambda: story.leader_of(23 - killed) == 23 - killed)
            assert story.elapsed_s() - began_s > SESSION_S - 3

        play(story, test)


def test_a_new_controller_fences_the_node_that_was_controller_and_leader() -> None:
    with World(2) as world:
        story = Story(world, COMBINED)

        async def test() -> None:
            cluster = story.cluster
            killed = cluster.leader()
            began_s = story.elapsed_s()
            cluster.kill(killed)
            others = [each for each in story.brokers if each != killed]
            await cluster.until(lambda: all(story.active(each) == others for each in others))
            assert story.elapsed_s() - began_s < SESSION_S / 2
            assert story.leader_of(others[0]) in others

        play(story, test)


def _pause(story: Story, broker: int) -> None:
    story.world.host(f"node-{broker}").pause()
    _reset(story, broker)


def _lose_power(story: Story, broker: int) -> None:
    story.world.host(f"node-{broker}").lose_power()


def _reset(story: Story, broker: int) -> None:
    """Reset all connections of a node."""
    network = story.world.network
    for end in network.connections():
        if f"node-{broker}" in (end.host.name, end.peer.host.name):
            network.break_connection(end)


def _isolate(story: Story, broker: int) -> None:
    for other in story.cluster.roles:
        if other != broker:
            story.world.network.cut(f"node-{broker}", f"node-{other}")
            story.world.network.cut(f"node-{other}", f"node-{broker}")
    _reset(story, broker)


FAULTS = [_pause, _lose_power, _isolate, _reset]


def fenced_early(fault: Callable[[Story, int], None]) -> bool:
    """Whether a fault lets the controller fence a broker in the first half of its session."""
    with World(3) as world:
        story = Story(world, ROLES)
        found = False

        async def test() -> None:
            nonlocal found
            broker = story.leader_of(11) or 0
            began_s = story.elapsed_s()
            fault(story, broker)
            while story.elapsed_s() < began_s + SESSION_S / 2:
                await asyncio.sleep(0.01)
                found = found or story.active(story.cluster.leader() or 1) != [11, 12]

        play(story, test)
        return found


@pytest.mark.parametrize("fault", FAULTS)
def test_other_faults_are_no_evidence(fault: Callable[[Story, int], None]) -> None:
    assert not fenced_early(fault)


@pytest.mark.parametrize("fault", [_pause, _isolate, _reset])
def test_a_controller_without_probes_is_detected(
    fault: Callable[[Story, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserted defect: the end of a connection is taken as evidence, whether the listeners refuse or not."""

    async def refuse(watch: ProcessWatch, endpoints: Any) -> bool:
        return True

    monkeypatch.setattr(ProcessWatch, "_all_refuse", refuse)
    assert fenced_early(fault)
