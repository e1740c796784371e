"""Consumer groups: authorise, then let the group service decide."""

from collections.abc import Callable, Coroutine
from typing import Any

from moldau.coordinators.groups.calls import GroupCaller
from moldau.coordinators.groups.service import GroupService
from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.authorization import AclOperation, AclResourceType, Authorizer
from moldau.server.requests.dispatch import Handler

Call = Callable[[GroupCaller, Any], Coroutine[Any, Any, Message]]


class GroupHandlers:
    """The group APIs of the classic protocol and the offset APIs."""

    def __init__(self, groups: GroupService, authorizer: Authorizer) -> None:
        self._groups = groups
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        groups = self._groups
        return {
            ApiKey.JOIN_GROUP: self._guarded(groups.classic.join, AclOperation.READ),
            ApiKey.SYNC_GROUP: self._guarded(groups.classic.sync, AclOperation.READ),
            ApiKey.HEARTBEAT: self._guarded(groups.classic.heartbeat, AclOperation.READ),
            ApiKey.LEAVE_GROUP: self._guarded(groups.classic.leave, AclOperation.READ),
            ApiKey.OFFSET_COMMIT: self._guarded(groups.offsets.commit, AclOperation.READ),
            ApiKey.OFFSET_DELETE: self._guarded(groups.offsets.delete, AclOperation.DELETE),
            ApiKey.OFFSET_FETCH: self._plain(groups.offsets.fetch),
            ApiKey.DESCRIBE_GROUPS: self._plain(groups.describe),
            ApiKey.LIST_GROUPS: self._plain(groups.list_groups),
            ApiKey.DELETE_GROUPS: self._plain(groups.delete_groups),
        }

    def _guarded(self, call: Call, operation: AclOperation) -> Handler:
        """A request about one group, named by ``group_id``."""

        async def handler(context: RequestContext, request: Any) -> Message:
            if not self._authorizer.allows(context, operation, AclResourceType.GROUP, request.group_id):
                raise KafkaError(ErrorCode.group_authorization_failed)
            return await call(caller(context), request)

        return handler

    def _plain(self, call: Call) -> Handler:
        async def handler(context: RequestContext, request: Any) -> Message:
            return await call(caller(context), request)

        return handler


def caller(context: RequestContext) -> GroupCaller:
    """The facts about a request that groups need."""
    return GroupCaller(context.api_version, context.client_id or "", context.connection.peer_host)
