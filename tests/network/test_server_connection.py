import asyncio
import logging
import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_harness import Wire, echo, make_server, request_frame

from moldau.runtime.errors import ErrorCode, KafkaError

FRAMES = [request_frame(n, bytes([n]) * size) for n, size in enumerate([0, 1, 7, 300, 2])]
EXPECTED = [(n, bytes([n]) * size) for n, size in enumerate([0, 1, 7, 300, 2])]


def run(scenario):
    return asyncio.run(scenario())


def test_split_at_every_byte_boundary():
    async def scenario():
        data = b"".join(FRAMES)
        for cut in range(1, len(data)):
            wire = Wire(make_server(echo))
            wire.feed(data, [cut])
            assert wire.responses == EXPECTED

    run(scenario)


def test_one_byte_at_a_time():
    async def scenario():
        data = b"".join(FRAMES)
        wire = Wire(make_server(echo))
        wire.feed(data, [1] * len(data))
        assert wire.responses == EXPECTED
        assert wire.server.counters.bytes_in == len(data)
        assert wire.server.counters.requests == len(FRAMES)
        assert wire.server.counters.in_flight_bytes == 0

    run(scenario)


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=30),
    chunks=st.lists(st.integers(1, 9000), max_size=60),
    seed=st.integers(0, 2**32),
    max_in_flight=st.integers(1, 8),
    max_bytes=st.integers(1, 20_000),
    queued=st.integers(1, 20_000),
)
def test_any_chunking_any_completion_order_any_bound(sizes, chunks, seed, max_in_flight, max_bytes, queued):
    async def scenario():
        order = random.Random(seed)
        waiting = []

        def dispatch(context, body):
            answer = [bytes(body[:3]), bytes(body[3:])]
            kind = order.randrange(3)
            if kind == 0:
                return answer
            future = asyncio.get_running_loop().create_future()
            if kind == 1:
                future.set_result(answer)
            else:
                waiting.append((future, answer))
            return future

        server = make_server(
            dispatch,
            max_in_flight_requests_per_connection=max_in_flight,
            max_in_flight_bytes_per_connection=max_bytes,
            queued_max_request_bytes=queued,
        )
        wire = Wire(server)
        wire.feed(b"".join(request_frame(n, bytes([n]) * s) for n, s in enumerate(sizes)), chunks)
        await wire.settle()
        while waiting:
            assert server.counters.in_flight_requests <= max_in_flight
            future, answer = waiting.pop(order.randrange(len(waiting)))
            future.set_result(answer)
            await wire.settle()
        await wire.settle()
        assert wire.responses == [(n, bytes([n]) * s) for n, s in enumerate(sizes)]
        assert server.counters.in_flight_bytes == 0
        assert server.counters.in_flight_requests == 0
        assert server.budget.used_bytes == 0

    run(scenario)


@given(data=st.binary(max_size=400), chunks=st.lists(st.integers(1, 50), max_size=20))
def test_garbage_never_raises_and_never_leaks(data, chunks):
    async def scenario():
        logging.disable(logging.CRITICAL)
        server = make_server(lambda context, body: [], max_request_bytes=200)
        wire = Wire(server)
        wire.feed(data, chunks)
        wire.connection.abort()
        await wire.settle()
        assert server.counters.connections_open == 0
        assert server.counters.in_flight_bytes == 0
        assert server.budget.used_bytes == 0
        logging.disable(logging.NOTSET)

    run(scenario)


def test_answers_leave_in_request_order():
    async def scenario():
        futures = {}

        def dispatch(context, body):
            futures[context.correlation_id] = asyncio.get_running_loop().create_future()
            return futures[context.correlation_id]

        wire = Wire(make_server(dispatch))
        wire.feed(b"".join(request_frame(n) for n in range(4)))
        futures[2].set_result([b"two"])
        futures[1].set_result([b"one"])
        await wire.settle()
        assert wire.responses == []
        futures[0].set_result([b"zero"])
        await wire.settle()
        assert wire.responses == [(0, b"zero"), (1, b"one"), (2, b"two")]
        futures[3].set_result([b"three"])
        await wire.settle()
        assert wire.responses[3:] == [(3, b"three")]

    run(scenario)


