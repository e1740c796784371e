# ruff: noqa: ASYNC110 (the same story must poll on both loops)
"""The contract of an event loop, checked on asyncio's own loop and on the simulated loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.simulation.world.world import World

Story = Callable[[], Coroutine[Any, Any, Any]]


def run_on_asyncio(story: Story) -> Any:
    return asyncio.run(story())


def run_simulated(story: Story) -> Any:
    with World(7) as world:
        process = world.host("a").start(lambda _machine: story())
        assert process.main is not None
        try:
            return world.run(asyncio.wait_for(process.main, 60))
        finally:
            assert not world.errors()


@pytest.fixture(params=[run_on_asyncio, run_simulated], ids=["asyncio", "simulated"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


class Recorder(asyncio.Protocol):
    """A protocol that records the calls that its transport makes."""

    def __init__(self, answer: Callable[["Recorder", bytes], None] | None = None, keep_open: bool = False):
        self.events: list[Any] = []
        self.data = bytearray()
        self.answer = answer
        self.keep_open = keep_open
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.events.append("made")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.answer:
            self.answer(self, data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


async def connected(server_side: Callable[[], Any], client_side: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """Connect a client to a server. Returns the server, the server's protocol and the client's protocol."""
    made: list[Any] = []

    def factory() -> Any:
        made.append(server_side())
        return made[-1]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, client = await loop.create_connection(client_side, "127.0.0.1", port)
    while not made:
        await asyncio.sleep(0.001)
    return server, made[0], client


def test_callbacks_run_in_order(run: Any) -> None:
    async def story() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        loop.call_soon(seen.append, 1)
        loop.call_later(0.02, seen.append, 4)
        loop.call_later(0.01, seen.append, 3)
        loop.call_soon(seen.append, 2)
        loop.call_later(0.001, seen.append, 9).cancel()
        await asyncio.sleep(0.05)
        return seen

    assert run(story) == [1, 2, 3, 4]


def test_time_moves_with_sleep_and_while_polling(run: Any) -> None:
    async def story() -> bool:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(0.01)
        while loop.time() < start + 0.011:
            await asyncio.sleep(0)
        return loop.time() - start >= 0.011

    assert run(story)


def test_timeouts_cancel_and_tasks_clean_up(run: Any) -> None:
    async def story() -> list[str]:
        seen: list[str] = []

        async def slow() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                seen.append("finally")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow(), 0.01)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.001))
        return seen

    assert run(story) == ["cancelled", "finally"]


def test_streams_work_on_the_loop(run: Any) -> None:
    async def story() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = await reader.readline()
            writer.write(line.upper())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(b"hel")
        writer.write(b"lo\n")
        answer = await reader.read()
        writer.close()
        server.close()
        return answer

    assert run(story) == b"HELLO\n"


def test_end_of_stream_closes_both_ends(run: Any) -> None:
    async def story() -> Any:
        server, theirs, mine = await connected(Recorder, Recorder)
        mine.transport.write(b"last words")
        mine.transport.close()
        assert mine.transport.is_closing()
        await theirs.lost
        await mine.lost
        server.close()
        return bytes(theirs.data), theirs.events, mine.events, theirs.lost.result()

    assert run(story) == (b"last words", ["made", "eof", "lost"], ["made", "lost"], None)


def test_half_closed_connection_still_answers(run: Any) -> None:
    async def story() -> Any:
        server, theirs, mine = await connected(lambda: Recorder(keep_open=True), Recorder)
        mine.transport.write(b"question")
        mine.transport.write_eof()
        while "eof" not in theirs.events:
            await asyncio.sleep(0.001)
        theirs.transport.write(b"answer")
        theirs.transport.close()
        await mine.lost
        server.close()
        with pytest.raises(RuntimeError):
            mine.transport.write(b"more")
        return bytes(theirs.data), bytes(mine.data)

    assert run(story) == (b"question", b"answer")


def test_a_connection_to_a_closed_port_is_refused(run: Any) -> None:
    async def story() -> None:
        server, theirs, mine = await connected(Recorder, Recorder)
        port = server.sockets[0].getsockname()[1]
        server.close()
        mine.transport.close()
        await theirs.lost
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", port)

    run(story)


def test_a_port_is_listened_on_once(run: Any) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recorder, "127.0.0.1", 0)
        with pytest.raises(OSError, match=r"in use"):
            await loop.create_server(Recorder, "127.0.0.1", server.sockets[0].getsockname()[1])
        server.close()

    run(story)


def test_a_slow_reader_pauses_the_writer(run: Any) -> None:
    async def story() -> Any:
        server, theirs, mine = await connected(Recorder, Recorder)
        theirs.transport.pause_reading()
        assert not theirs.transport.is_reading()
        total = 0
        while "pause" not in mine.events:
            mine.transport.write(memoryview(bytes(64 * 1024)))
            total += 64 * 1024
            await asyncio.sleep(0)
        assert mine.transport.get_write_buffer_size() > 0
        assert not theirs.data
        theirs.transport.resume_reading()
        while len(theirs.data) < total:
            await asyncio.sleep(0.001)
        events = list(mine.events)
        mine.transport.close()
        await theirs.lost
        server.close()
        return events

    assert run(story) == ["made", "pause", "resume"]


def test_written_bytes_are_copied(run: Any) -> None:
    async def story() -> bytes:
        server, theirs, mine = await connected(Recorder, Recorder)
        buffer = bytearray(b"before")
        mine.transport.writelines([memoryview(buffer), b"!"])
        buffer[:] = b"after!"
        mine.transport.close()
        await theirs.lost
        server.close()
        return bytes(theirs.data)

    assert run(story) == b"before!"


def test_abort_loses_the_connection_without_an_error(run: Any) -> None:
    async def story() -> Any:
        server, theirs, mine = await connected(Recorder, Recorder)
        mine.transport.abort()
        mine.transport.write(b"nobody reads this")
        await theirs.lost
        server.close()
        return await mine.lost, mine.events

    assert run(story) == (None, ["made", "lost"])


class Buffered(asyncio.BufferedProtocol):
    """Reads into a buffer that is smaller than the data."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.data = bytearray()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= len(self.buffer)
        self.data += self.buffer[:nbytes]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


