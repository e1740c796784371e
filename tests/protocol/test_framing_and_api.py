"""Headers compared with kio's headers, frames, and the table of APIs."""

import dataclasses
import importlib
import io
import pkgutil
import sys
import types
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from moldau.protocol import api, codec, framing, own
from moldau.protocol.api import ADVERTISED, SUPPORTED, ApiKey, Scope, VersionRange
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.generate import kio_classes
from moldau.protocol.messages.index import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode
from request_classes import request_class


def test_the_table_agrees_with_kio() -> None:
    assert {int(key): key.name.lower() for key in ApiKey} == dict(api_key_map)
    assert {key: row[0] for key, row in MODULES.items()} == dict(api_key_map)
    for key, versions in SUPPORTED.items():
        for kind in ("request", "response"):
            twins = kio_classes(api_key_map[key], kind)
            assert versions.min in twins
            assert versions.max in twins
    for key in ApiKey:
        for kind, header in (
            ("request", api.request_header_version),
            ("response", api.response_header_version),
        ):
            for version, twin in kio_classes(api_key_map[key], kind).items():
                assert int(twin.__header_schema__.__version__) == header(key, version), (key, version, kind)


def test_produce_is_advertised_from_zero_but_served_from_three() -> None:
    assert ADVERTISED[ApiKey.PRODUCE] == VersionRange(0, 13)
    assert not api.supports(0, 2)
    assert api.supports(0, 3)
    assert not api.supports(4, 0)
    assert not api.supports(22, 6)


def test_apis_belong_to_listeners() -> None:
    assert Scope.CONTROLLER in api.scopes(ApiKey.VOTE)
    assert Scope.BROKER not in api.scopes(ApiKey.VOTE)
    assert Scope.CONTROLLER not in api.scopes(ApiKey.PRODUCE)
    assert Scope.CONTROLLER in api.scopes(ApiKey.FETCH)
    assert api.scopes(11_640) is Scope.INTERNAL