def test_no_response_is_sent_if_a_handler_returns_none():
    async def scenario():
        late = asyncio.get_running_loop().create_future()
        answers = iter([None, [b"1"], late, [b"3"]])
        wire = Wire(make_server(lambda context, body: next(answers)))
        wire.feed(b"".join(request_frame(n) for n in range(4)))
        late.set_result(None)
        await wire.settle()
        assert wire.responses == [(1, b"1"), (3, b"3")]

    run(scenario)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", -1), "a request length of -1 is negative"),
        (struct.pack(">i", 1001), "a request length of 1001 exceeds socket.request.max.bytes=1000"),
        (struct.pack(">i", 5) + b"abcde", "malformed request header of 5 bytes"),
        (struct.pack(">i", 0), "malformed request header of 0 bytes"),
        (request_frame(1, b"raise"), "correlation id 1 failed: RuntimeError: oh"),
    ],
    ids=["negative", "too long", "short header", "empty", "dispatcher raises"],
)
def test_bad_frame_closes_one_connection_with_one_line(caplog, data, reason):
    async def scenario():
        def dispatch(context, body):
            if bytes(body) == b"raise":
                raise RuntimeError("oh")
            return [b"fine"]

        server = make_server(dispatch, max_request_bytes=1000)
        bad, good = Wire(server), Wire(server, "10.0.0.2")
        bad.feed(request_frame(0) + data + request_frame(9))
        await bad.settle()
        assert bad.transport.closing
        assert bad.responses == [(0, b"fine")]
        good.feed(request_frame(7))
        assert good.responses == [(7, b"fine")]
        assert not good.transport.closing
        assert server.counters.connections_failed == 1
        assert server.counters.connections_open == 1

    with caplog.at_level(logging.INFO, "moldau.network"):
        run(scenario)
    assert len(caplog.records) == 1
    assert reason in caplog.records[0].getMessage()
    assert caplog.records[0].peer_host == "10.0.0.1"


def test_failed_and_cancelled_futures_close_the_connection(caplog):
    async def scenario():
        for spoil in (lambda f: f.set_exception(ValueError("no")), lambda f: f.cancel()):
            future = asyncio.get_running_loop().create_future()
            server = make_server(lambda context, body, future=future: future)
            wire = Wire(server)
            wire.feed(request_frame(1))
            spoil(future)
            await wire.settle()
            assert wire.transport.closing
            assert server.counters.in_flight_requests == 0
            assert server.counters.in_flight_bytes == 0

    run(scenario)
    assert len(caplog.records) == 2


def test_refusal_that_its_response_has_no_field_for_is_one_line_without_a_traceback(caplog):
    async def scenario():
        def dispatch(context, body):
            raise KafkaError(ErrorCode.invalid_request, "the cursor is not a partition")

        wire = Wire(make_server(dispatch))
        wire.feed(request_frame(1))
        await wire.settle()
        assert wire.transport.closing

    run(scenario)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert "the cursor is not a partition" in record.getMessage()


def test_future_that_finishes_after_the_peer_left_is_harmless(caplog):
    async def scenario():
        futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        queue = iter(futures)
        server = make_server(lambda context, body: next(queue))
        wire = Wire(server)
        wire.feed(b"".join(request_frame(n) for n in range(3)))
        wire.transport.close()
        await wire.settle()
        futures[0].set_result([b"late"])
        futures[1].set_exception(ValueError("late"))
        futures[2].cancel()
        await wire.settle()
        assert wire.connection.context.closed
        assert wire.responses == []
        assert server.counters.in_flight_requests == 0

    run(scenario)
    assert caplog.records == []


