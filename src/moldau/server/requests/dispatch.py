"""Passes a request's bytes to its handler, and passes the handler's response back. The steps are decode,
dispatch, encode and count.

A handler gets the request's context and its decoded message. It returns the response message, an awaitable of
this message, or ``None`` when the protocol has no response. The call is synchronous, because record bytes in
the message are views of the receive buffer. They are valid until the handler returns or first awaits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import CoroutineType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from moldau.network.context import Answer, Buffers, RequestContext
from moldau.network.served import Handler, HandlerResult, HandlerTable, Served, served
from moldau.protocol.api import SUPPORTED, ApiKey, Scope, supports
from moldau.protocol.codec import (
    RequestDecoder,
    encode_response,
    request_decoder,
    response_class,
    response_encoder,
)
from moldau.protocol.decoding_errors import ParsedSizeError, ProtocolError
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.schema import Message, Wire, parse_versions
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.runtime.workers import InlineWorkers, Workers
from moldau.server.requests.large_requests import INLINE_PARSED_BYTES, LargeRequests, parsed_bytes_max
from moldau.server.requests.slices import has_many_rows, is_costly, is_large
from moldau.server.requests.throttles import Hold, Throttles, rest_ms, with_throttle_time

DirectHandler: TypeAlias = Callable[[RequestContext, memoryview], Answer]
"""A direct handler. It makes the response's body from a request's body, for the usual shape of a frequent
request.

