import asyncio
import random
import socket
import struct

import pytest
from network_harness import Wire, echo, make_server, parse_responses, request_frame, until

from moldau.network import Listener, NetworkLimits, SocketServer
from moldau.runtime.files.local_disk import LocalDisk


async def read_responses(reader, count):
    data = b""
    responses = []
    while len(responses) < count:
        chunk = await reader.read(65536)
        if not chunk:
            break
        data += chunk
        try:
            responses = parse_responses(data)
        except (AssertionError, struct.error):
            continue
    return responses


def loops():
    yield asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        return
    yield uvloop.new_event_loop


@pytest.fixture(params=list(loops()), ids=lambda factory: factory.__module__.partition(".")[0])
def run(request):
    def run_in(scenario):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(scenario())

    return run_in


def test_pipelined_requests_of_all_sizes_over_a_socket(run):
    async def scenario():
        server = make_server(echo)
        ports = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        bodies = [bytes([n % 256]) * size for n, size in enumerate([0, 10, 300_000, 5, 2_000_000, 70_000, 1])]
        writer.write(b"".join(request_frame(n, body) for n, body in enumerate(bodies)))
        responses = await asyncio.wait_for(read_responses(reader, len(bodies)), 60)
        assert responses == list(enumerate(bodies))
        assert server.counters.connections_open == 1
        assert server.connections[0].peer_host == "127.0.0.1"
        writer.close()
        await writer.wait_closed()
        await server.stop()
        assert server.counters.connections_open == 0
        assert server.counters.bytes_out == sum(8 + len(body) for body in bodies)

    run(scenario)


def test_a_stop_sends_pending_responses_and_refuses_new_connections(run):
    async def scenario():
        late = asyncio.get_running_loop().create_future()
        server = make_server(lambda context, body: late)
        ports = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        writer.write(request_frame(5))
        await until(lambda: server.counters.requests)
        stopping = asyncio.ensure_future(server.stop(grace=60))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        late.set_result([b"bye"])
        assert parse_responses(await reader.read()) == [(5, b"bye")]
        await stopping
        writer.close()

    run(scenario)


def test_a_stop_closes_connections_that_do_not_finish_within_the_grace_period(run):
    async def scenario():
        never = asyncio.get_running_loop().create_future()
        server = make_server(lambda context, body: never)
        ports = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        writer.write(request_frame(5))
        await until(lambda: server.counters.requests)
        await asyncio.wait_for(server.stop(grace=0.01), 60)
        assert server.counters.connections_open == 0
        assert server.counters.in_flight_requests == 0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()

    run(scenario)


def test_a_full_server_has_room_on_its_protected_listener(run):
    async def scenario():
        listeners = [Listener("CLIENTS", "127.0.0.1", 0), Listener("BROKERS", "127.0.0.1", 0)]
        limits = NetworkLimits(max_connections=2, protected_listener="BROKERS")
        server = SocketServer(echo, listeners, limits)
        ports = await server.start()
        writers = []

        async def is_served(listener):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[listener])
            writers.append(writer)
            writer.write(request_frame(1))
            try:
                return bool(await reader.read(100))
            except ConnectionResetError:
                return False

        def open_on(listener):
            return sum(context.listener_name == listener for context in server.connections)

        assert [await is_served("CLIENTS") for _ in range(3)] == [True, True, False]
        second = server.connections[1]
        assert await is_served("BROKERS")
        await until(lambda: open_on("CLIENTS") == 1)
        assert server.connections[0] is second, "the least recently active one was closed"
        assert not await is_served("CLIENTS")
        assert await is_served("BROKERS")
        await until(lambda: open_on("CLIENTS") == 0)
        await server.stop(0)
        for writer in writers:
            writer.close()

    run(scenario)


