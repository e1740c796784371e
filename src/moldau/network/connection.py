"""One client connection. It receives requests, and sends responses in the order of the requests.

The path of a request: the receiver cuts its frame out of the stream, its header is parsed, and the dispatcher
is called. If a response is ready immediately and no earlier response is pending, it is sent at the end of the
receive callback. Any other response is queued. It is sent when it is ready and all earlier responses were
sent.

Reading stops (``_stalled``) while too many responses are pending, the server uses too much memory, the peer
does not read its responses, or a handler has muted the connection. Received bytes are kept.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from moldau.network.context import Answer, Buffers, ConnectionContext, LaterAnswer, RequestContext
from moldau.network.file_sending import FileSender
from moldau.network.frames import FrameReceiver
from moldau.network.limits import NetworkCounters, NetworkLimits
from moldau.network.memory import ReceiveMemory, RequestMemory
from moldau.network.wakeups import WakeupThreshold
from moldau.network.writing import TurnShare, WriteQueue
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.framing import read_request_header, response_frame
from moldau.runtime.errors import KafkaError

log = logging.getLogger("moldau.network")


_FLUSH_BYTES = 256 * 1024

_QUEUED_BYTES_MAX = 32 * 1024 * 1024
"""Maximum number of bytes queued for sending. If more bytes are queued, no more requests are read."""

_REQUESTS_A_TURN = 64
"""Maximum number of requests of one connection that are handled before other connections are served. This
limit is needed because one receive may contain thousands of small requests.
"""


class ConnectionOwner(Protocol):
    """The part of the server that a connection needs."""

    memory: ReceiveMemory
    limits: NetworkLimits
    counters: NetworkCounters
    budget: RequestMemory
    vectored: bool
    turn_share: TurnShare

    def dispatch(self, context: RequestContext, body: memoryview) -> Answer: ...

    def end_turn(self) -> None:
        """Finish the common work of requests that arrived together. If this raises an error, none of their
        responses may be sent."""
        ...

    def admit(self, connection: "ServerConnection", transport: asyncio.Transport) -> ConnectionContext | None:
        """Return the connection's context, or ``None`` when the connection is refused."""
        ...

    def forget(self, connection: "ServerConnection") -> None: ...


class _PendingResponse:
    """A pending response. Either it is not ready, or an earlier response is pending."""

    __slots__ = ("answer", "context", "ready", "size_bytes")

    def __init__(self, context: RequestContext, size_bytes: int) -> None:
        self.context = context
        self.size_bytes = size_bytes
        self.answer: Buffers | None = None
        self.ready = False