def test_in_flight_requests_are_bounded():
    async def scenario():
        futures = []

        def dispatch(context, body):
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        wire = Wire(make_server(dispatch, max_in_flight_requests_per_connection=3))
        wire.feed(b"".join(request_frame(n, b"x" * 100) for n in range(10)))
        assert len(futures) == 3
        assert not wire.transport.reading
        futures[0].set_result([])
        await wire.settle()
        assert len(futures) == 4
        done = 1
        while done < 10:
            futures[done].set_result([])
            done += 1
            await wire.settle()
        assert [correlation_id for correlation_id, _ in wire.responses] == list(range(10))
        assert wire.transport.reading

    run(scenario)


def test_memory_of_all_connections_is_bounded_and_shared_fairly():
    async def scenario():
        futures = []

        def dispatch(context, body):
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        server = make_server(dispatch, queued_max_request_bytes=500)
        wires = [Wire(server, f"10.0.0.{n}") for n in range(4)]
        for wire in wires:
            wire.feed(request_frame(0, b"x" * 400) + request_frame(1, b"x" * 400))
        assert len(futures) == 2
        assert server.counters.in_flight_bytes < 1000
        answered = 0
        while answered < len(futures):
            assert server.budget.used_bytes < 500 + 4 * 420
            futures[answered].set_result([])
            answered += 1
            for wire in wires:
                await wire.settle()
        assert [len(wire.responses) for wire in wires] == [2, 2, 2, 2]
        assert server.budget.used_bytes == 0

    run(scenario)


def test_half_received_frames_that_exhaust_the_budget_can_still_finish():
    async def scenario():
        server = make_server(echo, queued_max_request_bytes=1000)
        wires = [Wire(server, f"10.0.0.{n}") for n in range(3)]
        frame = request_frame(1, b"y" * 900)
        for wire in wires:
            wire.feed(frame[:500])
        for wire in wires:
            wire.feed(frame[500:])
        for wire in wires:
            await wire.settle()
        assert [wire.responses for wire in wires] == [[(1, b"y" * 900)]] * 3

    run(scenario)


def test_peer_that_does_not_read_is_not_served_further():
    async def scenario():
        served = []

        def dispatch(context, body):
            served.append(context.correlation_id)
            return [bytes(1000)]

        wire = Wire(make_server(dispatch, write_high_water_bytes=5000))
        wire.transport.blocked = True
        for n in range(100):
            wire.feed(request_frame(n))
        assert len(served) < 10
        assert not wire.transport.reading
        wire.transport.unblock()
        await wire.settle()
        assert served == list(range(100))
        assert [correlation_id for correlation_id, _ in wire.responses] == served

    run(scenario)


def test_large_answer_is_given_to_the_transport_piece_by_piece():
    async def scenario():
        body = bytes(range(256)) * 4096 * 12
        views = [memoryview(body)[: 5 << 20], memoryview(body)[5 << 20 :], b"tail"]
        wire = Wire(make_server(lambda context, request: list(views), write_high_water_bytes=1 << 20))
        wire.transport.blocked = True
        wire.feed(request_frame(1))
        assert len(wire.transport.buffered) <= 3 << 20
        while wire.transport.buffered:
            wire.transport.written += wire.transport.buffered
            wire.transport.buffered.clear()
            wire.transport.paused_protocol = False
            wire.connection.resume_writing()
        assert wire.responses == [(1, body + b"tail")]

    run(scenario)


def test_large_answer_leaves_room_for_others_in_each_turn_of_the_loop():
    async def scenario():
        body = bytes(range(256)) * 4096 * 3
        wire = Wire(make_server(lambda context, request: [memoryview(body)]))
        wire.feed(request_frame(1))
        steps = [len(wire.transport.written)]
        for _ in range(16):
            await asyncio.sleep(0)
            steps.append(len(wire.transport.written))
        assert steps[0] < len(body) <= steps[-1]
        assert all(later - earlier <= 1280 * 1024 for earlier, later in pairwise([0, *steps]))
        await wire.settle()
        assert wire.responses == [(1, body)]

    run(scenario)


