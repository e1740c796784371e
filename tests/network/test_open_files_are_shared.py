"""Clients connect until the process has no free file descriptors. This must not affect the disk."""

import asyncio
import contextlib
import os
import pathlib
import resource
import subprocess
import sys

import pytest
from network_harness import echo, make_server, request_frame

SOFT_LIMIT = 400


@contextlib.contextmanager
def open_files_limited_to(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections_leave_open_files_to_the_logs():
    async def scenario():
        server = make_server(echo)
        port = (await server.start())["PLAINTEXT"]
        writers = []
        served = 0
        # Both ends of a connection are in this process, so each connection uses two descriptors.
        while server.counters.connections_refused == 0 and len(writers) < SOFT_LIMIT:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(request_frame(1))
            with contextlib.suppress(ConnectionResetError):
                served += bool(await reader.read(100))
        assert 50 < served < len(writers)
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
        for file in files:
            os.close(file)
        for writer in writers:
            writer.close()
        await server.stop(0)

    with open_files_limited_to(SOFT_LIMIT):
        asyncio.run(scenario())


def idle_connections_leave_a_descriptor_to_an_operator():
    async def scenario():
        server = make_server(echo, protected_listener="PLAINTEXT")
        port = (await server.start())["PLAINTEXT"]
        writers = []
        while server.counters.connections_refused == 0 and len(writers) < SOFT_LIMIT:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(request_frame(1))
            with contextlib.suppress(ConnectionResetError):
                await reader.read(100)
        for connection in server._connections:
            connection.last_active -= 2
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_frame(1))
        assert await reader.read(100)
        for each in (*writers, writer):
            each.close()
        await server.stop(0)

    with open_files_limited_to(SOFT_LIMIT):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    "scenario", [connections_leave_open_files_to_the_logs, idle_connections_leave_a_descriptor_to_an_operator]
)
def test_connections_leave_open_files(scenario):
    # The test runs in a separate process, because files that other tests hold open count towards the limit.
    program = f"from test_open_files_are_shared import *; {scenario.__name__}()"
    subprocess.run(
        [sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, check=True, timeout=200
    )
