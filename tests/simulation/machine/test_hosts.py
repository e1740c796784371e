"""Kills, losses of power, pauses and cut network links, as programs on other hosts see them."""

import asyncio
from typing import Any

import pytest

from moldau.runtime import Machine
from moldau.simulation.world.host import Host
from moldau.simulation.world.loop import DeadlockError, LimitError, SimulationError
from moldau.simulation.world.world import World


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def echo_server(_machine: Machine) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "server", 9)
    await server.serve_forever()


async def ask(question: bytes, timeout_s: float = 5.0) -> bytes:
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("server", 9)
        writer.write(question)
        answer = await reader.readexactly(len(question))
        writer.close()
        return answer


def record_what_servers_receive(server: Host) -> list[bytes]:
    """Start an echo server. The returned list collects the data that the server receives."""
    received: list[bytes] = []

    class Recording(Echo):
        def data_received(self, data: bytes) -> None:
            received.append(data)
            super().data_received(data)

    async def program(_machine: Machine) -> None:
        listening = await asyncio.get_running_loop().create_server(Recording, "server", 9)
        await listening.serve_forever()

    server.start(program)
    return received


def on_client(world: World, story: Any) -> Any:
    process = world.host("client").start(lambda _machine: story)
    assert process.main is not None
    return world.run(asyncio.wait_for(process.main, 1_000))


def test_a_killed_server_refuses_connections_and_its_successor_responds() -> None:
    with World(1) as world:
        server = world.host("server")
        server.start(echo_server)

        async def story() -> None:
            await asyncio.sleep(0.1)
            assert await ask(b"one") == b"one"
            reader, writer = await asyncio.open_connection("server", 9)
            server.kill()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await ask(b"two")
            server.start(echo_server)
            await asyncio.sleep(0.1)
            assert await ask(b"three") == b"three"

        on_client(world, story())
        assert not world.errors()


def test_a_machine_without_power_is_silent_and_resets_when_it_is_back() -> None:
    with World(2) as world:
        server = world.host("server")
        server.start(echo_server)

        async def story() -> None:
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("server", 9)
            server.lose_power()
            writer.write(b"anybody there?")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(), 50)
            with pytest.raises(TimeoutError):
                await ask(b"two")
            server.start(echo_server)
            writer.write(b"and now?")
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 50)

        on_client(world, story())


def test_a_kill_runs_no_finally_and_no_timer() -> None:
    with World(3) as world:
        seen: list[str] = []

        async def program(machine: Machine) -> None:
            asyncio.get_running_loop().call_later(1, seen.append, "timer")
            try:
                await machine.workers.run(seen.append, "worker")
                await asyncio.sleep(2)
            finally:
                seen.append("finally")

        async def story() -> None:
            host = world.host("a")
            host.start(program)
            await asyncio.sleep(0.9)
            host.kill()
            await asyncio.sleep(10)

        world.run(story())
        assert seen == ["worker"]


def test_a_paused_program_continues_where_it_was() -> None:
    with World(4) as world:
        server = world.host("server")
        server.start(echo_server)

        async def story() -> float:
            await asyncio.sleep(0.1)
            server.pause()
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            loop.call_later(3, server.resume)
            assert await ask(b"late") == b"late"
            return loop.time() - started_s

        assert 3 <= on_client(world, story()) < 3.1


def test_a_cut_link_delays_or_resets_its_connections() -> None:
    outcomes = set()
    for seed in range(20):
        with World(seed) as world:
            world.host("server").start(echo_server)

            async def story(world: World = world) -> str:
                await asyncio.sleep(0.1)
                reader, writer = await asyncio.open_connection("server", 9)
                world.network.cut("client", "server")
                writer.write(b"x" * 100)
                asyncio.get_running_loop().call_later(2, world.network.heal, "client", "server")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(
                        asyncio.shield(reading := asyncio.create_task(reader.read(1))), 1.9
                    )
                try:
                    await reading
                except ConnectionResetError:
                    return "reset"
                return "went on"

            outcomes.add(on_client(world, story()))
    assert outcomes == {"reset", "went on"}


def test_a_link_is_cut_and_delayed_in_one_direction() -> None:
    with World(9) as world:
        server = world.host("server")

        async def story() -> list[float]:
            await asyncio.sleep(0.1)
            moments = []
            loop = asyncio.get_running_loop()
            for source, target in (("client", "server"), ("server", "client"), ("client", "other")):
                started_s = loop.time()
                world.network.delay(source, target, 1.0)
                await ask(b"slow")
                world.network.delay(source, target, 0.0)
                moments.append(loop.time() - started_s)
            reader, writer = await asyncio.open_connection("server", 9)
            world.network.cut("server", "client")
            writer.write(b"x")
            await asyncio.sleep(1)
            assert received[-1] == b"x"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1)
            return moments

        received = record_what_servers_receive(server)
        there, back, elsewhere = on_client(world, story())
        assert 2 <= there < 2.1  # one delay for the connection, and one for the request
        assert 2 <= back < 2.1
        assert elsewhere < 0.1


def test_bytes_of_a_broken_connection_may_arrive_after_bytes_of_the_next_connection() -> None:
    with World(10) as world:
        server = world.host("server")

        async def story() -> None:
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("server", 9)
            world.network.delay("client", "server", 1.0)
            writer.write(b"first")
            world.network.delay("client", "server", 0.0)
            (end,) = (end for end in world.network.connections())
            world.network.tear(end if end.host.name == "client" else end.peer)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert await ask(b"second") == b"second"
            await asyncio.sleep(2)
            assert b"".join(received) == b"secondfirst"

        received = record_what_servers_receive(server)
        on_client(world, story())
        assert not world.errors()


def test_waiting_without_a_pending_event_is_a_deadlock() -> None:
    async def story() -> None:
        await asyncio.get_running_loop().create_future()

    with World(5) as world, pytest.raises(DeadlockError, match="story"):
        world.run(story())


def test_a_story_without_end_is_cut_off() -> None:
    async def story() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with World(6, time_limit_s=100) as world, pytest.raises(LimitError, match="100"):
        world.run(story())


def test_threads_are_refused() -> None:
    async def story() -> None:
        await asyncio.to_thread(print)

    with World(7) as world, pytest.raises(SimulationError, match="Workers"):
        world.run(story())


def test_a_job_answers_after_its_effect() -> None:
    with World(8) as world:
        moments: list[float] = []

        async def program(machine: Machine) -> None:
            loop = asyncio.get_running_loop()
            await machine.workers.run(lambda: moments.append(loop.time()))
            moments.append(loop.time())
            with pytest.raises(ZeroDivisionError):
                await machine.workers.run(lambda: 1 // 0)

        process = world.host("a").start(program)
        assert process.main is not None
        world.run(process.main)
        assert moments[0] < moments[1]
