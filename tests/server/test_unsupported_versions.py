"""An unsupported version is refused explicitly, or not answered. It is never answered with success."""

import pytest

from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import SUPPORTED, ApiKey, Scope
from moldau.protocol.codec import decode_response, response_class
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.schema import parse_versions
from moldau.runtime.errors import ErrorCode
from moldau.server.requests.dispatch import Dispatcher

REFUSED = repr(ErrorCode.unsupported_version)


def handler(context, request):
    raise AssertionError("a version that is not supported reached its handler")


@pytest.mark.parametrize("api_key", sorted(SUPPORTED))
def test_answer_to_an_unsupported_version_is_never_an_empty_success(api_key):
    low, high = SUPPORTED[api_key]
    dispatch = Dispatcher({api_key: handler}, Scope.BROKER)
    for version in (-32768, -1, low - 1, high + 1, high + 2, 99, 32767):
        context = RequestContext(api_key, version, 1, "test", ConnectionContext("1", "PLAINTEXT"), 0.0, 0)
        try:
            body = b"".join(dispatch(context, memoryview(b"\x7f" * 40)))
        except ProtocolError:
            continue
        versions = parse_versions(response_class(api_key).VERSIONS)
        nearest = 0 if api_key == ApiKey.API_VERSIONS else min(max(version, versions.min), versions.max)
        assert REFUSED in repr(decode_response(api_key, nearest, memoryview(body)))


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.LIST_OFFSETS, ApiKey.CREATE_TOPICS])
def test_rows_have_the_error_if_the_response_has_no_top_level_error(api_key):
    dispatch = Dispatcher({api_key: handler}, Scope.BROKER)
    context = RequestContext(api_key, 99, 1, "test", ConnectionContext("1", "PLAINTEXT"), 0.0, 0)
    body = b"".join(dispatch(context, memoryview(b"")))
    assert REFUSED in repr(decode_response(api_key, SUPPORTED[api_key].max, memoryview(body)))


def test_api_versions_of_the_future_is_answered_in_version_0():
    dispatch = Dispatcher({ApiKey.API_VERSIONS: handler}, Scope.BROKER)
    context = RequestContext(ApiKey.API_VERSIONS, 99, 1, "test", ConnectionContext("1", "PLAINTEXT"), 0.0, 0)
    body = b"".join(dispatch(context, memoryview(b"")))
    assert body.hex() == "0023" + "00000001" + "0012" + "0000" + "0004"
