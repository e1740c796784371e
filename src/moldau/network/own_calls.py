"""Calls of Moldau's own APIs. The declaration of a call is used by its callers and by the broker that answers
it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from moldau.network.client.node_connection import NodeAddress, NodeConnection
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import Cut
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")
Fields = Mapping[str, Any]
"""Fields of a message, by name."""

DEADLINE_MAX_MS: Final = 300_000
"""Maximum duration of a call, even if the caller's time-out is longer."""


def _no_topics(request: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDeclaration(Generic[A, R]):
    """The encoding of a call's arguments in its request, and of its result in the response.

    Every request contains ``timeout_ms``, the time for which its caller waits for the response.
    """

    request: type[Message]
    response: type[Message]
    right: Right
    request_fields: Callable[[A, int], Fields]
    """Converts arguments to the fields of a request. The second argument is the version of the request."""
    arguments: Callable[[Any], A]
    """Reads the arguments from a request. Raises INVALID_REQUEST."""
    response_fields: Callable[[R, int], Fields]
    """Converts a result to the fields of a response. The second argument is the version of the response."""
    result: Callable[[Any], R]
    """Reads the result from a response."""
    version_min: int = 0
    """The oldest version that this side sends."""
    cuts: tuple[Cut, ...] = ()
    """The arrays by which a large request is divided into slices. The items of these arrays must be
    independent of each other. If no array is given, the request is never divided."""
    parsed_bytes_max: int | None = None
    """Maximum memory of a parsed request. ``None`` means that the common limit applies."""
    long_answers: tuple[tuple[str, ...], ...] = ()
    """Arrays of the response that may have many more items than the request. Each of them is a path of field
    names."""

    @property
    def api_key(self) -> int:
        key: int = self.request.API_KEY
        return key

    def request_of(self, arguments: A, version: int, **fields: Any) -> Message:
        """Makes the request. It has ``fields`` in addition to the fields of the arguments. Raises
        UNSUPPORTED_VERSION."""
        if version < self.version_min:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"the node has version {version} of {self.request.__name__}, not {self.version_min}",
            )
        return self.request(**fields, **self.request_fields(arguments, version))

    def read(self, response: Any) -> R:
        """Return the result in a response. If the whole call failed, raise its error."""
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, response.error_message)
        return self.result(response)

    async def answer_by(
        self, serve: Callable[[A], Awaitable[R]], request: Any, version: int, waited_ms: float
    ) -> Message:
        """Makes the response to a request that arrived ``waited_ms`` ago. The response may contain an error
        of the whole call.

        The operation begins before this coroutine is suspended for the first time. After REQUEST_TIMED_OUT
        the outcome of the operation is unknown, unless the time was over before the operation began.
        """
        left_ms = min(request.timeout_ms, DEADLINE_MAX_MS) - waited_ms
        try:
            if left_ms <= 0:
                raise KafkaError(ErrorCode.request_timed_out, "The time of the call was over when it came.")
            arguments = self.arguments(request)
            async with asyncio.timeout(left_ms / 1000):
                result = await serve(arguments)
        except TimeoutError:
            return self.refuse(KafkaError(ErrorCode.request_timed_out, "The call took too long."))
        except KafkaError as error:
            return self.refuse(error)
        return self.response(**self.response_fields(result, version))

    def refuse(self, error: KafkaError) -> Message:
        """Return the response to a call that failed as a whole."""
        return self.response(error_code=error.code, error_message=error.message)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCall(CallDeclaration[A, R], Generic[S, A, R]):
    """A call to one broker about the partitions that this broker leads. ``S`` is the type of the object that
    answers the call."""

    serve: Callable[[S, A], Awaitable[R]]
    """The operation that the broker performs for the call."""
    topics: Callable[[Any], Iterable[str]] = _no_topics
    """Returns the topics that a request names. A call that requires READ must define this function."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if the call requires READ on topics, and does not name the topics."""
        if self.right is Right.READ_TOPIC and self.topics is _no_topics:
            raise ValueError(f"{self.request.__name__} requires READ on topics: define its topics=")

    def ask(self, arguments: A, version: int, timeout_ms: int) -> Message:
        """Make the request. Raises UNSUPPORTED_VERSION."""
        return self.request_of(arguments, version, timeout_ms=timeout_ms)

    async def answer(self, service: S, request: Any, version: int, waited_ms: float) -> Message:
        """Make the response, as :meth:`answer_by` does."""

        def serve(arguments: A) -> Awaitable[R]:
            return self.serve(service, arguments)

        return await self.answer_by(serve, request, version, waited_ms)


class BrokerChannel:
    """Makes calls to one broker."""

    def __init__(self, rpc: RpcClient, host: str, port: int, timeout_ms: int) -> None:
        """``timeout_ms`` is the time for which a caller waits for an answer. It is sent to the broker."""
        self._node = NodeConnection(rpc, NodeAddress(host, port))
        self._timeout_ms = timeout_ms

    async def call(self, call: BrokerCall[Any, A, R], arguments: A) -> R:
        """Make one call, in the highest version that both sides support. Raises ``KafkaError``."""
        node, timeout_ms = self._node, self._timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                version = await node.version_of(call.api_key, timeout_ms)
                response = await node.ask(call.ask(arguments, version, timeout_ms), timeout_ms, version)
        except TimeoutError:
            node.disconnect()
            reason = f"no answer from {node.address.host}:{node.address.port} within {timeout_ms} ms"
            raise KafkaError(ErrorCode.request_timed_out, reason) from None
        return call.read(response)
