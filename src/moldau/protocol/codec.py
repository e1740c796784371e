"""Decodes and encodes any message by API key and version.

At the first use, modules of messages are imported and the code for a version is compiled.
"""

import functools
import importlib
from typing import Any, Protocol

from moldau.protocol.api import ApiKey
from moldau.protocol.compiler.decoding import decode, decode_leading
from moldau.protocol.compiler.encoding import Encoder, encoder
from moldau.protocol.costs import UNBOUNDED
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.messages.index import MODULES as KAFKA_MODULES
from moldau.protocol.own import MODULES as OWN_MODULES
from moldau.protocol.schema import Message, parse_versions
from moldau.runtime.buffers import Buffer

__all__ = [
    "ProtocolError",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "request_encoder",
    "response_class",
    "response_encoder",
]


class RequestDecoder(Protocol):
    """Decodes a request's body. ``left`` is the memory that the message may take (see ``costs``)."""

    def __call__(self, body: Buffer, left: int = UNBOUNDED, /) -> Any: ...


_classes: dict[int, tuple[type[Message], type[Message]]] = {}
_request_decoders: dict[tuple[int, int], RequestDecoder] = {}
_request_encoders: dict[tuple[int, int], Encoder] = {}
_response_encoders: dict[tuple[int, int], Encoder] = {}


def _load(api_key: int) -> tuple[type[Message], type[Message]]:
    found = _classes.get(api_key)
    if found is None:
        if api_key in KAFKA_MODULES:
            path = "moldau.protocol.messages." + KAFKA_MODULES[api_key][0]
        elif api_key in OWN_MODULES:
            path = OWN_MODULES[api_key][0]
        else:
            raise ProtocolError(f"API key {api_key} is not known")
        module = importlib.import_module(path, "moldau.protocol.own")
        found = _classes[api_key] = (module.REQUEST, module.RESPONSE)
    return found


def response_class(api_key: int) -> type[Message]:
    """The response's class. Raises ProtocolError for an unknown key."""
    return _load(api_key)[1]


def _known_version(cls: type[Message], version: int) -> type[Message]:
    if version not in parse_versions(cls.VERSIONS):
        raise ProtocolError(f"{cls.__name__} has no version {version} (it has {cls.VERSIONS})")
    return cls


def request_decoder(api_key: int, version: int) -> RequestDecoder:
    """Make the function that ``decode_request`` calls. Some callers store this function."""
    if api_key == ApiKey.FETCH:
        from moldau.protocol.fast_paths import fetch

        found: RequestDecoder = fetch.request_decoder(version)
    else:
        found = functools.partial(decode_leading, _known_version(_load(api_key)[0], version), version)
    _request_decoders[api_key, version] = found
    return found


def request_encoder(api_key: int, version: int) -> Encoder:
    """Make the function that ``encode_request`` calls. Some callers store this function."""
    found = encoder(_known_version(_load(api_key)[0], version), version)
    _request_encoders[api_key, version] = found
    return found


def response_encoder(api_key: int, version: int) -> Encoder:
    """Make the function that ``encode_response`` calls. Handlers store this function."""
    if api_key == ApiKey.FETCH:
        from moldau.protocol.fast_paths import fetch

        found = fetch.response_encoder(version)
    else:
        found = encoder(_known_version(_load(api_key)[1], version), version)
    _response_encoders[api_key, version] = found
    return found


def decode_request(api_key: int, version: int, body: Buffer) -> Any:
    """Decode a request's body, which comes after its header. Bytes after the message are ignored, as in
    Kafka.

    Records are views of ``body``. All other values are copied. Raises ProtocolError, and no other error, for
    an unknown key or version and for malformed bytes.
    """
    try:
        found = _request_decoders[api_key, version]
    except KeyError:
        found = request_decoder(api_key, version)
    return found(body)


def decode_response(api_key: int, version: int, body: Buffer) -> Any:
    """Decode a response's body. The rules are those of ``decode_request``, except that bytes after the
    message are an error.
    """
    return decode(_known_version(_load(api_key)[1], version), version, body)


def encode_request(api_key: int, version: int, message: Message) -> list[Buffer]:
    """Encode a request's body. Returns buffers that must be sent in order. Records are included unchanged."""
    try:
        found = _request_encoders[api_key, version]
    except KeyError:
        found = request_encoder(api_key, version)
    return found(message)


def encode_response(api_key: int, version: int, message: Message) -> list[Buffer]:
    """Encode a response's body. Returns buffers that must be sent in order. Records are included
    unchanged."""
    try:
        found = _response_encoders[api_key, version]
    except KeyError:
        found = response_encoder(api_key, version)
    return found(message)
