"""A member of a consumer group. It joins, gets its assignment, sends heartbeats, leaves and joins again.

The members of one group share a :class:`GroupMonitor`. When a member has received an assignment, its
generation is in the group's log. Therefore, in one generation, no partition may have two owners, even if the
coordinator fails. A member that synchronises later must not get an earlier generation.
"""

import asyncio
import random
from collections.abc import Collection
from typing import Final

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.runtime import ErrorCode
from moldau.simulation.clients.client import RETRIABLE, Bootstrap, RetryError
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.offsets.group_client import GroupClient

JOIN_GROUP_VERSION: Final = 7
SYNC_GROUP_VERSION: Final = 5
HEARTBEAT_VERSION: Final = 4
LEAVE_GROUP_VERSION: Final = 4
_PROTOCOL: Final = "numbers"
_TIMEOUT_MS: Final = 6_000
_HEARTBEATS_MAX: Final = 12
_LEAVE_CHANCE: Final = 0.3
_EXPECTED: Final = RETRIABLE | {
    ErrorCode.illegal_generation,
    ErrorCode.member_id_required,
    ErrorCode.rebalance_in_progress,
    ErrorCode.unknown_member_id,
}


class GroupMonitor:
    """The responses that the members of a group received."""

    def __init__(self, group_id: str, history: History) -> None:
        self.group_id = group_id
        self.history = history
        self._owners: dict[int, dict[int, str]] = {}
        """The owner of each partition, for each generation."""
        self.newest = 0
        """The last generation whose assignment a member received."""

    def assigned(self, member_id: str, generation: int, partitions: Collection[int], newest: int) -> None:
        """Check the assignment that a member received. ``newest`` is the last generation at the time when the
        member sent its request."""
        if generation < newest:
            self.history.violate(
                f"{self.group_id}: generation {generation} is given out after {newest} was complete"
            )
        self.newest = max(self.newest, generation)
        owners = self._owners.setdefault(generation, {})
        for partition in partitions:
            owner = owners.setdefault(partition, member_id)
            if owner != member_id:
                self.history.violate(
                    f"{self.group_id}: partition {partition} has two owners in generation {generation}"
                )


class CommittingMember(GroupClient):
    """A member that joins its group several times."""

    def __init__(
        self,
        name: str,
        bootstrap: Bootstrap,
        monitor: GroupMonitor,
        chance: random.Random,
        partition_count: int,
    ) -> None:
        super().__init__(name, bootstrap, monitor.history, chance, monitor.group_id)
        self._monitor = monitor
        self._partition_count = partition_count
        self._member_id = ""

    async def run(self, join_count: int) -> None:
        """Join the group and stay a member, until the client has joined and synchronised ``join_count``
        times. Then close the connection."""
        joined = 0
        while joined < join_count:
            try:
                connection = await self.coordinator()
                generation = await self._join(connection)
                joined += 1
                await self._stay(connection, generation)
            except (OSError, RetryError):
                self.disconnect()
                await self.pause()
        self.disconnect()

    async def _join(self, connection: RpcConnection) -> int:
        """Join the group and get the assignment. Returns the generation."""
        protocol = JoinGroupRequestProtocol(name=_PROTOCOL, metadata=self.name.encode())
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_TIMEOUT_MS,
            rebalance_timeout_ms=_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="simulation",
            protocols=[protocol],
        )
        joined: JoinGroupResponse = await connection.request(ApiKey.JOIN_GROUP, JOIN_GROUP_VERSION, request)
        if joined.error_code in (ErrorCode.none, ErrorCode.member_id_required):
            self._member_id = joined.member_id
        self._check(joined.error_code)
        newest = self._monitor.newest
        answer = await connection.request(
            ApiKey.SYNC_GROUP,
            SYNC_GROUP_VERSION,
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=joined.generation_id,
                member_id=self._member_id,
                protocol_type="simulation",
                protocol_name=_PROTOCOL,
                assignments=self._assignments(joined),
            ),
        )
        self._check(answer.error_code)
        partitions = bytes(answer.assignment)
        self._monitor.assigned(self._member_id, joined.generation_id, partitions, newest)
        self.history.note(f"{self.name} has {list(partitions)} in generation {joined.generation_id}")
        return joined.generation_id

    def _assignments(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """The leader assigns the partitions to the members round-robin. Other members send no assignments."""
        if joined.leader != self._member_id:
            return []
        members = [each.member_id for each in joined.members]
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=bytes(range(position, self._partition_count, len(members))),
            )
            for position, member_id in enumerate(members)
        ]

    async def _stay(self, connection: RpcConnection, generation: int) -> None:
        """Send heartbeats until the group rebalances, or for a while. After that, the member may leave."""
        for _ in range(self.chance.randint(1, _HEARTBEATS_MAX)):
            await asyncio.sleep(self.chance.uniform(0.05, 0.5))
            request = HeartbeatRequest(
                group_id=self.group_id, generation_id=generation, member_id=self._member_id
            )
            answer = await connection.request(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request)
            if answer.error_code is ErrorCode.rebalance_in_progress:
                return
            self._check(answer.error_code)
        if self.chance.random() < _LEAVE_CHANCE:
            identity = MemberIdentity(member_id=self._member_id)
            leave = LeaveGroupRequest(group_id=self.group_id, members=[identity])
            self._member_id = ""
            await connection.request(ApiKey.LEAVE_GROUP, LEAVE_GROUP_VERSION, leave)

    def _check(self, code: ErrorCode) -> None:
        """Raise RetryError for an error. First check that a member of an active group may get this error."""
        if code is ErrorCode.none:
            return
        if code not in _EXPECTED:
            self.history.violate(f"{self.name}: {code.name}")
        if code is ErrorCode.unknown_member_id:
            self._member_id = ""
        raise RetryError(code.name)
