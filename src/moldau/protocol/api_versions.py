"""Answers to ApiVersions, the first request on a client's connection."""

from collections.abc import Mapping

from moldau.protocol.api import API_VERSIONS_KEY, SUPPORTED, ApiKey, VersionRange
from moldau.protocol.codec import encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.schema import Buffer
from moldau.runtime import ErrorCode


def api_rows(versions: Mapping[ApiKey, VersionRange]) -> tuple[ApiVersion, ...]:
    """The rows of an ApiVersions response, by key. ``api.advertised`` returns suitable ``versions``."""
    return tuple(
        ApiVersion(api_key=int(key), min_version=known.min, max_version=known.max)
        for key, known in sorted(versions.items())
    )


def unsupported_version_body() -> list[Buffer]:
    """The body for an ApiVersions request of an unknown version: error 35, always in version 0.

    It contains the versions of ApiVersions itself, so that the client can try again (KIP-511). Frame it as a
    response of version 0.
    """
    own = {ApiKey.API_VERSIONS: SUPPORTED[ApiKey.API_VERSIONS]}
    response = ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=api_rows(own))
    return encode_response(API_VERSIONS_KEY, 0, response)
