"""Handlers of consumer groups. They check the authorization of a request, and the group service then makes
the decisions."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.shard_calls import GroupCaller
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.rows import PARTITIONS, Cut
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError

MEMBERSHIP_PARSED_BYTES: Final = 2 * 1024 * 1024
"""The memory limit of a request that changes members. It is low, because such a request usually has few
entries, and each entry causes much work."""

Call = Callable[[GroupCaller, Any], Coroutine[Any, Any, Message]]


def _distinct_groups(rows: Sequence[Any]) -> Iterator[Any]:
    """Yield the groups that an OffsetFetch request names. If the request asks several times for all offsets
    of a group, the group appears only once."""
    whole: set[str] = set()
    for row in rows:
        if row.topics is None:
            if row.group_id in whole:
                continue
            whole.add(row.group_id)
        yield row


FETCHED_OFFSETS: Final = (
    Cut(
        ("groups", "topics", "partition_indexes"),
        ("groups", "topics", "partitions"),
        distinct=_distinct_groups,
    ),
    Cut(("topics", "partition_indexes"), ("topics", "partitions")),
)
"""The paths to the rows of OffsetFetch, for its newer and its older versions."""


class GroupHandlers:
    """The group APIs of the classic protocol and the offset APIs."""

    def __init__(self, groups: GroupService, authorizer: Authorizer) -> None:
        self._groups = groups
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        groups = self._groups
        return {
            ApiKey.JOIN_GROUP: Served(
                self._authorized(groups.classic.join, AclOperation.READ),
                parsed_bytes_max=MEMBERSHIP_PARSED_BYTES,
                long_answers=(("members",),),
            ),
            ApiKey.SYNC_GROUP: Served(
                self._authorized(groups.classic.sync, AclOperation.READ),
                parsed_bytes_max=MEMBERSHIP_PARSED_BYTES,
            ),
            ApiKey.HEARTBEAT: self._authorized(groups.classic.heartbeat, AclOperation.READ),
            ApiKey.LEAVE_GROUP: Served(
                self._authorized(groups.classic.leave, AclOperation.READ),
                parsed_bytes_max=MEMBERSHIP_PARSED_BYTES,
            ),
            ApiKey.OFFSET_COMMIT: Served(
                self._authorized(groups.offsets.commit, AclOperation.READ), cuts=(PARTITIONS,)
            ),
            ApiKey.OFFSET_DELETE: Served(
                self._authorized(groups.offsets.delete, AclOperation.DELETE), cuts=(PARTITIONS,)
            ),
            ApiKey.OFFSET_FETCH: Served(
                self._plain(groups.offsets.fetch),
                cuts=FETCHED_OFFSETS,
                long_answers=(("groups", "topics", "partitions"), ("topics", "partitions")),
            ),
            # A request is divided after 16 groups, because a group may have thousands of members.
            ApiKey.DESCRIBE_GROUPS: Served(
                self._plain(groups.describe),
                cuts=(Cut(("groups",), ("groups",), rows=16, distinct=dict.fromkeys),),
                long_answers=(("groups", "members"),),
            ),
            ApiKey.LIST_GROUPS: Served(self._plain(groups.list_groups), long_answers=(("groups",),)),
            ApiKey.DELETE_GROUPS: Served(
                self._plain(groups.delete_groups),
                cuts=(Cut(("groups_names",), ("results",), distinct=dict.fromkeys),),
            ),
        }

    def _authorized(self, call: Call, operation: AclOperation) -> Handler:
        """Return a handler for requests with a field ``group_id``. It checks the client's right to the group,
        and then makes ``call``."""

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
    """Return the data about a request that the group service needs."""
    return GroupCaller(context.api_version, context.client_id or "", context.connection.peer_host)
