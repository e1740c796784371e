"""Requests that a broker sends to the active controller for a client."""

from typing import Any

from moldau.cluster.controller.answers import error_response
from moldau.cluster.controller.channel import Caller, ControllerChannel, deadline_of
from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.schema import Message
from moldau.runtime.errors import KafkaError


async def forward(channel: ControllerChannel, context: RequestContext, request: Message) -> Any:
    """Return the controller's response to a client's request. If the controller cannot be asked or refuses
    the request, return a response with the error.

    The broker sends the client's principal and the deadline of the request, too.
    """
    try:
        return await channel.send(request, Caller.of(context), deadline_of(context, request))
    except KafkaError as error:
        return error_response(request, error.code, error.message)


def decided_by(handler: Handler, api: int) -> Handler:
    """Make the entry of an API in the handler table. The controller decides the API's requests. The entry is
    the same for every listener on which the API is served."""
    decided = DECIDED_APIS.get(api)
    return (
        handler
        if decided is None
        else Served(handler, parsed_bytes_max=decided.parsed_bytes_max, right=decided.right)
    )
