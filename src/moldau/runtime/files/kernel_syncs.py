"""Syncs of files by threads of the kernel, with the asynchronous I/O of Linux (``io_submit``).

A worker thread of this process would need the interpreter before and after its system call. The event loop
releases the interpreter at each system call, so the two threads would constantly exchange it. For a log that
syncs a thousand times a second, these exchanges cost more CPU time than everything else in the sync. Here,
the event loop submits the sync, and the kernel reports the end of the sync to a descriptor on which the event
loop waits.

Linux supports ``IOCB_CMD_FDSYNC`` for every file system since version 4.18. Container runtimes permit the
system calls, unlike those of io_uring. If the kernel refuses a sync, a worker thread makes it.
"""

import asyncio
import ctypes
import errno
import logging
import os
import platform
import struct
import sys
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from moldau.runtime.files.disk import DiskError, File
from moldau.runtime.files.local_file import LocalFile
from moldau.runtime.files.syncs import FileSyncs

_log = logging.getLogger(__name__)

IN_PROGRESS_MAX: Final = 128
"""Maximum number of syncs in progress. Workers make any further syncs."""

_SYSTEM_CALLS: Final = {
    # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}
_DATA_SYNC: Final = 3  # IOCB_CMD_FDSYNC
_REPORTS_TO_DESCRIPTOR: Final = 1  # IOCB_FLAG_RESFD
_REQUEST: Final = struct.Struct("<QIIHhIQQqQII")
"""``struct iocb`` on a little-endian machine: data, key, rw_flags, opcode, priority, descriptor, buffer,
size, offset, reserved, flags, descriptor for the report."""
_EVENT: Final = struct.Struct("<QQqq")
"""``struct io_event``: data of the request, address of the request, result, second result."""

_NEVER: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""Error numbers of a system that does not permit these system calls. Other errors may end, for example when
other processes release their queues (``fs.aio-max-nr``)."""

RequestNumber = int
"""The number of a request in its queue."""


class SyncQueue(Protocol):
    """Requests to the kernel to sync files."""

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when a request has ended."""
        ...

    def submit(self, descriptor: int, number: RequestNumber) -> int:
        """Request a sync of an open file. The file may be closed after the call. Returns 0, or the error
        number if the kernel does not accept the request."""
        ...

    def ended(self) -> list[tuple[RequestNumber, int]]:
        """The requests that have ended since the last call, each with its result: 0, or a negative error
        number."""
        ...

    def close(self) -> None:
        """Wait for all requests, and release the queue."""
        ...


class KernelQueue:
    """A context of Linux AIO. Raises ``OSError`` if the system does not support it."""

    def __init__(self, size: int = IN_PROGRESS_MAX) -> None:
        calls = _SYSTEM_CALLS.get(platform.machine()) if sys.platform == "linux" else None
        if calls is None or sys.byteorder != "little" or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._get_events, self._submit = calls
        # PyDLL keeps the interpreter during a call. These calls do not wait.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._events = ctypes.create_string_buffer(_EVENT.size * size)
        self._no_time = ctypes.create_string_buffer(16)  # a timespec of zeros
        self._size = ctypes.c_long(size)
        self._context = ctypes.c_ulong(0)
        if self._call(self._setup, self._size, ctypes.byref(self._context)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._call(self._destroy, self._context)
            raise
        # The number of queues of a machine is limited, so the queue of an owner that was not closed is also
        # released.
        self._release = weakref.finalize(self, _release, self._destroy, self._context, self._descriptor)
        self._release.atexit = False

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def submit(self, descriptor: int, number: RequestNumber) -> int:
        _REQUEST.pack_into(
            self._request,
            0,
            number,
            0,  # key
            0,  # rw_flags
            _DATA_SYNC,
            0,  # priority
            descriptor,
            0,  # buffer
            0,  # size
            0,  # offset
            0,  # reserved
            _REPORTS_TO_DESCRIPTOR,
            self._descriptor,
        )
        if self._call(self._submit, self._context, ctypes.c_long(1), self._requests) == 1:
            return 0
        return ctypes.get_errno() or errno.EIO

    def ended(self) -> list[tuple[RequestNumber, int]]:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return []
        count = self._call(
            self._get_events, self._context, ctypes.c_long(0), self._size, self._events, self._no_time
        )
        return [
            (number, result)
            for number, _, result, _ in _EVENT.iter_unpack(self._events.raw[: _EVENT.size * max(0, count)])
        ]

    def close(self) -> None:
        self._release()


def _release(destroy: int, context: ctypes.c_ulong, descriptor: int) -> None:
    # The call waits for the requests in progress, so CDLL releases the interpreter during it.
    ctypes.CDLL(None).syscall(ctypes.c_long(destroy), context)
    os.close(descriptor)


class KernelSyncs:
    """Syncs local files in the kernel. ``otherwise`` syncs the files that the kernel does not accept."""

    def __init__(self, otherwise: FileSyncs, new_queue: Callable[[], SyncQueue] = KernelQueue) -> None:
        self._otherwise = otherwise
        self._new_queue = new_queue
        self._is_unsupported = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: SyncQueue | None = None
        self._waiting: dict[RequestNumber, asyncio.Future[int]] = {}
        self._last_number = 0

    async def sync(self, file: File, then: Callable[[], None]) -> None:
        submitted = self._submit(file)
        if submitted is None:
            await self._otherwise.sync(file, then)
            return
        result = await submitted
        if result < 0:
            raise DiskError(-result, os.strerror(-result), file.path)
        then()

    def _submit(self, file: File) -> "asyncio.Future[int] | None":
        """Request the sync. Returns its future result, or ``None`` if the kernel cannot make the sync."""
        loop = asyncio.get_running_loop()
        queue = self._queue if loop is self._loop else self._open(loop)
        if queue is None or not isinstance(file, LocalFile) or len(self._waiting) >= IN_PROGRESS_MAX:
            return None
        self._last_number = number = self._last_number + 1
        if file.with_descriptor(lambda descriptor: queue.submit(descriptor, number)):
            return None  # a worker makes the sync, and reports the error if it fails, too
        future = self._waiting[number] = loop.create_future()
        return future

    def _open(self, loop: asyncio.AbstractEventLoop) -> SyncQueue | None:
        """Open a queue for an event loop. Returns ``None`` if the system does not support queues."""
        if self._is_unsupported:
            return None
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError("another running event loop uses these syncs")
        self._release()
        try:
            queue = self._new_queue()
        except OSError as error:
            self._is_unsupported = error.errno in _NEVER
            if self._is_unsupported:
                _log.info("worker threads sync files, because the kernel cannot: %s", error.strerror)
            return None
        loop.add_reader(queue.descriptor, self._on_ended)
        self._queue, self._loop = queue, loop
        return queue

    def _on_ended(self) -> None:
        if self._queue is None:
            return
        for number, result in self._queue.ended():
            future = self._waiting.pop(number)
            if not future.done():  # the task that waits may have been cancelled
                future.set_result(result)

    def close(self) -> None:
        """Wait for the syncs in progress. Their callers get no result, so call this only after the event loop
        has ended."""
        self._release()
        self._otherwise.close()

    def _release(self) -> None:
        queue, loop = self._queue, self._loop
        self._queue = self._loop = None
        self._waiting.clear()
        if queue is not None:
            if loop is not None and not loop.is_closed():
                loop.remove_reader(queue.descriptor)
            queue.close()
