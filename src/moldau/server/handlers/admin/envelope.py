"""Envelope (KIP-590): a client's request that a broker forwards to the active controller."""

from collections.abc import Callable, Collection, Mapping
from inspect import isawaitable
from typing import Any

from moldau.cluster.controller.envelope import seal, unwrap
from moldau.network.context import ConnectionContext, RequestContext
from moldau.network.served import Handler
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.requests.dispatch import failure


class EnvelopeHandler:
    """Handles the request in an envelope as if the client had sent it directly."""

    def __init__(
        self,
        handlers: Callable[[], Mapping[int, Handler]],
        forwarded: Collection[int],
        is_active: Callable[[], bool],
    ) -> None:
        """``forwarded`` contains the APIs that are accepted in an envelope. Every other API is refused."""
        self._is_active = is_active
        self._handlers = handlers
        self._forwarded = forwarded

    async def handle(self, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
        """Answer an envelope. The response contains the response to the request in the envelope."""
        try:
            header, inner, caller = unwrap(request)
            handler = self._handlers().get(header.api_key)
            if handler is None or header.api_key not in self._forwarded:
                raise KafkaError(ErrorCode.invalid_request, f"API key {header.api_key} is not forwarded")
            if not self._is_active():
                # The envelope itself gets this error. It shows the sending broker that the request in the
                # envelope was not started. The broker then sends the envelope to the next leader.
                raise KafkaError(ErrorCode.not_controller, "this node is not the active controller")
        except KafkaError as error:
            return EnvelopeResponse(error_code=error.code)
        connection = ConnectionContext(
            context.connection.connection_id,
            context.listener_name,
            context.connection.security_protocol,
            caller.host,
            principal=caller.principal,
        )
        inner_context = RequestContext(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection,
            context.received_at,
            context.size_bytes,
        )
        try:
            outcome: Any = handler(inner_context, inner)
            response = await outcome if isawaitable(outcome) else outcome
        except KafkaError as error:
            response = failure(inner_context, error)
        return seal(header, response)