def test_buffered_protocol_gets_all_in_order(run: Any) -> None:
    async def story() -> bytes:
        server, theirs, mine = await connected(Buffered, Recorder)
        mine.transport.write(bytes(range(100)))
        mine.transport.write(bytes(range(100, 200)))
        mine.transport.close()
        await theirs.lost
        server.close()
        return bytes(theirs.data)

    assert run(story) == bytes(range(200))


def test_addresses_of_both_ends_match(run: Any) -> None:
    async def story() -> None:
        server, theirs, mine = await connected(Recorder, Recorder)
        listening = server.sockets[0].getsockname()
        assert mine.transport.get_extra_info("peername") == listening
        assert theirs.transport.get_extra_info("sockname") == listening
        assert mine.transport.get_extra_info("sockname") == theirs.transport.get_extra_info("peername")
        assert mine.transport.get_extra_info("nothing", "default") == "default"
        mine.transport.close()
        await theirs.lost
        server.close()

    run(story)


def test_an_error_in_a_protocol_loses_its_connection() -> None:
    def fail(_protocol: Recorder, _data: bytes) -> None:
        raise ValueError("planted")

    async def story() -> Any:
        _server, theirs, mine = await connected(lambda: Recorder(fail), Recorder)
        mine.transport.write(b"x")
        await mine.lost
        return theirs.lost.result()

    with World(1) as world:
        process = world.host("a").start(lambda _machine: story())
        assert process.main is not None
        assert isinstance(world.run(asyncio.wait_for(process.main, 60)), ValueError)
        assert "planted" in world.errors()[0]
