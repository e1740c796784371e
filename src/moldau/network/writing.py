"""Sends response parts without joining large parts, and keeps the parts that the peer does not read yet."""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator, Sequence

from moldau.network.file_sending import FileSender
from moldau.runtime.buffers import Buffer

_JOIN_BYTES = 64 * 1024
"""Size in bytes. Up to this size, one copy and one send cost less than one vectored send of the parts."""

_TINY_BYTES = 1024
"""If parts are smaller than this on average, they are joined, even if there are many."""

_RUN_BYTES = 256 * 1024
"""Large responses are passed to the transport in parts of at least this number of bytes. After each part the
transport can report that its high-water mark is reached. Writing one part keeps the event loop busy for a
tenth of a millisecond. If parts were half as large, the CPU cost would be a fifth higher.
"""

_TURN_BYTES = 1024 * 1024
"""Number of bytes of large answers that are written in an iteration of the event loop. After this number,
each connection may write only :data:`_RUN_BYTES` in this iteration. An answer of 1 MiB in one write wakes its
reader once instead of four times, which makes fetches a third faster. The limit keeps the iteration short if
there are many readers.
"""


class TurnShare:
    """Limits the bytes that connections of a server may write in one iteration of the event loop, if they
    write large responses."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _TURN_BYTES

    def claim(self, wanted_bytes: int) -> int:
        """Return the number of bytes that a connection may write in this iteration. It is at least
        :data:`_RUN_BYTES`."""
        left = self._left
        if left == _TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        claimed = max(min(left, wanted_bytes), _RUN_BYTES)
        self._left = max(0, left - claimed)
        return claimed

    def _begin_turn(self) -> None:
        self._left = _TURN_BYTES


def transport_sends_vectors(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether ``writelines`` of this loop's transports sends parts without joining them first."""
    return sys.version_info >= (3, 12) or type(loop).__module__.partition(".")[0] == "uvloop"


class WriteQueue:
    """The sending half of a connection: parts are added, then flushed together."""

    __slots__ = ("_files", "_parts", "_transport", "_vectored", "paused", "queued_bytes")

    def __init__(
        self, transport: asyncio.WriteTransport, *, vectored: bool, files: FileSender | None = None
    ) -> None:
        """``files`` sends parts of files without a copy; ``None`` if this is impossible."""
        self._transport = transport
        self._vectored = vectored
        self._files = files
        self._parts: list[Buffer] = []
        self.paused = False
        self.queued_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def add(self, parts: Sequence[Buffer]) -> None:
        """Queue parts. They are sent by :meth:`flush`."""
        self._parts += parts
        self.queued_bytes += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

    def clear(self) -> None:
        self._parts = []
        self.queued_bytes = 0

    def finish(self) -> int:
        """Pass all parts to the transport if they wait for the sender of files. The transport is closed next,
        and sends its bytes before that. Returns the number of passed bytes."""
        if self._files is None or not self._files.is_waiting:
            return 0
        self._files.stop()
        size = self.queued_bytes
        self._pass_run(deque(self._parts), size)
        self.clear()
        return size

    def close(self) -> None:
        """Drop all parts, after the end of the connection."""
        self.clear()
        if self._files is not None:
            self._files.close()
            # The sender refers to the connection.
            self._files = None

    def flush(self, *, share: TurnShare | None = None) -> int:
        """Pass the parts to the transport, or send them if they are ranges of files. Returns the number of
        bytes passed or sent, which is 0 while the connection is paused.

        With a ``share``, large responses are written up to the share's bytes. The caller then calls this
        method again in the next iteration of the event loop.
        """
        parts = self._parts
        if not parts or self.paused:
            return 0
        size = self.queued_bytes
        if size <= _JOIN_BYTES or size <= len(parts) * _TINY_BYTES:
            self._parts = []
            self._transport.write(b"".join(parts) if len(parts) > 1 else parts[0])
        else:
            size = self._flush_large(parts, share)
        self.queued_bytes -= size
        return size

    def _flush_large(self, parts: list[Buffer], share: TurnShare | None) -> int:
        self._parts = []
        queue = deque(parts)
        sent = 0
        run_bytes = _RUN_BYTES if share is None else share.claim(self.queued_bytes)
        while queue and not self.paused:
            size = None if self._files is None else self._files.send(queue, run_bytes)
            sent += self._pass_run(queue, run_bytes) if size is None else size
            if share is not None:
                break
        if queue:
            self._parts = [*queue, *self._parts]
        return sent

    def _pass_run(self, queue: "deque[Buffer]", run_bytes: int) -> int:
        """Pass parts to the transport. Returns their size in bytes."""
        run, size = _take_run(queue, run_bytes)
        if self._vectored:
            self._transport.writelines(run)
        else:
            for piece in _join_small(run):
                self._transport.write(piece)
        return size


def _take_run(queue: "deque[Buffer]", run_bytes: int) -> tuple[list[Buffer], int]:
    run: list[Buffer] = []
    size = 0
    while queue and size < run_bytes:
        part = queue.popleft()
        room = run_bytes - size
        if len(part) > room:
            view = memoryview(part)
            queue.appendleft(view[room:])
            part = view[:room]
        run.append(part)
        size += len(part)
    return run, size


def _join_small(parts: list[Buffer]) -> Iterator[Buffer]:
    """Join small adjacent parts. The bytes do not change."""
    small: list[Buffer] = []
    small_bytes = 0
    for part in parts:
        if len(part) + small_bytes > _JOIN_BYTES and small:
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(part) >= _JOIN_BYTES:
            yield part
        else:
            small.append(part)
            small_bytes += len(part)
    if small:
        yield b"".join(small)
