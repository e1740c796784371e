"""Frames and headers around message bodies.

A frame is an int32 length and then that many bytes, which are a header and a body. Request headers have
version 1, or version 2 with tagged fields. Response headers have version 0, or version 1 with tagged fields
(see ``api``). The length of the client id is an int16 in both versions of the request header. A server can
therefore read the client id before it knows the version.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from moldau.protocol.api import request_header_version, response_header_version
from moldau.protocol.compiler.primitives import skip_tagged_fields
from moldau.protocol.costs import UNBOUNDED
from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime.buffers import Buffer

_FIXED = Struct(">hhih")
_unpack_fixed = _FIXED.unpack_from
_unpack_int32 = Struct(">i").unpack_from
_pack_length_and_id = Struct(">ii").pack
_pack_length_id_and_tags = Struct(">iix").pack

_COPIED_BODY_BYTES = 512
_HEADER_TAGS_COST = 64 * 1024
"""Maximum memory cost of the tagged fields in a header (see ``costs``). Kafka defines no such fields."""


class RequestHeader(NamedTuple):
    """Header of a request. ``client_id`` is null when the client sent no id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of a request frame (without its length). Returns the header and the position where the
    body starts.

    The header of an unknown API, or of a version that is not served, is also read, so that the request can be
    answered. Tagged fields are skipped. Raises ProtocolError.
    """
    api_key, version, correlation_id, client_id, position = read_request_header(frame)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def read_request_header(frame: Buffer) -> tuple[int, int, int, str | None, int]:
    """Read a header like :func:`parse_request_header`. The fields and the position are in one tuple for
    speed, because this function is called for each request."""
    try:
        api_key, version, correlation_id, size = _unpack_fixed(frame)
        position = 10
        client_id = None
        if size >= 0:
            position += size
            if position > len(frame):
                raise ProtocolError("the client id runs past the end of the request")
            client_id = str(frame[10:position], "utf-8")
        if request_header_version(api_key, version) == 2:
            count = frame[position]
            position += 1
            if count:
                position, _ = skip_tagged_fields(frame, position, count, len(frame), _HEADER_TAGS_COST)
    except (StructError, IndexError, ValueError) as error:
        raise ProtocolError(f"a malformed request header: {error}") from error
    return api_key, version, correlation_id, client_id, position


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the header in the version that its API key and version require."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    size = -1 if header.client_id is None else len(client_id)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, size)
    flexible = request_header_version(header.api_key, header.api_version) == 2
    return fixed + client_id + (b"\0" if flexible else b"")


def request_frame(header: RequestHeader, body: list[Buffer]) -> list[Buffer]:
    """Return a whole request: length, header and the buffers of the body, which are included unchanged."""
    start = encode_request_header(header)
    length = len(start) + sum(map(len, body))
    return [length.to_bytes(4, "big") + start, *body]


def encode_response_header(correlation_id: int, api_key: int, version: int) -> bytes:
    """Return the header of a response to a request of this API key and version."""
    tags = b"\0" if response_header_version(api_key, version) else b""
    return correlation_id.to_bytes(4, "big", signed=True) + tags


def parse_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Read the header of a response frame (without its length). Returns (correlation id, position where
    the body starts).
    """
    try:
        (correlation_id,) = _unpack_int32(frame)
        position = 4
        if response_header_version(api_key, version):
            count = frame[position]
            position, _ = skip_tagged_fields(frame, position + 1, count, len(frame), UNBOUNDED)
            if position > len(frame):
                raise ProtocolError("a malformed response header")
    except (StructError, IndexError) as error:
        raise ProtocolError(f"a malformed response header: {error}") from error
    return correlation_id, position


def response_frame(correlation_id: int, api_key: int, version: int, body: list[Buffer]) -> list[Buffer]:
    """Return a whole response: length and header first, then the buffers of the body, which are included
    unchanged.

    A small body is copied after its header, because this costs less than sending another buffer.
    """
    if len(body) == 1 and len(body[0]) <= _COPIED_BODY_BYTES:
        only = body[0]
        if response_header_version(api_key, version):
            return [_pack_length_id_and_tags(len(only) + 5, correlation_id) + only]
        return [_pack_length_and_id(len(only) + 4, correlation_id) + only]
    length = sum(map(len, body))
    if response_header_version(api_key, version):
        return [_pack_length_id_and_tags(length + 5, correlation_id), *body]
    return [_pack_length_and_id(length + 4, correlation_id), *body]
