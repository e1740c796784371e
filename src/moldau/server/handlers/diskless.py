"""The diskless coordinators' APIs (KIP-1164's seven and what it implies), for nodes and for operators' tools.

They are served on every listener of a broker to whoever has CLUSTER_ACTION, and advertised on none.
"""

from collections.abc import Awaitable

from moldau.coordinators.diskless import wire
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.network.context import RequestContext
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.authorization import CLUSTER_NAME, Authorizer, Operation, ResourceType
from moldau.server.dispatch import Handler


class DisklessHandlers:
    """Passes requests on to the coordinators that this broker leads."""

    def __init__(self, coordinators: DisklessCoordinator, authorizer: Authorizer) -> None:
        self._coordinators = coordinators
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return dict.fromkeys(wire.API_KEYS, self.handle)

    def handle(self, context: RequestContext, request: Message) -> Awaitable[Message]:
        check_cluster_action(self._authorizer, context)
        return wire.answer(self._coordinators, context.api_key, context.api_version, request)


def check_cluster_action(authorizer: Authorizer, context: RequestContext) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED for whoever is neither a node nor an operator."""
    if not authorizer.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.cluster_authorization_failed, "this needs CLUSTER_ACTION on the cluster")


def coordinator_of_key(key: str) -> int:
    """The coordinator that a FindCoordinator key names. Raises INVALID_REQUEST."""
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise KafkaError(ErrorCode.invalid_request, f"{key!r} is not the number of a diskless coordinator")
    return int(key)
