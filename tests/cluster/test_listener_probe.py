"""The contract of probes of listeners, with the network of this machine and with a simulated network."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from moldau.cluster.controller.listener_probe import TcpListenerProbe
from moldau.cluster.controller.process_watch import ListenerProbe
from moldau.runtime import Machine
from moldau.simulation.world.world import World

PORT = 9092


class Place:
    """A machine with a port, and a probe on the same or on another machine."""

    def probe(self, test: Callable[[ListenerProbe, str, int], Awaitable[bool]]) -> bool:
        raise NotImplementedError

    def listen(self) -> None:
        """Let a process listen on the port. The process never accepts a connection."""
        raise NotImplementedError

    def end(self) -> None:
        """End the process."""
        raise NotImplementedError


class RealPlace(Place):
    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]

    def probe(self, test: Callable[[ListenerProbe, str, int], Awaitable[bool]]) -> bool:
        return asyncio.run(self._probed(test))

    async def _probed(self, test: Callable[[ListenerProbe, str, int], Awaitable[bool]]) -> bool:
        return await test(TcpListenerProbe(["localhost"]), "127.0.0.1", self._port)

    def listen(self) -> None:
        self._socket.listen()

    def end(self) -> None:
        self._socket.close()


class SimulatedPlace(Place):
    def __init__(self, world: World) -> None:
        self.world = world
        self.target = world.host("target")

    def probe(self, test: Callable[[ListenerProbe, str, int], Awaitable[bool]]) -> bool:
        async def story() -> bool:
            async def program(_machine: Machine) -> bool:
                return await test(TcpListenerProbe(["localhost"]), "target", PORT)

            process = self.world.host("controller").start(program)
            assert process.main is not None
            found: bool = await process.main
            return found

        found = self.world.run(story())
        self.world.host("controller").kill()
        return found

    def listen(self) -> None:
        async def story() -> None:
            opened = asyncio.Event()

            async def program(_machine: Machine) -> None:
                await asyncio.get_running_loop().create_server(asyncio.Protocol, "target", PORT)
                opened.set()
                await asyncio.Event().wait()

            self.target.start(program)
            await opened.wait()

        self.world.run(story())

    def end(self) -> None:
        self.target.kill()


@pytest.fixture
def simulated() -> Iterator[SimulatedPlace]:
    with World(5) as world:
        yield SimulatedPlace(world)


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "simulated":
        yield request.getfixturevalue("simulated")
        return
    real = RealPlace()
    yield real
    with contextlib.suppress(OSError):
        real.end()


async def _is_refused(probe: ListenerProbe, host: str, port: int) -> bool:
    return await probe.is_refused(host, port)


def test_a_port_refuses_before_and_after_the_life_of_its_process(place: Place) -> None:
    assert place.probe(_is_refused)
    place.listen()
    assert not place.probe(_is_refused)
    # The probe has left no state in the listener.
    assert not place.probe(_is_refused)
    place.end()
    assert place.probe(_is_refused)


def test_an_unknown_host_is_no_evidence(simulated: SimulatedPlace) -> None:
    async def unknown(probe: ListenerProbe, _host: str, port: int) -> bool:
        return await probe.is_refused("no such host", port)

    assert not simulated.probe(unknown)


def test_a_paused_process_is_no_evidence(simulated: SimulatedPlace) -> None:
    simulated.listen()
    simulated.target.pause()
    assert not simulated.probe(_is_refused)


def test_a_machine_without_power_is_no_evidence(simulated: SimulatedPlace) -> None:
    simulated.listen()
    simulated.target.lose_power()
    assert not simulated.probe(_is_refused)


@pytest.mark.parametrize(("source", "target"), [("controller", "target"), ("target", "controller")])
def test_an_interrupted_network_is_no_evidence(simulated: SimulatedPlace, source: str, target: str) -> None:
    simulated.world.host("controller")
    simulated.listen()
    simulated.end()
    simulated.world.network.cut(source, target)
    assert not simulated.probe(_is_refused)


@pytest.mark.parametrize(
    ("own_host", "host", "is_evidence"),
    [
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        # With this address, a controller on another machine would probe a port of its own machine.
        ("192.0.2.1", "127.0.0.1", False),
        ("controller-1", "localhost", False),
    ],
)
def test_a_loopback_address_is_evidence_only_on_the_same_machine(
    own_host: str, host: str, is_evidence: bool
) -> None:
    async def probed() -> bool:
        return await TcpListenerProbe([own_host]).is_refused(host, port)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert asyncio.run(probed()) == is_evidence
