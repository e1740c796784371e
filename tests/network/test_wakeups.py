"""The threshold of received bytes that wakes the reader of a large frame."""

import asyncio
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.network import wakeups
from moldau.network.frames import FrameReceiver
from moldau.network.memory import ReceiveMemory
from moldau.network.wakeups import LARGE_FRAME_BYTES, WakeupThreshold

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the threshold is set only on Linux")


class Receiver(FrameReceiver):
    """Keeps the sizes of its frames."""

    def __init__(self, memory):
        super().__init__(memory, 2**31 - 1)
        self.sizes = []
        self.arrived = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport):
        self._wakeups = WakeupThreshold.of(transport)

    def connection_lost(self, exc):
        self._drop_received()
        self.lost.set()

    def _on_frame(self, frame):
        self.sizes.append(len(frame))
        self.arrived.set()

    def give(self, threshold):
        self._wakeups = threshold


class SlowSocket:
    """A socket that delivers its waiting bytes only if there are at least as many as its threshold."""

    family = socket.AF_INET

    def __init__(self):
        self.threshold = 1
        self.calls = 0

    def setsockopt(self, level, option, value):
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.threshold = value
        self.calls += 1


def deliver(receiver, slow, waiting):
    """Deliver the waiting bytes to the receiver as a transport does. Returns the bytes that stay in the
    socket."""
    while waiting and len(waiting) >= slow.threshold:
        buffer = receiver.get_buffer(-1)
        size = min(len(buffer), len(waiting))
        buffer[:size] = waiting[:size]
        receiver.buffer_updated(size)
        waiting = waiting[size:]
    return waiting


@given(
    st.lists(
        st.tuples(st.integers(0, 4 * LARGE_FRAME_BYTES), st.lists(st.floats(0, 1), max_size=6)),
        min_size=1,
        max_size=5,
    )
)
def test_no_frame_waits_for_bytes_behind_it(frames):
    """A peer that sends nothing after a frame must still get its answer."""
    receiver, slow = Receiver(ReceiveMemory()), SlowSocket()
    receiver.give(WakeupThreshold(slow))
    for number, (size, cuts) in enumerate(frames, 1):
        data = struct.pack(">i", size) + bytes(size)
        places = sorted(round(each * len(data)) for each in cuts)
        waiting = b""
        for start, end in zip([0, *places], [*places, len(data)], strict=True):
            waiting = deliver(receiver, slow, waiting + data[start:end])
        assert waiting == b""
        assert len(receiver.sizes) == number
        assert slow.threshold == 1


def test_a_large_frame_wakes_its_reader_seldom():
    receiver, slow = Receiver(ReceiveMemory()), SlowSocket()
    receiver.give(WakeupThreshold(slow))
    size = 8 * 1024 * 1024
    waiting, wakes = struct.pack(">i", size), 0
    for _ in range(size // 4096):
        waiting += bytes(4096)
        if len(waiting) >= slow.threshold:
            wakes += 1
            waiting = deliver(receiver, slow, waiting)
    assert receiver.sizes == [size]
    assert wakes <= 10


def test_small_frames_cost_no_system_call():
    receiver, slow = Receiver(ReceiveMemory()), SlowSocket()
    receiver.give(WakeupThreshold(slow))
    data = struct.pack(">i", 100_000) + bytes(100_000)
    for start in range(0, len(data), 1000):
        deliver(receiver, slow, data[start : start + 1000])
    assert receiver.sizes == [100_000]
    assert slow.calls == 0


class Described(asyncio.BaseTransport):
    """A transport whose ``get_extra_info`` returns the given values."""

    def __init__(self, **extra):
        super().__init__(extra)


def test_encrypted_connections_and_other_sockets_have_no_threshold():
    assert WakeupThreshold.of(Described(socket=SlowSocket())) is not None
    assert WakeupThreshold.of(Described(socket=SlowSocket(), sslcontext=object())) is None
    assert WakeupThreshold.of(Described()) is None
    local = SlowSocket()
    local.family = socket.AF_UNIX
    assert WakeupThreshold.of(Described(socket=local)) is None


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_real_sockets_deliver_large_frames_whole(loop_name):
    loop_factory = None if loop_name == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    sizes = [3_000_000, 0, wakeups.WAKEUP_BYTES, LARGE_FRAME_BYTES - 1, 9_999_999, 5]

    async def scenario():
        receiver = Receiver(ReceiveMemory.of_running_loop())
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: receiver, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(30):
            for size in sizes:
                writer.write(struct.pack(">i", size) + bytes(size))
                await writer.drain()
                await receiver.arrived.wait()
                receiver.arrived.clear()
            # The end of the connection in the middle of a frame wakes the reader, too.
            writer.write(struct.pack(">i", 5_000_000) + bytes(600_000))
            writer.close()
            await receiver.lost.wait()
        server.close()
        assert receiver.sizes == sizes

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
