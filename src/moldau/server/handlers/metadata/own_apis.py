"""DescribeOwnApis: the list of our own APIs that a listener serves."""

from collections.abc import Callable, Iterable

from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.protocol.own import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest, DescribeOwnApisResponse, OwnApi
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import parse_versions


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
