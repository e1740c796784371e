"""Handlers of our own calls at the broker that answers them, and the rights that these calls need."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_calls import BrokerCall, CallDeclaration
from moldau.network.served import Handler, HandlerTable, Served
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError

S = TypeVar("S")


class CallHandlers(Protocol):
    """The handlers of a table of our own calls. A subsystem, or a kind of coordinator, contributes
    the table."""

    @property
    def calls(self) -> Mapping[int, CallDeclaration[Any, Any]]:
        """The declarations, by API key."""
        ...

    def table(self) -> HandlerTable:
        """The handlers of all these calls."""
        ...


class BrokerCallHandlers(Generic[S]):
    """Answers the declared calls, about the partitions that this broker leads."""

    def __init__(
        self, calls: Mapping[int, BrokerCall[S, Any, Any]], service: S, authorizer: Authorizer
    ) -> None:
        self.calls: Mapping[int, BrokerCall[S, Any, Any]] = calls
        self._service = service
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            key: Served(self.handle, call.cuts, call.parsed_bytes_max, call.long_answers, right=call.right)
            for key, call in self.calls.items()
        }

    def handle(self, context: RequestContext, request: Any) -> Awaitable[Message]:
        call = self.calls[context.api_key]
        self._check(context, call, request)
        return call.answer(self._service, request, context.api_version, waited_ms(context))

    def _check(self, context: RequestContext, call: BrokerCall[S, Any, Any], request: Any) -> None:
        """Check that the principal may make this call. Raises an authorization error."""
        if call.right is not Right.READ_TOPIC:
            check_right(self._authorizer, context, call.right)
            return
        for topic in call.topics(request):
            check_read(self._authorizer, context, topic)


def waited_ms(context: RequestContext) -> float:
    """The time since a request was received."""
    return (asyncio.get_running_loop().time() - context.received_at) * 1000


def acts_for_cluster(authorizer: Authorizer, context: RequestContext) -> bool:
    """Whether a principal is a node of the cluster, or an operator of the cluster."""
    return authorizer.allows(context, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)


def check_cluster_action(authorizer: Authorizer, context: RequestContext) -> None:
    """Check that the principal is a node or an operator. Raises CLUSTER_AUTHORIZATION_FAILED."""
    if not acts_for_cluster(authorizer, context):
        raise cluster_action_needed()


def check_right(authorizer: Authorizer, context: RequestContext, right: Right | None) -> None:
    """Check a right that concerns the whole cluster. Raises CLUSTER_AUTHORIZATION_FAILED if the principal
    does not have it.

    For READ_TOPIC, the principal needs CLUSTER_ACTION, because this function does not know the topics of the
    request.
    """
    if right is Right.NOTHING:
        return
    if right is not Right.ALTER_CLUSTER:
        check_cluster_action(authorizer, context)
    elif not acts_for_cluster(authorizer, context) and not authorizer.allows(
        context, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME
    ):
        raise KafkaError(ErrorCode.cluster_authorization_failed, "this needs ALTER on the cluster")


def cluster_action_needed() -> KafkaError:
    """The error CLUSTER_AUTHORIZATION_FAILED, with the missing right."""
    return KafkaError(ErrorCode.cluster_authorization_failed, "this needs CLUSTER_ACTION on the cluster")


def may_read(authorizer: Authorizer, context: RequestContext, topic: str) -> bool:
    """Whether a principal may make the calls that readers of a topic need."""
    return acts_for_cluster(authorizer, context) or authorizer.allows(
        context, AclOperation.READ, AclResourceType.TOPIC, topic
    )


def check_read(authorizer: Authorizer, context: RequestContext, topic: str) -> None:
    """Check that a principal may make the calls that readers of a topic need. Raises
    TOPIC_AUTHORIZATION_FAILED."""
    if not may_read(authorizer, context, topic):
        raise KafkaError(ErrorCode.topic_authorization_failed, f"this needs READ on topic {topic}")
