"""Requests that arrive together may share work. Their responses are sent after this work. If the work fails,
the responses are never sent."""

import asyncio

import pytest
from network_harness import Wire, echo, request_frame

from moldau.network import Listener, NetworkLimits, SocketServer


class SharedWork:
    """Records the ends of turns, and the responses that were sent before each end."""

    def __init__(self):
        self.wire = None
        self.dispatched = 0
        self.ends = []
        self.error = None

    def dispatch(self, context, body):
        self.dispatched += 1
        return echo(context, body)

    def end_turn(self):
        if self.dispatched:
            self.ends.append((self.dispatched, len(self.wire.responses)))
        self.dispatched = 0
        if self.error is not None:
            raise self.error


def connect(work, **limits):
    server = SocketServer(
        work.dispatch,
        [Listener("PLAINTEXT", "127.0.0.1", 0)],
        NetworkLimits(**limits),
        end_turn=work.end_turn,
    )
    work.wire = Wire(server)
    return work.wire


def test_a_turn_ends_before_its_answers_leave():
    async def scenario():
        work = SharedWork()
        wire = connect(work)
        wire.feed(b"".join(request_frame(number, b"x") for number in range(5)))
        wire.feed(b"".join(request_frame(number, b"x") for number in range(5, 7)))
        await wire.settle()
        assert work.ends == [(5, 0), (2, 5)]
        assert [number for number, _ in wire.responses] == list(range(7))

    asyncio.run(scenario())


def test_many_requests_and_large_ones_are_several_turns():
    async def scenario():
        work = SharedWork()
        wire = connect(work)
        wire.feed(b"".join(request_frame(number, b"x") for number in range(200)))
        await wire.settle()
        large = [request_frame(number, bytes(300_000)) for number in (200, 201)]
        wire.feed(b"".join(large), chunk_sizes=[100_000] * 7)
        await wire.settle()
        assert [number for number, _ in wire.responses] == list(range(202))
        assert sum(count for count, _ in work.ends) == 202
        assert max(count for count, _ in work.ends) <= 64
        answered = [before for _, before in work.ends]
        assert answered == sorted(answered)

    asyncio.run(scenario())


@pytest.mark.parametrize("malformed", [b"", b"\x00\x00\x00\x02ab"])
def test_a_turn_that_fails_answers_nothing_and_ends_the_connection(malformed):
    async def scenario():
        work = SharedWork()
        wire = connect(work)
        wire.feed(request_frame(1, b"x"))
        await wire.settle()
        work.error = RuntimeError("the disk is full")
        wire.feed(request_frame(2, b"x") + request_frame(3, b"x") + malformed)
        await wire.settle()
        assert [number for number, _ in wire.responses] == [1]
        assert wire.transport.closing

    asyncio.run(scenario())


def test_requests_before_a_malformed_request_are_finished_and_answered():
    async def scenario():
        work = SharedWork()
        wire = connect(work)
        wire.feed(request_frame(1, b"x") + b"\x00\x00\x00\x02ab")
        await wire.settle()
        assert work.ends == [(1, 0)]
        assert [number for number, _ in wire.responses] == [1]
        assert wire.transport.closing

    asyncio.run(scenario())