``None`` means that the request has another shape. In this case the direct handler has done nothing, and the
API's general handler processes the request.
"""
DirectTable: TypeAlias = Mapping[int, Callable[[int], DirectHandler | None]]
"""For each API key, a function that returns the direct handler of a version of the API. It returns ``None``
if the version has no direct handler."""

MANY_ROWS_BYTES: Final = 2048
"""A request that is longer than this number of bytes is treated as a request with many entries. After such a
request, the next request of the same connection is handled in a later iteration of the event loop. This does
not apply to APIs whose requests are usually large."""

logger = logging.getLogger(__name__)


class RequestObserver(Protocol):
    """Counts requests. It is called very often, so it must be fast."""

    def requests_handled(self, api_key: int, count: int, seconds: float, request_bytes: int) -> None:
        """Count ``count`` answered requests of an API. Each of them took ``seconds``. Together they had
        ``request_bytes`` bytes."""
        ...


class RequestTurn(Protocol):
    """Combines the work of direct handlers. It collects the work for the requests of one connection that
    arrive in the same iteration of the event loop (see ``replication/appending/append_turn.py``)."""

    def settle(self) -> None: ...

    def end(self) -> None: ...


class _Tally:
    """Counts the requests of an API that direct handlers answered in this turn. These counts are reported to
    the observer at the end of the turn."""

    __slots__ = ("count", "received_at", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.received_at = 0.0


@dataclass(frozen=True, slots=True)
class DirectHandlers:
    """The direct handlers of a listener, and the object that combines their work in an iteration of the event
    loop. :meth:`Dispatcher.end_turn` completes this work.
    """

    table: DirectTable = field(default_factory=dict)
    turn: RequestTurn | None = None


class _Route(NamedTuple):
    decode: RequestDecoder
    api: Served
    handler: Handler
    encode: Callable[[Any], Buffers]
    direct: DirectHandler | None
    tally: _Tally
    hold: Hold | None
    is_costly: bool


class Dispatcher:
    """The dispatcher of a kind of listener. It does not serve APIs that are not in its table."""

    def __init__(
        self,
        handlers: HandlerTable,
        scope: Scope,
        observer: RequestObserver | None = None,
        direct: DirectHandlers | None = None,
        throttles: Throttles | None = None,
        workers: Workers | None = None,
        unexpected: UnexpectedErrors | None = None,
    ) -> None:
        """``workers`` decode large requests and encode the responses to them.

        ``unexpected`` receives exceptions of handlers that are not Kafka errors.
        """
        direct = direct or DirectHandlers()
        self._unexpected = unexpected
        self._handlers = handlers
        self._throttles = throttles or Throttles()
        self._direct = direct.table
        self._turn = direct.turn
        self._turn_is_open = False
        self._tallies: dict[int, _Tally] = {key: _Tally() for key in direct.table}
        self._scope = scope
        self._observer = observer
        self._routes: dict[int, _Route] = {}
        self._large = LargeRequests(workers or InlineWorkers())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop_time: Callable[[], float] | None = None

    def __call__(self, context: RequestContext, body: memoryview) -> Answer:
        route = self._routes.get(context.api_key << 16 | context.api_version) or self._route(context)
        if route is None:
            return self._unsupported(context)
        decode, api, handler, encode, direct, tally, hold, is_costly = route
        if direct is not None:
            self._turn_is_open = True
            answer = direct(context, body)
            if isinstance(answer, list):
                tally.count += 1
                tally.size_bytes += context.size_bytes
                tally.received_at = context.received_at
                return answer
            if answer is not None:
                answer.add_done_callback(lambda _: self._observe(context))
                return answer
        if self._turn_is_open and self._turn is not None:
            self._turn.settle()
        try:
            request = decode(body, INLINE_PARSED_BYTES)
        except ParsedSizeError as error:
            if INLINE_PARSED_BYTES + error.excess_bytes > parsed_bytes_max(api, len(body)):
                raise
            return self._answer_large(context, route, bytes(body))
        if is_costly and is_large(api.cuts, request):
            return self._answer_large(context, route, request)
        if len(body) > MANY_ROWS_BYTES and not api.is_usually_large:
            control = context.connection.control
            if control is not None:
                control.yield_turn()
        try:
            outcome = handler(context, request)
        except Exception as error:
            outcome = self._failure(context, error)
        is_now = outcome is None or isinstance(outcome, Message)
        until_s = 0.0 if hold is None else hold(context, not is_now)
        if isinstance(outcome, Message):
            self._observe(context)
            return self._encoded(context, encode, _throttled(outcome, until_s))
        if outcome is None:
            self._observe(context)
            return None
        return self._later(context, route, outcome, until_s)

    def _route(self, context: RequestContext) -> _Route | None:
        handler = self._handlers.get(context.api_key)
        if handler is None:
            raise ProtocolError(
                f"API key {context.api_key} is not served on listener {context.listener_name}"
            )
        if not supports(context.api_key, context.api_version):
            return None
        key, version = context.api_key, context.api_version
        direct_of = self._direct.get(key)
        direct = None if direct_of is None else direct_of(version)
        tally = self._tallies.get(key) or _Tally()
        decode, encode = request_decoder(key, version), response_encoder(key, version)
        api, hold = served(handler), self._throttles.of(key)
        route = _Route(decode, api, api.handle, encode, direct, tally, hold, is_costly(api.cuts))
        self._routes[key << 16 | version] = route
        return route

    def _unsupported(self, context: RequestContext) -> Buffers:
        """Answer a request of an unsupported version with UNSUPPORTED_VERSION. The response has the supported
        version that is nearest to the requested version. For ApiVersions it is always version 0, and lists
        the supported versions of ApiVersions, so that the client can try again (KIP-511)."""
        if context.api_key == ApiKey.API_VERSIONS:
            own = SUPPORTED[ApiKey.API_VERSIONS]
            rows = [ApiVersion(api_key=context.api_key, min_version=own.min, max_version=own.max)]
            body = ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=rows)
            return encode_response(ApiKey.API_VERSIONS, 0, body)
        cls = response_class(context.api_key)
        versions = parse_versions(cls.VERSIONS)
        nearest = min(max(context.api_version, versions.min), versions.max)
        answer = refusal(cls, nearest, ErrorCode.unsupported_version)
        if answer is None:
            raise ProtocolError(
                f"{cls.__name__.removesuffix('Response')} version {context.api_version} is not supported "
                f"(versions {cls.VERSIONS} are) and its response has no field for an error"
            )
        return encode_response(context.api_key, nearest, answer)

    def _answer_large(
        self, context: RequestContext, route: _Route, request: Message | bytes
    ) -> "asyncio.Task[Buffers | None]":
        """Answer a large request in a task. The connection is not read until the request is answered, because
        the requests of a connection must take effect in order."""

        held_until_s: list[float] = []
        loop = asyncio.get_running_loop()

        def handle(context: RequestContext, request: Any) -> HandlerResult:
            if self._turn_is_open and self._turn is not None:
                self._turn.settle()
            outcome = route.handler(context, request)
            # The throttles are called only once for the request, even if it is handled in slices.
            if route.hold is not None and not held_until_s:
                held_until_s.append(route.hold(context, isinstance(outcome, Awaitable)))
            return outcome

        api = replace(route.api, handle=handle)

        def finish(message: Message) -> Message:
            """Set the throttle time of a message. This function runs on a worker thread."""
            until_s = held_until_s[0] if held_until_s else 0.0
            return with_throttle_time(message, rest_ms(until_s, loop.time()))

        async def answer() -> Buffers | None:
            try:
                return await self._large.answer(context, request, route.decode, api, finish)
            except ProtocolError:
                raise
            except Exception as error:
                return route.encode(self._failure(context, error))

        control = context.connection.control
        if control is not None:
            control.hold()
        task = loop.create_task(answer())
        self._tasks.add(task)

        def done(_: "asyncio.Task[Buffers | None]") -> None:
            self._tasks.discard(task)
            self._observe(context)
            if control is not None:
                control.release()

        task.add_done_callback(done)
        return task

    def _later(
        self,
        context: RequestContext,
        route: _Route,
        outcome: Awaitable[Message | None],
        until_s: float,
    ) -> "asyncio.Future[Buffers | None]":
        waiting: asyncio.Future[Message | None]
        if isinstance(outcome, asyncio.Future):
            waiting = outcome
        else:
            work = outcome if isinstance(outcome, CoroutineType) else _as_coroutine(outcome)
            waiting = task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer: asyncio.Future[Buffers | None] = waiting.get_loop().create_future()
        waiting.add_done_callback(partial(self._finish, context, route, answer, until_s))
        return answer

    def _finish(
        self,
        context: RequestContext,
        route: _Route,
        answer: "asyncio.Future[Buffers | None]",
        until_s: float,
        done: "asyncio.Future[Message | None]",
    ) -> None:
        if answer.done():
            return
        if done.cancelled():
            answer.cancel()
            return
        error = done.exception()
        try:
            message = done.result() if error is None else self._failure(context, error)
            if message is not None and has_many_rows(route.api.long_answers, message):
                task = asyncio.get_running_loop().create_task(
                    self._large.encode(partial(route.encode, _throttled(message, until_s)), answer)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _: self._observe(context))
                return
            answer.set_result(
                None
                if message is None
                else self._encoded(context, route.encode, _throttled(message, until_s))
            )
        except Exception as refused:
            answer.set_exception(refused)
        self._observe(context)

    def _encoded(
        self, context: RequestContext, encode: Callable[[Any], Buffers], message: Message
    ) -> Buffers:
        """Encode a response. If a response cannot be encoded, the broker has a defect, and an error is sent
        instead."""
        try:
            return encode(message)
        except Exception as error:
            return encode(self._failure(context, error))

    def _failure(self, context: RequestContext, error: BaseException) -> Message:
        if not isinstance(error, KafkaError):
            if self._unexpected is None:
                logger.error("request failed", exc_info=error, extra={"request": repr(context)})
            else:
                self._unexpected.report(f"a request with API key {context.api_key}", error)
        return failure(context, error)

    def end_turn(self) -> None:
        """Complete the shared work of requests that arrived together, after all of them were dispatched.

        If this method raises an exception, the caller must not send any response to these requests.
        """
        if not self._turn_is_open:
            return
        self._turn_is_open = False
        for api_key, tally in self._tallies.items():
            if tally.count:
                self._count(api_key, tally.count, tally.received_at, tally.size_bytes)
                tally.count = tally.size_bytes = 0
        if self._turn is not None:
            self._turn.end()

    def _observe(self, context: RequestContext) -> None:
        self._count(context.api_key, 1, context.received_at, context.size_bytes)

    def _count(self, api_key: int, count: int, received_at: float, size_bytes: int) -> None:
        if self._observer is not None:
            # The running event loop is cached, because ``get_running_loop`` makes a system call in Python
            # 3.11.
            loop_time = self._loop_time
            if loop_time is None:
                loop_time = self._loop_time = asyncio.get_running_loop().time
            self._observer.requests_handled(api_key, count, loop_time() - received_at, size_bytes)

    def served(self) -> Iterator[int]:
        """The API keys that this listener answers."""
        return iter(sorted(self._handlers))

    async def close(self) -> None:
        """End the requests that are still waiting."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _throttled(answer: Message, until_s: float) -> Message:
    """Set the sender's remaining throttle time in the response, and return the response."""
    if not until_s:
        return answer
    return with_throttle_time(answer, rest_ms(until_s, asyncio.get_running_loop().time()))


