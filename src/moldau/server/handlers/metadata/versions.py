"""ApiVersions: the APIs and versions that a listener serves, and the cluster's features. DescribeOwnApis: the
list of our own APIs that a listener serves."""

import re
from collections.abc import Callable, Iterable, Mapping

from moldau.cluster.image.image import MetadataImage
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ADVERTISED, OWN_API_KEY_MIN, ApiKey, Scope, scopes
from moldau.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from moldau.protocol.own import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest, DescribeOwnApisResponse, OwnApi
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import parse_versions
from moldau.quorum.core.voters import KRAFT_VERSION_FEATURE
from moldau.runtime.errors import ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The characters that are allowed in a client's software name and version (KIP-511)."""


def finalized_features(image: MetadataImage, kraft_version: int) -> dict[str, int]:
    """Return the feature levels by name. The level of kraft.version comes from the quorum and not from the
    image. It is left out while it is 0."""
    levels = {name: int(level) for name, level in image.features.items()}
    return {**levels, KRAFT_VERSION_FEATURE: kraft_version} if kraft_version else levels


class OwnApiHandlers:
    """Answers DescribeOwnApis for a listener. Every client may call it, because a caller needs the versions
    before it can make any other call."""

    def __init__(self, served: Callable[[], Iterable[int]]) -> None:
        """``served`` returns the API keys of the listener, including Kafka's."""
        self._served = served

    def table(self) -> dict[int, Handler]:
        return {DescribeOwnApisRequest.API_KEY: Served(self.describe, right=Right.NOTHING)}

    def describe(self, context: RequestContext, request: DescribeOwnApisRequest) -> DescribeOwnApisResponse:
        ranges = {
            key: parse_versions(MODULES[key][1])
            for key in sorted(self._served())
            if key >= OWN_API_KEY_MIN and key in MODULES
        }
        apis = [
            OwnApi(api_key=key, min_version=versions.min, max_version=versions.max)
            for key, versions in ranges.items()
        ]
        return DescribeOwnApisResponse(apis=apis)


class VersionHandlers:
    """The ApiVersions API of one listener, and DescribeOwnApis.

    ``finalized`` returns the epoch and the levels of the features in the current image. ``supported`` returns
    the ranges of levels that this node supports.
    """

    def __init__(
        self,
        scope: Scope,
        served: Callable[[], Iterable[int]],
        supported: Mapping[str, tuple[int, int]],
        finalized: Callable[[], tuple[int, Mapping[str, int]]],
        rack_of: Callable[[str | None], str | None] = lambda client_id: None,
    ) -> None:
        """``rack_of`` returns the rack that is named in a client's id."""
        self._scope = scope
        self._served = served
        self._supported = supported
        self._finalized = finalized
        self._rack_of = rack_of

    def table(self) -> dict[int, Handler]:
        return {ApiKey.API_VERSIONS: self.api_versions, **OwnApiHandlers(self._served).table()}

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.api_version >= 3:
            for value in (request.client_software_name, request.client_software_version):
                if not _SOFTWARE.fullmatch(value):
                    return ApiVersionsResponse(error_code=ErrorCode.invalid_request, api_keys=self._rows())
            context.connection.client_software_name = request.client_software_name
            context.connection.client_software_version = request.client_software_version
        context.connection.rack = self._rack_of(context.client_id)
        epoch, levels = self._finalized()
        # In versions up to 3, the Java client refuses a feature whose range begins at 0 (KAFKA-17011).
        shown = {
            name: bounds
            for name, bounds in self._supported.items()
            if bounds[0] > 0 or context.api_version >= 4
        }
        return ApiVersionsResponse(
            api_keys=self._rows(),
            supported_features=[
                SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in shown.items()
            ],
            finalized_features_epoch=epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in levels.items()
            ],
        )

    def _rows(self) -> list[ApiVersion]:
        return [
            ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max)
            for key in sorted(self._served())
            if scopes(key) & self._scope and (versions := ADVERTISED.get(ApiKey(key))) is not None
        ]
