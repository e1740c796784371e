"""The thread that reads input lines may still run when the event loop has ended."""

import asyncio
import gc
import threading

import pytest

from moldau.cli.records.input import CHUNKS_AHEAD, lines


class Held:
    """Returns one line, then blocks until the test releases it, and then returns the other lines."""

    def __init__(self, *rest):
        self._given = [b"first\n"]
        self._rest = list(rest)
        self.let_go = threading.Event()

    def read(self, size, /):
        if self._given:
            return self._given.pop()
        assert self.let_go.wait(60)
        if not self._rest:
            return b""
        following = self._rest.pop(0)
        if isinstance(following, OSError):
            raise following
        return following


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "moldau-input"]


@pytest.mark.parametrize("rest", [[], [b"second\n"], [b"unfinished"], [OSError("gone")]])
def test_a_line_after_the_end_of_the_loop_is_ignored(rest):
    reader = Held(*rest)
    before = set(reading_threads())

    async def read_one():
        async for chunk in lines(reader):
            return chunk

    assert asyncio.run(read_one()) == [b"first"]
    (thread,) = set(reading_threads()) - before
    reader.let_go.set()
    thread.join(60)
    assert not thread.is_alive()
    gc.collect()  # If a coroutine is never awaited, Python warns at this point, and the test fails.


def test_reading_keeps_only_a_few_chunks_ahead():
    class Endless:
        count = 0

        def read(self, size, /):
            self.count += 1
            return b"line\n"

    reader = Endless()

    async def read_some():
        found = []
        async for chunk in lines(reader):
            found += chunk
            if len(found) == 50:
                return found

    assert asyncio.run(read_some()) == [b"line"] * 50
    assert reader.count <= 50 + CHUNKS_AHEAD + 2


def test_an_error_is_reported_after_the_lines_before_it():
    reader = Held(b"second\n", OSError("gone"))
    reader.let_go.set()
    found = []

    async def read():
        async for chunk in lines(reader):
            found.extend(chunk)

    with pytest.raises(OSError, match="gone"):
        asyncio.run(read())
    assert found == [b"first", b"second"]
