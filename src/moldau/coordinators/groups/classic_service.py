"""The requests of members of classic groups. Errors are returned in the responses."""

import logging
from typing import Final

from moldau.coordinators.effects import Effects, Token
from moldau.coordinators.groups.classic.joining import Join
from moldau.coordinators.groups.classic.member import ClientFacts
from moldau.coordinators.groups.classic.sessions import join_error
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.groups.shard_calls import GroupCaller, GroupCalls
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.runtime import Entropy, ErrorCode, KafkaError
from moldau.runtime.gathered_lines import GatheredLines

logger = logging.getLogger(__name__)

_NULLABLE_PROTOCOL_NAME_VERSION: Final = 7
_PROTOCOL_REQUIRED_SYNC_VERSION: Final = 5
_MEMBER_LIST_VERSION: Final = 3


class ClassicGroupService:
    """The classic protocol for request handlers. An error with an error code is returned in the response, not
    raised."""

    def __init__(self, calls: GroupCalls, entropy: Entropy) -> None:
        self._calls = calls
        self._entropy = entropy
        self._refused = GatheredLines(
            logger,
            logging.WARNING,
            "%d members were refused, for a group or the metadata of all members are too large: %s (%s)",
        )

    async def join(self, caller: GroupCaller, request: JoinGroupRequest) -> JoinGroupResponse:
        """Handle JoinGroup. The response is sent when the generation begins.

        The response is GROUP_MAX_SIZE_REACHED if the metadata of the members of all groups would become too
        large. Clients do not retry after this error. Apache Kafka has no such limit.
        """
        prefix = request.group_instance_id or caller.client_id
        if request.reason:  # KIP-800
            logger.info(
                "%s joins group %s: %s", request.member_id or prefix, request.group_id, request.reason
            )
        # Tools expect addresses in Java's form (``/127.0.0.1``). Therefore an address is stored and shown in
        # this form.
        client = ClientFacts(caller.client_id, f"/{caller.host}")
        member_id = f"{prefix}-{self._entropy.uuid4()}"
        held = sum(shard.classic.metadata_bytes for shard in self._calls.runtime.shards())
        room = self._calls.settings.metadata_max_bytes - held

        def operation(shard: GroupShard, now_ms: int, token: Token) -> Effects[ConsumerOffsetsRecord]:
            return shard.classic.join(
                Join(token, request, caller.api_version, client, member_id, room), now_ms
            )

        try:
            response: JoinGroupResponse = await self._calls.write_named(request.group_id, operation)
        except KafkaError as error:
            response = join_error(error.code, request.member_id)
        if response.error_code is ErrorCode.group_max_size_reached:
            self._refused.add(request.group_id, f"{caller.client_id} at {caller.host}")
        if response.protocol_name is None and caller.api_version < _NULLABLE_PROTOCOL_NAME_VERSION:
            return JoinGroupResponse(error_code=response.error_code, member_id=response.member_id)
        return response

    async def sync(self, caller: GroupCaller, request: SyncGroupRequest) -> SyncGroupResponse:
        """Handle SyncGroup. The response is sent when the leader's assignment is committed."""
        if caller.api_version >= _PROTOCOL_REQUIRED_SYNC_VERSION and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
        try:
            response: SyncGroupResponse = await self._calls.write_named(
                request.group_id, lambda shard, now_ms, token: shard.classic.sync(token, request, now_ms)
            )
        except KafkaError as error:
            # While a partition is loaded, its groups lose their joining members. Therefore the response tells
            # the member to join again. If the member repeated only the sync, it would fail again.
            loading = error.code is ErrorCode.coordinator_load_in_progress
            return SyncGroupResponse(error_code=ErrorCode.rebalance_in_progress if loading else error.code)
        return response

    async def heartbeat(self, caller: GroupCaller, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle Heartbeat."""
        try:
            response: HeartbeatResponse = await self._calls.write_named(
                request.group_id, lambda shard, now_ms, token: shard.classic.heartbeat(token, request, now_ms)
            )
        except KafkaError as error:
            # While the group is loading, no session can end. Therefore the response has no error.
            loading = error.code is ErrorCode.coordinator_load_in_progress
            return HeartbeatResponse(error_code=ErrorCode.none if loading else error.code)
        return response

    async def leave(self, caller: GroupCaller, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Handle LeaveGroup."""
        for member in request.members:
            if member.reason:  # KIP-800
                logger.info("%s leaves group %s: %s", member.member_id, request.group_id, member.reason)
        single = caller.api_version < _MEMBER_LIST_VERSION
        if single:
            members = [MemberIdentity(member_id=request.member_id)]
            request = LeaveGroupRequest(group_id=request.group_id, members=members)
        try:
            response: LeaveGroupResponse = await self._calls.write_named(
                request.group_id, lambda shard, now_ms, token: shard.classic.leave(token, request, now_ms)
            )
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code)
        if single:
            return LeaveGroupResponse(error_code=response.members[0].error_code)
        return response