class ServerConnection(FrameReceiver):
    """The server's end of a client connection. The server makes such an object for each accepted
    connection."""

    context: ConnectionContext
    _transport: asyncio.Transport
    _writes: WriteQueue

    def __init__(self, owner: ConnectionOwner, listener_name: str, security_protocol: str) -> None:
        super().__init__(owner.memory, owner.limits.max_request_bytes)
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self._owner = owner
        self._limits = owner.limits
        self._counters = owner.counters
        self._budget = owner.budget
        self._dispatch: Callable[[RequestContext, memoryview], Answer] = owner.dispatch
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_PendingResponse] = deque()
        self._pending_bytes = 0
        self._flush_scheduled = False
        self._flush_goes_on = False
        self._requests_this_turn = 0
        self._draining = False
        self._muted: asyncio.TimerHandle | None = None
        self._holds = 0
        self._linger: asyncio.TimerHandle | None = None
        self._admitted = False
        self._lost = False
        self.last_active = self._loop.time()

    # The beginning and the end of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        context = self._owner.admit(self, self._transport)
        if context is None:
            self._finished = True
            self._transport.abort()
            return
        self._admitted = True
        self.context = context
        self._wakeups = WakeupThreshold.of(transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_high_water_bytes)
        files = FileSender.of(self._transport, self)
        self._writes = WriteQueue(self._transport, vectored=self._owner.vectored, files=files)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self._admitted:
            return
        self._release_everything()
        for timer in (self._muted, self._linger):
            if timer is not None:
                timer.cancel()
        self._writes.close()
        self._owner.forget(self)
        self.context.mark_closed()

    def eof_received(self) -> bool:
        if self._admitted:
            # close the transport, which still sends the bytes that it already has
            self._counters.bytes_out += self._writes.flush()
        return False

    @property
    def has_no_pending_responses(self) -> bool:
        """Whether every request has its response, and every response was passed to the transport."""
        return not self._pending and (self._lost or not self._admitted or self._writes.is_empty)

    @property
    def is_write_blocked(self) -> bool:
        """Whether the peer reads its responses so slowly that the connection has paused."""
        return self._admitted and self._writes.paused

    @property
    def is_closing(self) -> bool:
        return self._lost or self._linger is not None

    def close(self) -> None:
        """Close after the written data was sent. If this takes longer than the linger time, abort the
        connection.
        """
        if self._lost or self._linger is not None:
            return
        self._release_everything()
        if self._admitted:
            self._counters.bytes_out += self._writes.finish()
        self._linger = self._loop.call_later(self._limits.linger_ms / 1000, self._transport.abort)
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately, without sending pending responses."""
        self._transport.abort()

    def close_when_answered(self) -> None:
        """Dispatch no more requests. Close the connection after every pending response was sent."""
        if self._draining or self._lost:
            return
        self._draining = True
        self._drop_received()
        self._transport.pause_reading()
        self._schedule_flush()

    def mute(self, seconds: float) -> None:
        """Stop reading and dispatching for ``seconds``."""
        if self._lost or self._finished:
            return
        if self._muted is not None:
            self._muted.cancel()
        self._muted = self._loop.call_later(seconds, self._unmute)
        self._stall()

    def hold(self) -> None:
        """Stop reading and dispatching until :meth:`release`. Calls may be nested."""
        self._holds += 1
        if not self._lost and not self._finished:
            self._stall()

    def release(self) -> None:
        """End a :meth:`hold`. Does nothing when the connection is closed."""
        self._holds -= 1
        if not self._lost:
            self._resume_if_possible()

    def yield_turn(self) -> None:
        """Dispatch no more requests in this iteration of the event loop."""
        if not self._stalled and not self._lost and not self._finished:
            self._stall()
            self._loop.call_soon(self._resume_if_possible)

    def _unmute(self) -> None:
        self._muted = None
        self._resume_if_possible()

    def _release_everything(self) -> None:
        self._drop_received()
        self._budget.forget(self._resume_if_possible)
        owed = self._pending
        self._counters.in_flight_requests -= len(owed)
        for slot in owed:
            self._settle_bytes(slot.size_bytes)
        owed.clear()

    def _fail(self, reason: str, error: BaseException | None = None) -> None:
        """Close this connection, with one log line. Other connections are not affected."""
        if self._finished:
            return
        self._counters.connections_failed += 1
        context = self.context
        expected = error is None or isinstance(error, ProtocolError | KafkaError)
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "closing connection %s from %s: %s",
            context.connection_id,
            context.peer_host,
            reason,
            extra={
                "connection_id": context.connection_id,
                "peer_host": context.peer_host,
                "listener": context.listener_name,
                "reason": reason,
            },
            exc_info=None if expected else error,
        )
        self._finished = True
        if self._end_turn():
            self._writes.flush()
        self.close()

    # Incoming requests

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        self._counters.bytes_in += nbytes
        self._requests_this_turn = 0
        self._wait_for_budget()
        super().buffer_updated(nbytes)

    def _on_frame(self, frame: memoryview) -> None:
        self._counters.requests += 1
        self._requests_this_turn += 1
        if self._requests_this_turn == _REQUESTS_A_TURN:
            self.yield_turn()
        try:
            api_key, version, correlation_id, client_id, position = read_request_header(frame)
            context = RequestContext(
                api_key, version, correlation_id, client_id, self.context, self.last_active, len(frame)
            )
        except (ProtocolError, ValueError, IndexError) as error:
            self._fail(f"malformed request header of {len(frame)} bytes: {error}")
            return
        try:
            answer = self._dispatch(context, frame[position:])
        except Exception as error:
            self._fail(_describe(context, error), error)
            return
        if answer is None:
            return
        if isinstance(answer, list):
            if not self._pending:
                self._emit(context, answer)
            else:
                self._add_pending(context, len(frame)).answer = answer
                self._pending[-1].ready = True
            return
        slot = self._add_pending(context, len(frame))
        if answer.done():
            if self._set_result(slot, answer) and self._pending[0] is slot:
                self._schedule_flush()
        else:
            answer.add_done_callback(partial(self._on_answer, slot))

    def _on_bad_length(self, length: int) -> None:
        limit = self._limits.max_request_bytes
        what = "is negative" if length < 0 else f"exceeds socket.request.max.bytes={limit}"
        self._fail(f"a request length of {length} {what}")

    def _on_partial(self, size: int) -> None:
        self._budget.allocate(size)
        self._counters.in_flight_bytes += size

    def _on_partial_done(self, size: int) -> None:
        self._counters.in_flight_bytes -= size
        self._budget.release(size)

    def _after_receive(self) -> None:
        if not self._end_turn() or self._finished:
            return
        if not self._writes.is_empty or self._draining:
            self._flush()
        self._wait_for_budget()

    def _end_turn(self) -> bool:
        """Finish the common work of requests that arrived together. Returns whether their responses may be
        sent. If not, the connection is closed."""
        try:
            self._owner.end_turn()
        except Exception as error:
            self._writes.clear()
            self._fail(f"its requests could not be completed: {error}", error)
            return False
        return True

    # Sending answers.

    def _add_pending(self, context: RequestContext, size_bytes: int) -> _PendingResponse:
        slot = _PendingResponse(context, size_bytes)
        owed = self._pending
        owed.append(slot)
        self._pending_bytes += size_bytes
        counters = self._counters
        counters.in_flight_requests += 1
        counters.in_flight_bytes += size_bytes
        self._budget.allocate(size_bytes)
        limits = self._limits
        if (
            len(owed) >= limits.max_in_flight_requests_per_connection
            or self._pending_bytes >= limits.max_in_flight_bytes_per_connection
        ):
            self._stall()
        elif not self._budget.has_room():
            self._stall()
            self._budget.wait(self._resume_if_possible)
        return slot

    def _settle_bytes(self, size_bytes: int) -> None:
        self._pending_bytes -= size_bytes
        self._counters.in_flight_bytes -= size_bytes
        self._budget.release(size_bytes)

    def _on_answer(self, slot: _PendingResponse, future: LaterAnswer) -> None:
        if self._linger is not None or self._lost:
            if not future.cancelled():
                future.exception()  # The peer is gone, so no other code retrieves the exception.
            return
        if not self._set_result(slot, future):
            return
        owed = self._pending
        if len(owed) == 1 and not self._flush_scheduled:
            # No other response can be sent in the same write.
            self._flush_answers()
        elif owed and owed[0] is slot:
            self._schedule_flush()

    def _set_result(self, slot: _PendingResponse, future: LaterAnswer) -> bool:
        """Returns whether there is a response. If not, the connection is closed."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._fail(_describe(slot.context, error), error)
            return False
        slot.answer = future.result()
        slot.ready = True
        return True

    def _emit(self, context: RequestContext, body: Buffers) -> None:
        self._counters.responses += 1
        writes = self._writes
        writes.add(response_frame(context.correlation_id, context.api_key, context.api_version, body))
        if writes.queued_bytes >= _FLUSH_BYTES and self._end_turn():
            # Write before the other requests are handled, because one receive may contain thousands of
            # requests. If the transport pauses after this write, the next requests wait.
            self._counters.bytes_out += writes.flush(share=self._owner.turn_share)

    def _schedule_flush(self) -> None:
        # Responses that become ready in the same iteration of the event loop are sent in one write.
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_answers)

    def _flush_answers(self) -> None:
        self._flush_scheduled = False
        if self._lost or self._linger is not None:
            return
        owed = self._pending
        while owed and owed[0].ready:
            slot = owed.popleft()
            self._counters.in_flight_requests -= 1
            self._settle_bytes(slot.size_bytes)
            if slot.answer is not None:
                self._emit(slot.context, slot.answer)
        self.last_active = self._loop.time()
        self._flush()
        self._resume_if_possible()

    def _flush(self) -> None:
        writes = self._writes
        self._counters.bytes_out += writes.flush(share=self._owner.turn_share)
        if not writes.is_empty and not writes.paused and not self._flush_goes_on:
            self._flush_goes_on = True
            if writes.queued_bytes > _QUEUED_BYTES_MAX:
                self._stall()
            self._loop.call_soon(self._go_on_flushing)
        if self._draining and self.has_no_pending_responses:
            self.close()

    def _go_on_flushing(self) -> None:
        self._flush_goes_on = False
        if self._lost or self._linger is not None:
            return
        self._flush()
        self._resume_if_possible()

    # Back-pressure.

    def pause_writing(self) -> None:
        if self._admitted:
            self._writes.paused = True
            self._stall()

    def resume_writing(self) -> None:
        if self._admitted and not self._lost:
            self._writes.paused = False
            self.last_active = self._loop.time()
            self._flush()
            self._resume_if_possible()

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self._transport.pause_reading()

    def _wait_for_budget(self) -> None:
        # A connection that has received a part of a frame continues to read, because the memory of this frame
        # is freed only when the whole frame was received and handled.
        if self._partial is None and not self._budget.has_room():
            self._stall()
            self._budget.wait(self._resume_if_possible)

    def _may_proceed(self) -> bool:
        return (
            self._muted is None
            and not self._holds
            and not self._writes.paused
            and self._writes.queued_bytes <= _QUEUED_BYTES_MAX
            and len(self._pending) < self._limits.max_in_flight_requests_per_connection
            and self._pending_bytes < self._limits.max_in_flight_bytes_per_connection
        )

    def _resume_if_possible(self) -> None:
        if not self._stalled or self._finished or not self._may_proceed():
            return
        if self._partial is None and not self._budget.has_room():
            self._budget.wait(self._resume_if_possible)
            return
        self._stalled = False
        self._requests_this_turn = 0
        self._replay_stash()
        self._after_receive()
        # Resume reading, unless the bytes that were kept have stalled the connection again.
        if not self._is_stalled() and not self._finished:
            self._transport.resume_reading()

    def _is_stalled(self) -> bool:
        return self._stalled


def _describe(context: RequestContext, error: BaseException) -> str:
    return (
        f"request with api key {context.api_key}, version {context.api_version}, "
        f"correlation id {context.correlation_id} failed: {type(error).__name__}: {error}"
    )
