"""Cuts a byte stream into frames. A frame is a 4-byte big-endian length, and then that number of bytes.

Complete frames are passed on as views of the event loop's shared buffer, without a copy. If a frame arrives
in parts, its first part is copied into a separate buffer, and the kernel then fills this buffer. The buffer
comes from a pool and is reused after the frame, unless the subclass provides memory that it keeps.
"""

import asyncio
import struct

from moldau.network.memory import ReceiveMemory
from moldau.network.wakeups import WakeupThreshold

_LENGTH = struct.Struct(">i")
_unpack_length = _LENGTH.unpack_from


class FrameReceiver(asyncio.BufferedProtocol):
    """The receiving half of a connection. Subclasses process frames and decide when to stop.

    While ``_stalled`` is true no frame is passed on. Received bytes are kept, and :meth:`_replay_stash`
    passes them on later.
    """

    def __init__(self, memory: ReceiveMemory, max_frame_bytes: int) -> None:
        self._shared = memory.shared
        self._pool = memory.pool
        self._max_frame_bytes = max_frame_bytes
        self._head = b""  # the first 0 to 3 bytes of a length that has not arrived completely
        self._partial: memoryview | None = None  # a buffer of exactly the frame's size
        # The pool's buffer that contains _partial. None if the subclass provided the memory.
        self._partial_home: memoryview | None = None
        self._filled = 0
        self._wakeups: WakeupThreshold | None = None
        self._stash: memoryview | None = None
        self._stalled = False
        self._finished = False  # no more frames are read, because the connection closes or has failed

    # Methods of subclasses.

    def _on_frame(self, frame: memoryview) -> None:
        """Process one frame. The view is valid only during the call."""
        raise NotImplementedError

    def _memory_to_keep(self, size: int) -> memoryview | None:
        """Returns a buffer of ``size`` bytes for an incomplete frame, if the subclass keeps the frame's
        memory. Such a frame is passed to :meth:`_on_kept_frame`."""
        return None

    def _on_kept_frame(self, frame: memoryview) -> None:
        """Process a frame in the memory of :meth:`_memory_to_keep`. The view stays valid after the call."""
        self._on_frame(frame)

    def _on_bad_length(self, length: int) -> None:
        """Handle a frame length from the peer that is negative or too large. The stream cannot continue."""
        raise NotImplementedError

    def _on_partial(self, size: int) -> None:
        """Called when memory for an incomplete frame of ``size`` bytes was allocated."""

    def _on_partial_done(self, size: int) -> None:
        """Called when the memory for an incomplete frame was released."""

    def _after_receive(self) -> None:
        """Called when all received frames were passed on."""

    # Called by the event loop.

    def get_buffer(self, sizehint: int) -> memoryview:
        partial = self._partial
        if partial is not None:
            return partial[self._filled :]
        head = self._head
        if head:
            size = len(head)
            self._shared[:size] = head
            return self._shared[size:]
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._finished:
            return
        partial = self._partial
        if partial is not None:
            self._filled = filled = self._filled + nbytes
            wakeups = self._wakeups
            if wakeups is not None:
                wakeups.received(len(partial) - filled)
            if filled == len(partial):
                self._complete_partial(partial)
            return
        if self._head:
            nbytes += len(self._head)
            self._head = b""
        self._consume(self._shared, nbytes, owned=False)
        self._after_receive()

    def _complete_partial(self, frame: memoryview) -> None:
        home = self._partial_home
        self._partial = self._partial_home = None
        size = len(frame)
        self._on_partial_done(size)
        if home is None:
            self._on_kept_frame(frame)
            self._after_receive()
            return
        self._on_frame(frame)
        self._after_receive()
        del frame
        self._pool.release(home)

    def _consume(self, data: memoryview, end: int, *, owned: bool) -> None:
        """Pass the frames in ``data[:end]`` to :meth:`_on_frame`. If the data are ``owned``, they stay valid
        after this call, so they need not be copied.
        """
        position = 0
        longest = self._max_frame_bytes
        while end - position >= 4:
            if self._stalled:
                rest = data[position:end]
                self._keep(rest if owned else memoryview(bytes(rest)))
                return
            start = position + 4
            length: int = _unpack_length(data, position)[0]
            if not 0 <= length <= longest:
                self._on_bad_length(length)
                return
            position = start + length
            if position > end:
                self._begin_partial(data[start:end], length)
                return
            self._on_frame(data[start:position])
            if self._finished:
                return
        if position < end:
            if self._stalled:
                self._keep(memoryview(bytes(data[position:end])))
            else:
                self._head = bytes(data[position:end])

    def _keep(self, rest: memoryview) -> None:
        stash = self._stash
        # A transport may still deliver data once after it was paused. Therefore new data are appended to the
        # kept data.
        self._stash = rest if stash is None else memoryview(bytes(stash) + bytes(rest))

    def _begin_partial(self, first: memoryview, size: int) -> None:
        home, partial = None, self._memory_to_keep(size)
        if partial is None:
            home = self._pool.acquire(size)
            partial = home[:size]
        self._filled = len(first)
        partial[: self._filled] = first
        self._partial_home = home
        self._partial = partial
        if self._wakeups is not None:
            self._wakeups.begin_frame(size - len(first))
        self._on_partial(size)

    def _replay_stash(self) -> None:
        """Pass on the frames that were kept while the connection was stalled."""
        stash = self._stash
        if stash is not None:
            self._stash = None
            self._consume(stash, len(stash), owned=True)

    def _drop_received(self) -> None:
        """The connection ends. Release all receive memory."""
        self._finished = True
        self._stash = None
        self._head = b""
        partial, home = self._partial, self._partial_home
        self._partial = self._partial_home = None
        if partial is not None:
            size = len(partial)
            del partial
            self._on_partial_done(size)
        if home is not None:
            self._pool.release(home)