async def _as_coroutine(outcome: Awaitable[Message | None]) -> Message | None:
    return await outcome


def failure(context: RequestContext, error: BaseException) -> Message:
    """Return the response to a request whose handler has raised ``error``. The error code is in the field at
    the top level of the response. If the response has no such field, ``error`` is raised again, after which
    the connection is closed.
    """
    cls = response_class(context.api_key)
    if isinstance(error, KafkaError):
        code, sentence = error.code, error.message
    else:
        code, sentence = ErrorCode.unknown_server_error, None
    fields = cls.__dataclass_fields__
    if "error_code" not in fields:
        raise error
    values: dict[str, Any] = {"error_code": code}
    if "error_message" in fields and sentence is not None:
        values["error_message"] = sentence
    return cls(**values)


def refusal(cls: type[Message], version: int, code: ErrorCode) -> Message | None:
    """Make a message with the error ``code``. In this version of the message, the field for errors must be at
    the top level or in a single entry.

    The result is ``None`` when there is no such field, because a response without the code would look like a
    success without results.
    """
    found: Message | None = None
    for name, declared in cls.__dataclass_fields__.items():
        spec: Wire = declared.metadata["wire"]
        if version not in parse_versions(spec.versions):
            continue
        if name == "error_code":
            return cls(error_code=code)  # type: ignore[call-arg]
        if found is None and spec.array and not isinstance(spec.kind, str):
            row = refusal(spec.kind, version, code)
            found = cls(**{name: [row]}) if row is not None else None
    return found


def routes(*families: HandlerTable) -> dict[int, Handler]:
    """Join the tables of several handler families. Each API may occur only once."""
    table: dict[int, Handler] = {}
    for family in families:
        for api_key, handler in family.items():
            if api_key in table:
                raise ValueError(f"{ApiKey(api_key).name} has two handlers")
            table[api_key] = handler
    return table