@given(
    api_key=st.sampled_from(list(ApiKey)),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(max_size=20),
    data=st.data(),
)
@settings(database=None)
def test_request_headers_are_those_of_kio(
    api_key: ApiKey, correlation_id: int, client_id: str | None, data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(sorted(kio_classes(api_key_map[api_key], "request"))))
    header_class = kio_classes(api_key_map[api_key], "request")[version].__header_schema__
    theirs = header_class(
        request_api_key=i16(api_key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    with io.BytesIO() as buffer:
        entity_writer(header_class)(buffer, theirs)
        written = buffer.getvalue()
    header = framing.RequestHeader(api_key, version, correlation_id, client_id)
    assert framing.encode_request_header(header) == written
    assert framing.parse_request_header(memoryview(written + b"body")) == (header, len(written))
    for end in range(len(written)):
        with pytest.raises(ProtocolError):
            framing.parse_request_header(written[:end])


@given(api_key=st.sampled_from(list(ApiKey)), data=st.data())
@settings(database=None)
def test_response_headers_are_those_of_kio(api_key: ApiKey, data: st.DataObject) -> None:
    twins = kio_classes(api_key_map[api_key], "response")
    version = data.draw(st.sampled_from(sorted(twins)))
    start = framing.encode_response_header(-7, api_key, version)
    header, size = entity_reader(twins[version].__header_schema__)(start, 0)
    assert (header.correlation_id, size) == (-7, len(start))
    assert framing.parse_response_header(start + b"x", api_key, version) == (-7, len(start))
    body: list[bytes | bytearray | memoryview] = [b"abc", memoryview(b"defg")]
    frame = framing.response_frame(-7, api_key, version, body)
    assert b"".join(frame) == (len(start) + 7).to_bytes(4, "big") + start + b"abcdefg"
    assert frame[-1] is body[-1]
    with pytest.raises(ProtocolError):
        framing.parse_response_header(start[:-1], api_key, version)


@given(st.binary(max_size=40))
@settings(database=None)
def test_a_random_header_is_read_or_refused(frame: bytes) -> None:
    try:
        _, position = framing.parse_request_header(frame)
    except ProtocolError:
        return
    assert position <= len(frame)


def test_tagged_fields_of_a_header_are_stepped_over() -> None:
    frame = b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff" + b"\x02\x00\x01a\x05\x02bc" + b"body"
    header, position = framing.parse_request_header(frame)
    assert header == framing.RequestHeader(18, 3, 1, None)
    assert frame[position:] == b"body"


def test_a_request_frame_passes_records_through() -> None:
    header = framing.RequestHeader(0, 9, 5, "c")
    records = memoryview(b"r" * 10)
    frame = framing.request_frame(header, [b"start", records])
    assert frame[-1] is records
    assert int.from_bytes(frame[0][:4], "big") == sum(map(len, frame)) - 4


@message
class PingRequest(Message):
    API_KEY = 11_999
    VERSIONS = "0-1"
    FLEXIBLE = "1+"
    names: Sequence[str] = wire(["string"], default=())
    depth: int = wire("int8", "1+", default=3)


@message
class PingResponse(Message):
    API_KEY = 11_999
    VERSIONS = "0-1"
    FLEXIBLE = "1+"
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)


def test_an_api_of_our_own_needs_a_declaration_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("ping_messages.v1")
    module.REQUEST, module.RESPONSE = PingRequest, PingResponse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ping_messages.v1", module)
    monkeypatch.setattr(codec, "_classes", dict(codec._classes))
    assert api.request_header_version(11_999, 1) == 1
    own.register(11_999, "ping_messages.v1", "0-1", "1+")
    try:
        assert api.supports(11_999, 1)
        assert not api.supports(11_999, 2)
        assert api.request_header_version(11_999, 0) == 1
        assert api.request_header_version(11_999, 1) == 2
        request = PingRequest(names=["a", "b"])
        for version, size in ((0, 10), (1, 7)):
            body = b"".join(codec.encode_request(11_999, version, request))
            assert len(body) == size
            assert codec.decode_request(11_999, version, body) == request
        answer = PingResponse(error_code=ErrorCode.not_controller)
        assert codec.decode_response(11_999, 1, b"".join(codec.encode_response(11_999, 1, answer))) == answer
        with pytest.raises(ValueError, match="taken"):
            own.register(11_999, "other", "0")
    finally:
        del own.MODULES[11_999]


def test_own_rows_agree_with_their_classes() -> None:
    for key, (_, versions, flexible) in own.MODULES.items():
        assert key >= api.OWN_API_KEY_MIN
        for cls in (request_class(key), codec.response_class(key)):
            assert (key, versions, flexible) == (cls.API_KEY, cls.VERSIONS, cls.FLEXIBLE), (
                f"the row of API {key} in MODULES (protocol/own) differs from {cls.__name__}"
            )


@pytest.mark.parametrize("key", sorted(set(own.MODULES) - {DescribeOwnApisRequest.API_KEY}))
def test_messages_of_own_calls_have_a_deadline_and_an_error(key: int) -> None:
    """Every call needs the fields ``timeout_ms``, ``error_code`` and ``error_message``
    (``network/own_calls.py``)."""
    request, response = request_class(key), codec.response_class(key)
    assert "timeout_ms" in fields_of(request), f"{request.__name__} needs timeout_ms"
    assert {"error_code", "error_message"} <= fields_of(response), f"{response.__name__} needs the error"


def fields_of(cls: type[Message]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def test_every_module_of_own_messages_has_a_row() -> None:
    rows = {importlib.import_module(path, own.__name__) for path, _, _ in own.MODULES.values()}
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(own.__path__, f"{own.__name__}.")
        if not each.ispkg
    ]
    missing = [each.__name__ for each in modules if hasattr(each, "REQUEST") and each not in rows]
    assert not missing, f"add rows to MODULES (protocol/own) for {missing}"


def test_unknown_keys_and_versions_are_protocol_errors() -> None:
    for key, version in ((9_999, 0), (0, 2), (0, 14), (3, -1), (1, 3)):
        with pytest.raises(ProtocolError):
            codec.decode_request(key, version, b"")
        with pytest.raises(ProtocolError):
            codec.decode_response(key, version, b"")
