"""The diskless coordinators' APIs (KIP-1164's and what it implies), for nodes, readers and operators' tools.

They are served on every listener of a broker; each call's declaration says which right it asks for.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.coordinators.diskless.calls.port import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.table import CALLS
from moldau.network.context import RequestContext
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.authorization import Authorizer
from moldau.server.handlers.own_calls import acts_for_cluster, check_read, cluster_action_needed, waited_ms
from moldau.server.requests.dispatch import Handler


class DisklessHandlers:
    """Passes requests on to the coordinators that this broker leads."""

    def __init__(
        self,
        coordinators: DisklessCoordinatorCalls,
        authorizer: Authorizer,
        topic_name: Callable[[UUID], str | None],
    ) -> None:
        """``topic_name``: the name of a topic of the cluster, ``None`` when there is no such topic."""
        self._coordinators = coordinators
        self._authorizer = authorizer
        self._topic_name = topic_name

    def table(self) -> dict[int, Handler]:
        return dict.fromkeys(CALLS, self.handle)

    def handle(self, context: RequestContext, request: Any) -> Awaitable[Message]:
        call = CALLS[context.api_key]
        self._check(context, call, request)
        return call.answer(self._coordinators, request, context.api_version, waited_ms(context))

    def _check(self, context: RequestContext, call: DisklessCall[Any, Any], request: Any) -> None:
        """Raises an authorization error; UNKNOWN_TOPIC_ID where a name is needed and unknown."""
        if acts_for_cluster(self._authorizer, context):
            return
        if call.right is not Right.READ_TOPIC:
            raise cluster_action_needed()
        for topic_id in call.topic_ids(request):
            name = self._topic_name(topic_id)
            if name is None:
                raise KafkaError(ErrorCode.unknown_topic_id, f"there is no topic {topic_id}")
            check_read(self._authorizer, context, name)