def test_answer_of_a_mebibyte_leaves_in_one_write():
    async def scenario():
        body = bytes(range(256)) * 4080
        wire = Wire(make_server(lambda context, request: [memoryview(body)]))
        wire.feed(request_frame(1))
        assert wire.responses == [(1, body)]

    run(scenario)


def test_connections_with_large_answers_share_a_turn_of_the_loop():
    async def scenario():
        body = bytes(range(256)) * 4096 * 3
        server = make_server(lambda context, request: [memoryview(body)])
        wires = [Wire(server) for _ in range(8)]
        for wire in wires:
            wire.feed(request_frame(1))
        written = [[len(wire.transport.written) for wire in wires]]
        for _ in range(16):
            await asyncio.sleep(0)
            written.append([len(wire.transport.written) for wire in wires])
        totals = [0, *map(sum, written)]
        # The first connection writes a mebibyte. Each other connection writes one or two groups of responses.
        assert all(later - earlier <= (4 + 2 * 8) * 256 * 1024 for earlier, later in pairwise(totals))
        assert min(written[4]) >= 4 * 256 * 1024
        for wire in wires:
            await wire.settle()
            assert wire.responses == [(1, body)]

    run(scenario)


def test_peer_that_sends_no_more_still_gets_the_large_answer_that_was_on_its_way():
    async def scenario():
        body = bytes(range(256)) * 4096 * 3
        wire = Wire(make_server(lambda context, request: [memoryview(body)]))
        wire.feed(request_frame(1))
        assert len(wire.transport.written) < len(body)
        wire.connection.eof_received()
        assert wire.responses == [(1, body)]

    run(scenario)


def test_muted_connection_waits_and_then_continues():
    async def scenario():
        seen = []

        def dispatch(context, body):
            seen.append(context.correlation_id)
            if context.correlation_id == 0:
                context.connection.control.mute(0.01)
            return []

        wire = Wire(make_server(dispatch))
        wire.feed(request_frame(0) + request_frame(1) + request_frame(2))
        assert seen == [0]
        assert [correlation_id for correlation_id, _ in wire.responses] == [0]
        await asyncio.sleep(0.02)
        await wire.settle()
        assert seen == [0, 1, 2]
        assert wire.transport.reading

    run(scenario)


def test_close_when_answered_sends_pending_responses():
    async def scenario():
        late = asyncio.get_running_loop().create_future()
        wire = Wire(make_server(lambda context, body: late))
        wire.feed(request_frame(0))
        wire.connection.close_when_answered()
        wire.feed(request_frame(1))
        await wire.settle()
        assert not wire.transport.closing
        late.set_result([b"goodbye"])
        await wire.settle()
        assert wire.transport.closing
        assert wire.responses == [(0, b"goodbye")]

    run(scenario)


def test_handler_may_refuse_and_close_after_its_answer():
    async def scenario():
        def dispatch(context, body):
            context.connection.control.close_when_answered()
            return [b"refused"]

        wire = Wire(make_server(dispatch))
        wire.feed(request_frame(0) + request_frame(1))
        await wire.settle()
        assert wire.responses == [(0, b"refused")]
        assert wire.transport.closing

    run(scenario)


def test_thousands_of_requests_in_one_receive_leave_turns_to_other_connections():
    async def scenario():
        served = []

        def dispatch(context, body):
            served.append(context.connection.peer_host)
            return [bytes(body)]

        server = make_server(dispatch)
        greedy, modest = Wire(server, "10.0.0.1"), Wire(server, "10.0.0.2")
        greedy.feed(b"".join(request_frame(n) for n in range(5_000)))
        modest.feed(request_frame(7))
        assert served.index("10.0.0.2") <= 64
        for _ in range(100):
            await greedy.settle()
        assert [correlation_id for correlation_id, _ in greedy.responses] == list(range(5_000))
        assert modest.responses == [(7, b"")]
        assert greedy.transport.reading

    run(scenario)