def test_a_listener_s_own_limit_of_connections(run):
    async def scenario():
        listeners = [Listener("Clients", "127.0.0.1", 0), Listener("BROKERS", "127.0.0.1", 0)]
        limits = NetworkLimits(max_connections_by_listener={"clients": 1, "brokers": 0})
        server = SocketServer(echo, listeners, limits)
        ports = await server.start()
        writers = []

        async def is_served(listener):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[listener])
            writers.append(writer)
            writer.write(request_frame(1))
            try:
                return bool(await reader.read(100))
            except ConnectionResetError:
                return False

        assert [await is_served("Clients") for _ in range(2)] == [True, False]
        assert not await is_served("BROKERS")
        writers[0].close()
        await until(lambda: server.counters.connections_open == 0)
        assert await is_served("Clients")
        server.limits = NetworkLimits(
            max_connections_by_listener={"brokers": 1}, protected_listener="BROKERS"
        )
        assert await is_served("Clients")
        # The protected listener accepts one connection beyond its limit.
        assert [await is_served("BROKERS") for _ in range(2)] == [True, True]
        await server.stop(0)
        for writer in writers:
            writer.close()

    run(scenario)


def is_open(wire):
    return not wire.transport.closing


@pytest.mark.parametrize("limits", [{"max_connections": 1}, {"max_connections_per_ip": 1}])
def test_a_pending_answer_does_not_keep_the_place_of_an_operator(run, limits):
    async def scenario():
        loop = asyncio.get_running_loop()
        never = loop.create_future()
        server = make_server(lambda context, body: never, protected_listener="PLAINTEXT", **limits)
        resident, waiting = Wire(server), Wire(server)
        waiting.feed(request_frame(1))  # this fetch waits for 24 days
        assert is_open(resident)
        assert is_open(waiting)
        assert not is_open(Wire(server)), "the place was taken just now"
        waiting.connection.last_active -= 6
        operator = Wire(server)
        assert is_open(operator)
        assert not is_open(waiting)
        assert is_open(resident)

    run(scenario)


def test_a_busy_connection_keeps_the_place_of_an_operator_for_half_a_minute(run, monkeypatch):
    async def scenario():
        loop = asyncio.get_running_loop()
        start = loop.time()
        server = make_server(echo, protected_listener="PLAINTEXT", max_connections=1)
        resident, busy = Wire(server), Wire(server)
        for second in range(1, 30):
            monkeypatch.setattr(loop, "time", lambda now=start + second: now)
            busy.feed(request_frame(second))
            assert not is_open(Wire(server))
        monkeypatch.setattr(loop, "time", lambda: start + 31)
        busy.feed(request_frame(31))
        assert is_open(Wire(server))
        assert is_open(resident)
        assert not is_open(busy)

    run(scenario)


@pytest.mark.parametrize("own", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.9"])
def test_the_node_s_machine_has_a_place_of_its_own(run, own):
    async def scenario():
        limits = {"max_connections": 1, "max_connections_per_ip_overrides": {own: 0, "10.0.0.2": 0}}
        server = make_server(echo, protected_listener="PLAINTEXT", **limits)
        resident, beyond = Wire(server), Wire(server)
        assert is_open(resident)
        assert is_open(beyond)
        assert not is_open(Wire(server, "10.0.0.2")), "a limit for one address of another machine holds"
        assert is_open(Wire(server, own))
        assert is_open(beyond)
        assert not is_open(Wire(server, own)), "it is one place"

    run(scenario)


def test_connections_beyond_the_limits_are_refused(run):
    async def scenario():
        server = make_server(echo, max_connections=3, max_connections_per_ip=2)
        ports = await server.start()
        port = ports["PLAINTEXT"]

        async def is_served(local):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(local, 0))
            writer.write(request_frame(1))
            try:
                return bool(await reader.read(100)), writer
            except ConnectionResetError:
                return False, writer

        outcomes = [await is_served(local) for local in ("127.0.0.1", "127.0.0.1", "127.0.0.1")]
        assert [served for served, _ in outcomes] == [True, True, False]
        outcomes += [await is_served(local) for local in ("127.0.0.2", "127.0.0.3")]
        assert [served for served, _ in outcomes[3:]] == [True, False]
        assert server.counters.connections_refused == 2
        outcomes[0][1].close()
        await until(lambda: server.counters.connections_open < 3)
        assert (await is_served("127.0.0.1"))[0]
        await server.stop(0)
        for _, writer in outcomes:
            writer.close()

    run(scenario)


