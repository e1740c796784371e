"""DescribeOwnApis: Moldau's own APIs that a listener serves. ApiVersions never lists them."""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class OwnApi(Message):
    api_key: int = wire("int16")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


@message
class DescribeOwnApisRequest(Message):
    API_KEY = 11600
    VERSIONS = "0"
    FLEXIBLE = "0+"


@message
class DescribeOwnApisResponse(Message):
    API_KEY = 11600
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    apis: Sequence[OwnApi] = wire([OwnApi], default=())


REQUEST = DescribeOwnApisRequest
RESPONSE = DescribeOwnApisResponse
