"""Parts of files are sent from the page cache, mixed with other parts, over real sockets."""

import asyncio
import contextlib
import gc
import os
import random
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from moldau.network import file_sending
from moldau.network.file_sending import FileSender
from moldau.network.writing import TurnShare, WriteQueue, transport_sends_vectors
from moldau.runtime.buffers import Buffer
from moldau.runtime.files import sendable
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.files.local_file import LocalFile
from moldau.runtime.files.sendable import CAN_SEND, SENDABLE_SIZE_BYTES, SendableMap, sendable_range

pytestmark = pytest.mark.skipif(not CAN_SEND, reason="only Linux sends files to sockets that do not block")

KIB = 1024
SOCKET_BUFFER_BYTES = 64 * KIB
FILE_SIZE_BYTES = 6 * 1024 * KIB


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine in one of the two event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_in_loop(scenario: Any) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(scenario, 60))

    return run_in_loop


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LocalFile]:
    opened = LocalDisk().open(str(tmp_path / "a"), create=True)
    assert isinstance(opened, LocalFile)
    opened.write_at(0, [random.Random(1).randbytes(FILE_SIZE_BYTES)])
    yield opened
    opened.close()


class Writer(asyncio.Protocol):
    """The sending end of a connection. It uses its queue as a server's connection does."""

    def __init__(self, share: TurnShare | None) -> None:
        self._share = share
        self.lost = asyncio.get_running_loop().create_future()
        self.pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        files = FileSender.of(self.transport, self)
        vectored = transport_sends_vectors(asyncio.get_running_loop())
        self.queue = WriteQueue(self.transport, vectored=vectored, files=files)

    def connection_lost(self, error: Exception | None) -> None:
        self.queue.close()
        self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.pauses += 1
        self.queue.paused = True

    def resume_writing(self) -> None:
        self.queue.paused = False
        self.flush()

    def flush(self) -> None:
        self.queue.flush(share=self._share)
        if not self.queue.is_empty and not self.queue.paused:
            asyncio.get_running_loop().call_soon(self.flush)


