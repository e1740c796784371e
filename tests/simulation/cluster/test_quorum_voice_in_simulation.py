"""The log lines of whole controllers in virtual time. Other nodes cannot be reached, belong to another
cluster, or have the same id."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from moldau.cluster.folders.formatter import FormatRequest, format_storage
from moldau.config.broker import BrokerConfig
from moldau.runtime import KafkaError, Machine
from moldau.server.node import ServerNode
from moldau.server.observing.health_and_metrics import health_checks, quorum_notice
from moldau.simulation.world.process import PROCESS
from moldau.simulation.world.world import World

pytestmark = pytest.mark.simulation

PORT = 9093


class Lines(logging.Handler):
    """The warnings of the quorum for each host that logged them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of: dict[str, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        host = PROCESS.get().host
        self.of.setdefault(host.name, []).append(record.getMessage())

    def count(self, host: str, words: str) -> int:
        return sum(words in line for line in self.of.get(host, ()))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, voice = Lines(), logging.getLogger("moldau.quorum.quorum_report")
    voice.addHandler(handler)
    yield handler
    voice.removeHandler(handler)


@dataclass
class Controllers:
    """Controllers and a broker on the hosts of one world. ``nodes`` has the node that was started last on
    each host."""

    world: World
    nodes: dict[str, ServerNode] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    """The errors of nodes that could not start, for each host."""

    def start(
        self, host: str, node_id: int, *, voters: tuple[int, ...], cluster_id: str, role: str = "controller"
    ) -> None:
        listener = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        config = BrokerConfig.from_properties(
            {
                "node.id": str(node_id),
                "process.roles": role,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": ",".join(f"{voter}@node-{voter}:{PORT}" for voter in voters),
                "listeners": f"{listener}://{host}:{PORT}",
                "log.dirs": "/data",
                "initial.broker.registration.timeout.ms": "5000",
            }
        )

        async def program(machine: Machine) -> None:
            await self._run(machine, host, config, cluster_id)

        self.world.host(host).start(program)

    async def _run(self, machine: Machine, host: str, config: BrokerConfig, cluster_id: str) -> None:
        machine.disk.make_dirs("/data")
        machine.disk.sync_dir("/")
        request = FormatRequest(
            cluster_id=cluster_id,
            node_id=config.node_id,
            log_dirs=config.log_dirs,
            metadata_dir=config.metadata_log_dir,
            ignore_formatted=True,
        )
        format_storage(machine.disk, machine.entropy, request, machine.clock.now_ms())
        node = ServerNode(config, machine)
        try:
            await node.start()
        except KafkaError as error:
            self.ends[host] = str(error)
            raise
        self.nodes[host] = node
        raise RuntimeError(await node.failed())

    def start_three(self) -> None:
        for node_id in (1, 2, 3):
            self.start(f"node-{node_id}", node_id, voters=(1, 2, 3), cluster_id=OURS)

    def notice(self, host: str) -> str:
        metadata = self.nodes[host].metadata
        assert metadata is not None
        return quorum_notice(metadata) or ""

    def leader(self) -> str:
        return self.leader_known_to("node-1")

    def leader_known_to(self, host: str) -> str:
        metadata: Any = self.nodes[host].metadata
        return f"node-{metadata.driver.leader_id}"

    def quorum_check(self, host: str) -> str | None:
        """The reason why the health check of the quorum fails on a host."""
        metadata: Any = self.nodes[host].metadata
        return health_checks(metadata, metadata)["quorum"]()


OURS, THEIRS = "b3Vycy1vdXJzLW91cnMtbw", "dGhlaXJzLXRoZWlycy10aA"


def test_each_node_logs_a_stopped_controller_and_its_return_once(lines: Lines) -> None:
    with World(1) as world:
        group = Controllers(world)

        async def story() -> None:
            group.start_three()
            await asyncio.sleep(10)
            assert not lines.of
            world.host("node-3").kill()
            await asyncio.sleep(120)
            # A follower sends requests only to the leader. So it does not report that another follower is
            # missing.
            told = [host for host in ("node-1", "node-2") if lines.count(host, "node 3")]
            assert group.leader() in told
            for host in told:
                assert lines.count(host, "node 3 (node-3:9093) of the metadata quorum is unreachable") == 1
                assert "node 3" in group.notice(host)
            group.start("node-3", 3, voters=(1, 2, 3), cluster_id=OURS)
            await asyncio.sleep(60)
            assert lines.count(group.leader(), "node 3 (node-3:9093) of the metadata quorum is reac") == 1
            assert not group.notice(group.leader())
            assert sum(map(len, lines.of.values())) <= 2 * len(told)

        world.run(story())


def test_a_lost_majority_is_reported_and_the_quorum_recovers_without_help(lines: Lines) -> None:
    with World(2) as world:
        group = Controllers(world)

        async def story() -> None:
            group.start_three()
            await asyncio.sleep(10)
            leader = group.leader()
            others = sorted({"node-1", "node-2", "node-3"} - {leader})
            for other in others:
                world.host(other).kill()
            await asyncio.sleep(300)
            assert lines.count(leader, "got no requests from a majority of the voters [1, 2, 3]") == 1
            assert lines.count(leader, "the metadata quorum has had no leader for") == 1
            assert lines.count(leader, "is unreachable") == 2
            group.start(others[0], int(others[0][-1]), voters=(1, 2, 3), cluster_id=OURS)
            await asyncio.sleep(30)
            assert lines.count(leader, "it has a leader again after") == 1
            assert len(lines.of[leader]) <= 6
            # There are two nodes, and the leader is killed. The other node still treats it as the leader of
            # the epoch.
            killed = group.leader_known_to(leader)
            (last,) = {leader, others[0]} - {killed}
            world.host(killed).kill()
            await asyncio.sleep(60)
            assert lines.count(last, f"the leader {killed[-1]} of the metadata quorum has not answered") == 1
            assert "has not answered" in str(group.quorum_check(last))
            group.start(killed, int(killed[-1]), voters=(1, 2, 3), cluster_id=OURS)
            await asyncio.sleep(30)
            assert group.quorum_check(last) is None

        world.run(story())


def test_a_controller_of_another_cluster_is_logged_once_on_both_sides(lines: Lines) -> None:
    with World(3) as world:
        group = Controllers(world)

        async def story() -> None:
            for node_id in (1, 2):
                group.start(f"node-{node_id}", node_id, voters=(1, 2, 3), cluster_id=OURS)
            group.start("node-3", 3, voters=(1, 2, 3), cluster_id=THEIRS)
            group.start("broker", 9, voters=(1, 2), cluster_id=THEIRS, role="broker")
            await asyncio.sleep(150)
            # A broker that cannot register ends its start with an error after
            # initial.broker.registration.timeout.ms.
            for node_id in (1, 2):
                problem = (
                    f"node {node_id} (node-{node_id}:9093) of the metadata quorum belongs to another cluster"
                )
                assert problem in group.ends["broker"]
            leader = group.leader()
            assert leader in ("node-1", "node-2")
            assert lines.count(leader, f"belongs to another cluster than {OURS}") == 1
            assert lines.count(leader, f"node 3 of cluster {THEIRS} sends requests") == 1
            assert lines.count("node-3", f"belongs to another cluster than {THEIRS}") == 2
            assert all(len(told) <= 6 for told in lines.of.values())
            assert THEIRS in group.notice(leader)

        world.run(story())


def test_voters_that_disagree_on_the_voters_are_reported(lines: Lines) -> None:
    with World(4) as world:
        group = Controllers(world)

        async def story() -> None:
            group.start_three()
            group.start("node-4", 4, voters=(1, 2, 3, 4), cluster_id=OURS)
            await asyncio.sleep(300)
            words = "node 4 counts itself among the voters of the metadata quorum"
            assert all(lines.count(host, words) == 1 for host in ("node-1", "node-2", "node-3"))
            assert lines.count("node-4", "does not count this node 4 among its voters") == 3
            assert sum(map(len, lines.of.values())) == 6

        world.run(story())


def test_a_voter_that_a_working_quorum_does_not_know_is_reported(lines: Lines) -> None:
    """Node 4 is configured as a voter, but the other nodes do not have node 4 in their list of voters. The
    quorum has a leader, so node 4 never asks for a vote."""
    with World(6) as world:
        group = Controllers(world)

        async def story() -> None:
            group.start_three()
            await asyncio.sleep(10)
            group.start("node-4", 4, voters=(1, 2, 3, 4), cluster_id=OURS)
            await asyncio.sleep(60)
            leader = group.leader()
            assert lines.count(leader, "node 4 counts itself among the voters of the metadata quorum") == 1
            told = f"node {leader[-1]} ({leader}:9093) of the metadata quorum does not count this node 4"
            assert lines.count("node-4", told) == 1
            assert sum(map(len, lines.of.values())) == 2
            assert "node 4 counts itself among the voters" in group.notice(leader)
            assert "does not count this node 4" in group.notice("node-4")

        world.run(story())


def test_a_node_id_that_is_used_twice_is_reported(lines: Lines) -> None:
    with World(5) as world:
        group = Controllers(world)

        async def story() -> None:
            group.start_three()
            await asyncio.sleep(10)
            assert not lines.of
            group.start("twin", 3, voters=(1, 2, 3), cluster_id=OURS)
            await asyncio.sleep(60)
            told = [host for host in lines.of if lines.count(host, "node.id 3 is used by two nodes")]
            assert told
            assert all(lines.count(host, "node.id 3 is used by two nodes") == 1 for host in told)
            assert any("node.id 3 is used by two nodes" in group.notice(host) for host in told)

        world.run(story())
