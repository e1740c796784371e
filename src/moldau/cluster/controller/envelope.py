"""The Envelope (KIP-590): a client's request that a broker forwards to the active controller.

It contains the client's request with its header, and the client's principal and address.
"""

import ipaddress
from dataclasses import replace
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from moldau.cluster.controller.channel import Caller
from moldau.network.context import Principal
from moldau.protocol.codec import decode_request, decode_response, encode_request, encode_response
from moldau.protocol.compiler.decoding import decode
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.framing import (
    RequestHeader,
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
)
from moldau.protocol.messages.default_principal_data import DefaultPrincipalData
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

PRINCIPAL_VERSION: Final = 0
NO_ADDRESS: Final = bytes(4)
_VERSION: Final = Struct(">h")
_CORRELATION_ID: Final = 0


class EnvelopeRefusedError(KafkaError):
    """The receiver of an envelope is not the active controller. It has not started to process the request in
    the envelope."""


class Forwarded(NamedTuple):
    """A request that was in an envelope."""

    header: RequestHeader
    request: Any
    caller: Caller


def wrap(request: Message, version: int, caller: Caller, left_ms: int) -> EnvelopeRequest:
    """Put a request into an envelope. ``left_ms`` is the remaining time, in ms, of the client's request, if
    the request has a time-out."""
    if getattr(request, "timeout_ms", 0) > 0:
        body: Message = replace(request, timeout_ms=left_ms)
    else:
        body = request
    header = RequestHeader(request.API_KEY, version, _CORRELATION_ID, caller.client_id)
    content = encode_request_header(header) + b"".join(encode_request(request.API_KEY, version, body))
    principal = DefaultPrincipalData(type_=caller.principal.kind, name=caller.principal.name)
    encoded = b"".join(encoder(DefaultPrincipalData, PRINCIPAL_VERSION)(principal))
    return EnvelopeRequest(
        request_data=content,
        request_principal=_VERSION.pack(PRINCIPAL_VERSION) + encoded,
        client_host_address=_packed(caller.host),
    )


def unwrap(envelope: EnvelopeRequest) -> Forwarded:
    """Extract the request. For a bad envelope, raises ``KafkaError`` with the error codes that Kafka uses."""
    content, principal_data = bytes(envelope.request_data), bytes(envelope.request_principal or b"")
    try:
        (version,) = _VERSION.unpack_from(principal_data)
        if version != PRINCIPAL_VERSION:
            raise ProtocolError(f"version {version}")
        principal = decode(DefaultPrincipalData, version, principal_data[_VERSION.size :])
    except (ProtocolError, StructError) as error:
        raise KafkaError(
            ErrorCode.principal_deserialization_failure, f"the forwarded principal cannot be read: {error}"
        ) from error
    try:
        address = ipaddress.ip_address(bytes(envelope.client_host_address))
        header, position = parse_request_header(content)
        request = decode_request(header.api_key, header.api_version, content[position:])
    except (ProtocolError, ValueError) as error:
        raise KafkaError(
            ErrorCode.invalid_request, f"the forwarded request cannot be read: {error}"
        ) from error
    host = "" if address.packed == NO_ADDRESS else str(address)
    return Forwarded(
        header, request, Caller(Principal(principal.type_, principal.name), header.client_id, host)
    )


def seal(header: RequestHeader, response: Message) -> EnvelopeResponse:
    """Put the response to a forwarded request into the response to its envelope."""
    start = encode_response_header(header.correlation_id, header.api_key, header.api_version)
    body = b"".join(encode_response(header.api_key, header.api_version, response))
    return EnvelopeResponse(response_data=start + body)


def open_response(envelope: EnvelopeResponse, api_key: int, version: int) -> Any:
    """The response in an envelope.

    Raises ``EnvelopeRefusedError`` when the node is not the active controller. Raises ``KafkaError`` when the
    envelope was refused for another reason.
    """
    if envelope.error_code is ErrorCode.not_controller:
        raise EnvelopeRefusedError(envelope.error_code, "the node is not the active controller")
    if envelope.error_code is not ErrorCode.none:
        raise KafkaError(envelope.error_code, "the controller refuses the forwarded request")
    content = bytes(envelope.response_data or b"")
    try:
        _, position = parse_response_header(content, api_key, version)
        return decode_response(api_key, version, content[position:])
    except ProtocolError as error:
        raise KafkaError(
            ErrorCode.unknown_server_error, f"the controller's answer is malformed: {error}"
        ) from error


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return NO_ADDRESS