@contextlib.asynccontextmanager
async def connection(
    share: TurnShare | None = None,
) -> AsyncIterator[tuple[Writer, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A writer, and its peer. Their buffers are small, so they are full soon."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Writer] = loop.create_future()

    def make() -> Writer:
        writer = Writer(share)
        loop.call_soon(made.set_result, writer)
        return writer

    server = await loop.create_server(make, "127.0.0.1", 0)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    peer.setblocking(False)
    await loop.sock_connect(peer, server.sockets[0].getsockname())
    reader, closer = await asyncio.open_connection(sock=peer, limit=KIB)
    try:
        writer = await made
        connected = writer.transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        yield writer, reader, closer
    finally:
        closer.close()
        server.close()


@pytest.mark.parametrize("has_share", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_parts_arrive_in_order_whatever_they_are(
    run: Callable[[Any], Any], file: LocalFile, seed: int, has_share: bool
) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        async with connection(TurnShare() if has_share else None) as (writer, reader, _):
            expected: list[bytes] = []
            for _ in range(12):
                parts = [part_of(file, chance) for _ in range(chance.randint(1, 5))]
                expected += map(bytes, parts)
                writer.queue.add(parts)
                if chance.random() < 0.7:
                    writer.flush()
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
            writer.flush()
            whole = b"".join(expected)
            assert await reader.readexactly(len(whole)) == whole
            assert writer.queue.is_empty
            assert writer.queue.queued_bytes == 0

    run(scenario())


def part_of(file: LocalFile, chance: random.Random) -> Buffer:
    """Any part of a response: small or large bytes, or a range of the file that may be sent."""
    size_bytes = chance.choice((1, 30, 5 * KIB, SENDABLE_SIZE_BYTES, 300 * KIB, 1024 * KIB))
    match chance.randrange(3):
        case 0:
            return chance.randbytes(size_bytes)
        case 1:
            return memoryview(chance.randbytes(size_bytes))
        case _:
            return file.view_loaded(chance.randrange(FILE_SIZE_BYTES - size_bytes), size_bytes)


def test_a_file_is_sent_without_the_transport(
    run: Callable[[Any], Any], file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            view = file.view_loaded(5, 2_000_000)
            copied: list[int] = []
            pass_run = WriteQueue._pass_run

            def counted(*given: Any) -> int:
                copied.append(pass_run(*given))
                return copied[-1]

            monkeypatch.setattr(WriteQueue, "_pass_run", counted)
            writer.queue.add([b"head", view])
            writer.flush()
            assert await reader.readexactly(2_000_004) == b"head" + bytes(view)
            assert sum(copied) < SENDABLE_SIZE_BYTES  # only a small rest
            assert writer.pauses > 0, "the socket was never full, so nothing has waited"

    run(scenario())


def test_a_file_that_was_closed_meanwhile_is_sent_by_the_transport(
    run: Callable[[Any], Any], file: LocalFile
) -> None:
    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            view = file.view_loaded(0, FILE_SIZE_BYTES)
            expected = bytes(view)
            writer.queue.add([view])
            writer.flush()
            assert not writer.queue.is_empty
            os.remove(file.path)
            file.close()
            assert await reader.readexactly(FILE_SIZE_BYTES) == expected

    run(scenario())


def test_a_peer_that_leaves_ends_the_wait(run: Callable[[Any], Any], file: LocalFile) -> None:
    async def scenario() -> None:
        async with connection() as (writer, _, closer):
            writer.queue.add([file.view_loaded(0, FILE_SIZE_BYTES)])
            writer.flush()
            assert writer.queue.paused
            closer.transport.abort()
            await writer.lost
            assert writer.queue.is_empty

    run(scenario())


def test_a_connection_that_is_closed_while_it_waits_sends_nothing_more(
    run: Callable[[Any], Any], file: LocalFile
) -> None:
    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            writer.queue.add([file.view_loaded(0, FILE_SIZE_BYTES)])
            writer.flush()
            assert writer.queue.paused
            writer.transport.abort()
            await writer.lost
            with contextlib.suppress(ConnectionResetError):
                assert len(await reader.read()) < FILE_SIZE_BYTES

    run(scenario())


def test_the_descriptor_of_a_connection_is_released(run: Callable[[Any], Any], file: LocalFile) -> None:
    async def scenario() -> int:
        async with connection() as (writer, reader, closer):
            writer.queue.add([file.view_loaded(0, 100_000)])
            writer.flush()
            await reader.readexactly(100_000)
            closer.close()
            await writer.lost
        return len(os.listdir("/proc/self/fd"))

    run(scenario())
    before = run(scenario())
    assert run(scenario()) == before


def test_without_a_second_descriptor_the_transport_sends(
    run: Callable[[Any], Any], file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            view = file.view_loaded(0, 500_000)
            monkeypatch.setattr(os, "dup", refuse)
            writer.queue.add([view])
            writer.flush()
            assert await reader.readexactly(500_000) == bytes(view)

    run(scenario())


def test_a_closed_connection_is_free_without_the_garbage_collector(
    run: Callable[[Any], Any], file: LocalFile
) -> None:
    async def scenario() -> "weakref.ref[Writer]":
        async with connection() as (writer, reader, closer):
            writer.queue.add([file.view_loaded(0, 100_000)])
            writer.flush()
            await reader.readexactly(100_000)
            closer.close()
            await writer.lost
            return weakref.ref(writer)

    gc.disable()
    try:
        assert run(scenario())() is None
    finally:
        gc.enable()


def test_an_empty_part_before_a_file_does_not_stop_the_others(
    run: Callable[[Any], Any], file: LocalFile
) -> None:
    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            view = file.view_loaded(0, 200_000)
            writer.queue.add([b"head", b"", view, b"", b"tail"])
            writer.flush()
            assert await reader.readexactly(200_008) == b"head" + bytes(view) + b"tail"

    run(scenario())


def test_a_view_can_be_copied_if_there_are_many_maps(
    file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SendableMap.alive
    monkeypatch.setattr(sendable, "MAPS_MAX", before + 2)
    views = [file.view_loaded(number, 100_000) for number in range(3)]
    assert [sendable_range(view) is not None for view in views] == [True, True, False]
    assert bytes(views[2]) == file.read_at(2, 100_000)
    del views
    assert SendableMap.alive == before


@pytest.mark.parametrize(
    "error", [OSError(12, "Cannot allocate memory"), OSError(24, "Too many"), ValueError()]
)
def test_a_view_can_be_copied_if_it_cannot_be_mapped(
    file: LocalFile, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> SendableMap:
        raise error

    before = SendableMap.alive
    expected = file.read_at(3, 100_000)
    file.view(0, FILE_SIZE_BYTES)
    monkeypatch.setattr(SendableMap, "__new__", refuse)
    assert bytes(file.view_loaded(3, 100_000)) == expected
    assert SendableMap.alive == before


def test_the_last_descriptors_are_for_the_disk(
    run: Callable[[Any], Any], file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with connection() as (writer, reader, _):
            monkeypatch.setattr(file_sending, "last_descriptor_for_clients", lambda: 2)
            view = file.view_loaded(0, 500_000)
            writer.queue.add([view])
            writer.flush()
            assert await reader.readexactly(500_000) == bytes(view)
            assert writer.queue._files is not None
            assert writer.queue._files._socket is None

    run(scenario())


def test_only_the_beginning_of_a_view_may_be_cut_off(file: LocalFile) -> None:
    view = file.view_loaded(4_097, 500_000)
    found = sendable_range(view[100_000:])
    assert found is not None
    assert (found.position, found.size_bytes) == (104_097, 400_000)
    assert sendable_range(view[-SENDABLE_SIZE_BYTES + 1 :]) is None
    assert sendable_range(file.view(0, 500_000)) is None
    assert sendable_range(bytes(500_000)) is None


def test_a_transport_that_is_no_socket_has_no_sender() -> None:
    class Elsewhere(asyncio.Transport):
        pass

    assert FileSender.of(Elsewhere(), Writer.__new__(Writer)) is None
    with socket.socket() as connected:
        assert (
            FileSender.of(Elsewhere({"socket": connected, "sslcontext": object()}), Writer.__new__(Writer))
            is None
        )