def test_idle_connection_is_closed_and_a_waiting_one_is_not(run):
    async def scenario():
        never = asyncio.get_running_loop().create_future()
        server = make_server(lambda context, body: never, connections_max_idle_ms=200)
        ports = await server.start()
        # The client has sent its request before the server accepts the connection.
        busy = socket.create_connection(("127.0.0.1", ports["PLAINTEXT"]))
        busy.sendall(request_frame(1))
        await until(lambda: server.counters.requests)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        assert await asyncio.wait_for(idle_reader.read(), 60) == b""
        assert server.counters.connections_idle_closed == 1
        assert server.counters.connections_open == 1
        await server.stop(0)
        idle_writer.close()
        busy.close()

    run(scenario)


def test_peer_that_does_not_read_holds_a_bounded_amount(run):
    async def scenario():
        served = 0

        def dispatch(context, body):
            nonlocal served
            served += 1
            return [bytes(100_000)]

        server = make_server(dispatch, write_high_water_bytes=1 << 20)
        ports = await server.start()
        peer = socket.create_connection(("127.0.0.1", ports["PLAINTEXT"]))
        peer.setblocking(False)
        peer.send(b"".join(request_frame(n) for n in range(2000)))
        await until(lambda: served)
        for _ in range(300):
            await asyncio.sleep(0)
        assert served < 500
        peer.close()
        await until(lambda: not server.counters.connections_open)
        await server.stop(0)

    run(scenario)


def test_listeners_have_names_and_a_taken_port_is_named(run):
    async def scenario():
        seen = []

        def dispatch(context, body):
            seen.append((context.listener_name, context.connection.security_protocol, str(context.principal)))
            return []

        server = SocketServer(
            dispatch, [Listener("INTERNAL", "127.0.0.1", 0), Listener("EXTERNAL", "127.0.0.1", 0)]
        )
        ports = await server.start()
        for name in ("EXTERNAL", "INTERNAL"):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[name])
            writer.write(request_frame(1))
            await reader.read(8)
            writer.close()
        assert [name for name, _, _ in seen] == ["EXTERNAL", "INTERNAL"]
        assert seen[0] == ("EXTERNAL", "PLAINTEXT", "User:ANONYMOUS")
        second = SocketServer(dispatch, [Listener("AGAIN", "127.0.0.1", ports["EXTERNAL"])])
        with pytest.raises(OSError, match="listener AGAIN cannot listen on"):
            await second.start()
        await server.stop()

    run(scenario)


def test_a_handler_learns_the_end_of_its_connection(run):
    async def scenario():
        ended = []

        def dispatch(context, body):
            name = bytes(body)
            context.connection.when_closed(lambda: ended.append((name, context.connection.closed)))
            return [name]

        server = make_server(dispatch)
        ports = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["PLAINTEXT"])
        writer.write(request_frame(1, b"first") + request_frame(2, b"second"))
        await asyncio.wait_for(read_responses(reader, 2), 60)
        (connection,) = server.connections
        assert ended == []
        writer.close()
        await until(lambda: ended)
        assert ended == [(b"first", True), (b"second", True)]
        # A connection that has ended already is reported at once.
        connection.when_closed(lambda: ended.append("late"))
        assert ended[2:] == ["late"]
        await server.stop()

    run(scenario)


def test_a_connection_that_is_closed_while_a_file_is_sent_gets_the_rest(run, tmp_path):
    async def scenario():
        file = LocalDisk().open(str(tmp_path / "a"), create=True)
        content = random.Random(1).randbytes(3_000_000)
        file.write_at(0, [content])
        server = make_server(lambda context, body: [b"head", file.view_loaded(0, len(content))])
        ports = await server.start()
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        peer.connect(("127.0.0.1", ports["PLAINTEXT"]))
        reader, writer = await asyncio.open_connection(sock=peer, limit=1024)
        writer.write(request_frame(1))
        await until(lambda: server._connections)
        (connection,) = server._connections
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        await until(lambda: connection.is_write_blocked)
        connection.close()
        assert parse_responses(await asyncio.wait_for(reader.read(), 60)) == [(1, b"head" + content)]
        writer.close()
        await server.stop()
        file.close()

    run(scenario)
