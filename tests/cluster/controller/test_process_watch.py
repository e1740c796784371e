"""The controller fences a broker as soon as its process has ended, and never without evidence."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from controller_node import Node, run

from moldau.cluster.controller.process_watch import ProcessWatch
from moldau.metrics.meters import Counter
from moldau.network.context import ConnectionContext
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest

SESSION_MS = 60_000


class Listeners:
    """A probe of listeners whose state a test sets."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        """Hosts on which no process listens."""
        self.probed: list[str] = []
        self.on_probe: Callable[[], None] = lambda: None
        """Called during each probe."""

    async def is_refused(self, host: str, port: int) -> bool:
        self.probed.append(host)
        await asyncio.sleep(0.001)
        self.on_probe()
        return host in self.ended


class WatchedNode(Node):
    """A controller that watches the processes of brokers."""

    def __init__(self) -> None:
        super().__init__(session_timeout_ms=SESSION_MS)
        self.listeners = Listeners()
        self.fenced = Counter()
        self.watch = ProcessWatch(1, self.controller, self.service, self.listeners, self.fenced)

    async def beat(self, broker_id: int, connection: ConnectionContext) -> None:
        """A broker sends a heartbeat, as in the controller's handler."""
        epoch = self.service.image.brokers[broker_id].epoch
        await self.channel.send(
            BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=epoch)
        )
        self.watch.heartbeat_received(connection, broker_id, epoch)

    def is_fenced(self, broker_id: int) -> bool:
        return self.publisher.image.brokers[broker_id].fenced

    async def broker(self, broker_id: int) -> ConnectionContext:
        """Add a broker. Returns the connection of its heartbeats."""
        await self.add_broker(broker_id)
        connection = ConnectionContext(f"connection of {broker_id}", "CONTROLLER")
        await self.beat(broker_id, connection)
        return connection


def run_watched(scene: Callable[[WatchedNode], Awaitable[None]]) -> None:
    """Play a scene with a node that is the active controller."""

    async def test() -> None:
        node = WatchedNode()
        await node.lead()
        await scene(node)
        node.service.close()

    run(test())


def test_a_broker_whose_process_has_ended_is_fenced_before_its_session_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        await node.broker(3)
        node.listeners.ended = {"host-2"}
        connection.mark_closed()
        await asyncio.sleep(1)
        assert node.is_fenced(2)
        assert not node.is_fenced(3)
        assert node.fenced.value == 1
        assert (
            "broker 2 is fenced, its process has ended: all its listeners refuse connections" in caplog.text
        )

    run_watched(scene)


def test_the_next_process_of_an_ended_one_registers_at_once() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        node.listeners.ended = {"host-2"}
        connection.mark_closed()
        await asyncio.sleep(1)
        assert await node.add_broker(2, incarnation=77) > 0
        assert not node.is_fenced(2)

    run_watched(scene)


def test_a_live_broker_whose_connection_ended_keeps_its_session() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        connection.mark_closed()
        await asyncio.sleep(SESSION_MS / 1000 - 1)
        assert node.listeners.probed
        assert not node.is_fenced(2)
        # The listener of the broker still accepts connections, so the broker is fenced only when its session
        # expires.
        await asyncio.sleep(2)
        assert node.is_fenced(2)
        assert not node.fenced.value

    run_watched(scene)


def test_a_heartbeat_during_the_probes_ends_the_suspicion() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        node.listeners.ended = {"host-2"}
        tasks: list[asyncio.Future[None]] = []

        def beat() -> None:
            again = ConnectionContext("second connection", "CONTROLLER")
            tasks.append(asyncio.ensure_future(node.beat(2, again)))
            node.listeners.on_probe = lambda: None

        node.listeners.on_probe = beat
        connection.mark_closed()
        await asyncio.sleep(5)
        assert not node.is_fenced(2)
        assert not node.fenced.value

    run_watched(scene)


def test_a_heartbeat_whose_connection_has_ended_already_is_followed_by_probes() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        node.listeners.ended = {"host-2"}
        again = ConnectionContext("second connection", "CONTROLLER")
        again.mark_closed()
        await node.beat(2, again)
        await asyncio.sleep(1)
        assert node.is_fenced(2)
        connection.mark_closed()

    run_watched(scene)


def test_a_controller_that_lost_its_leadership_fences_no_broker() -> None:
    async def test() -> None:
        node = WatchedNode()
        await node.lead()
        connection = await node.broker(2)
        node.listeners.ended = {"host-2"}
        node.listeners.on_probe = lambda: node.log.elect(9)
        connection.mark_closed()
        await asyncio.sleep(5)
        assert node.listeners.probed == ["host-2"]
        assert not node.is_fenced(2)
        assert not node.fenced.value

    run(test())


def test_a_new_controller_fences_the_brokers_that_ended_before_its_leadership() -> None:
    async def scene(node: WatchedNode) -> None:
        await node.broker(1)
        await node.broker(2)
        await node.broker(3)
        node.log.elect(9)
        # Broker 1 is in the same process as the controller, so its listener is not probed.
        node.listeners.ended = {"host-1", "host-2"}
        await node.lead()
        await asyncio.sleep(5)
        assert [node.is_fenced(broker_id) for broker_id in (1, 2, 3)] == [False, True, False]
        assert "host-1" not in node.listeners.probed

    run_watched(scene)


def test_probes_of_a_former_leadership_do_not_go_on_in_the_next() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        connection.mark_closed()
        await asyncio.sleep(0.01)
        node.log.elect(9)
        await node.lead()
        await node.beat(2, ConnectionContext("second connection", "CONTROLLER"))
        node.listeners.ended = {"host-2"}
        await asyncio.sleep(5)
        assert not node.is_fenced(2)

    run_watched(scene)


def test_a_broker_that_registered_again_is_not_fenced_for_its_former_process() -> None:
    async def scene(node: WatchedNode) -> None:
        connection = await node.broker(2)
        node.listeners.ended = {"host-2"}
        tasks: list[asyncio.Future[None]] = []

        def register() -> None:
            node.listeners.on_probe = lambda: None

            async def restart() -> None:
                await node.channel.send(UnregisterBrokerRequest(broker_id=2))
                await node.add_broker(2, incarnation=77)

            tasks.append(asyncio.ensure_future(restart()))

        node.listeners.on_probe = register
        connection.mark_closed()
        await asyncio.sleep(5)
        assert not node.is_fenced(2)
        assert not node.fenced.value

    run_watched(scene)


def test_a_broker_without_listeners_is_not_probed() -> None:
    async def scene(node: WatchedNode) -> None:
        await node.add_broker(4, has_listener=False)
        connection = ConnectionContext("connection of 4", "CONTROLLER")
        await node.beat(4, connection)
        connection.mark_closed()
        await asyncio.sleep(5)
        assert not node.listeners.probed
        assert not node.is_fenced(4)

    run_watched(scene)
