"""A member of a consumer group with the classic protocol. It has one topic and uses the range assignor."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from moldau.client.cluster import MAX_OFFSET_VERSION, RETRIABLE, Client, ClusterTopic
from moldau.network.client.node_connection import NodeAddress
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.records.groups import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from moldau.runtime.errors import ErrorCode, KafkaError

SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 60_000
HEARTBEAT_INTERVAL_S: Final = 3.0
PROTOCOL_TYPE: Final = "consumer"
ASSIGNOR: Final = "range"
REJOIN: Final = frozenset(
    {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id}
)
"""Errors after which a member joins again."""


class GroupMember:
    """A member that joins, sends heartbeats, commits and leaves. Failures are :class:`KafkaError`."""

    def __init__(self, client: Client, group: str, topic: ClusterTopic) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._coordinator: NodeAddress | None = None
        self._member_id = ""
        self._generation = -1
        self._heartbeats: asyncio.Task[None] | None = None
        self.must_rejoin = asyncio.Event()
        """Set when the group is rebalancing. The caller then commits, and calls ``join`` again."""

    async def _ask(self, message: Any, **options: Any) -> Any:
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator(self._group)
        try:
            return await self._client.ask(message, broker=self._coordinator, **options)
        except KafkaError:
            self._coordinator = None
            raise

    async def join(self) -> list[int]:
        """Become a member. Returns the assigned partitions."""
        await self._stop_heartbeats()

        async def attempt() -> list[int]:
            while True:
                joined = await self._join_once()
                if joined is not None:
                    assigned = await self._sync(joined)
                    if assigned is not None:
                        return assigned

        assigned = await self._client.retrying(attempt)
        self.must_rejoin.clear()
        self._heartbeats = asyncio.create_task(self._keep_alive())
        return assigned

    async def _join_once(self) -> JoinGroupResponse | None:
        """Join once. Returns ``None`` when the join must be repeated at once."""
        subscription = ConsumerProtocolSubscription(topics=[self._topic.name])
        protocol = JoinGroupRequestProtocol(name=ASSIGNOR, metadata=encode_subscription(subscription, 1))
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        timeout_ms = REBALANCE_TIMEOUT_MS + self._client.timeout_ms
        response: JoinGroupResponse = await self._ask(request, timeout_ms=timeout_ms)
        if response.error_code is ErrorCode.member_id_required:
            self._member_id = response.member_id
            return None
        if response.error_code is ErrorCode.unknown_member_id:
            self._member_id = ""
            return None
        self._check(response.error_code)
        self._member_id, self._generation = response.member_id, response.generation_id
        return response

    async def _sync(self, joined: JoinGroupResponse) -> list[int] | None:
        assignments = []
        if joined.leader == self._member_id and not joined.skip_assignment:
            assignments = await self._assign(joined)
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=ASSIGNOR,
            assignments=assignments,
        )
        response = await self._ask(request, timeout_ms=REBALANCE_TIMEOUT_MS + self._client.timeout_ms)
        if response.error_code in REJOIN:
            return None
        self._check(response.error_code)
        if not response.assignment:
            return []
        rows = decode_assignment(response.assignment).assigned_partitions
        return [index for row in rows if row.topic == self._topic.name for index in row.partitions]

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        wanted = {row.member_id: decode_subscription(row.metadata).topics for row in joined.members}
        topics = {topic for names in wanted.values() for topic in names}
        partitions = {}
        for row in (await self._client.metadata(sorted(topics))).topics:
            partitions[row.name or ""] = len(row.partitions)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=encode_assignment(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[
                            TopicPartition(topic=topic, partitions=list(span))
                            for topic, span in spans.items()
                        ]
                    ),
                    1,
                ),
            )
            for member, spans in range_assignment(wanted, partitions).items()
        ]

    def _check(self, code: ErrorCode) -> None:
        if code is ErrorCode.not_coordinator:
            self._coordinator = None
        if code is not ErrorCode.none:
            raise KafkaError(code, f"group {self._group}: {code.name.upper()}")

    async def _keep_alive(self) -> None:
        while not self.must_rejoin.is_set():
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            request = HeartbeatRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id
            )
            try:
                code = (await self._ask(request)).error_code
            except KafkaError:
                continue
            if code in RETRIABLE:
                self._coordinator = None
            elif code is not ErrorCode.none:
                self.must_rejoin.set()

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Store the offset at which this member will continue reading."""
        if offsets:
            generation = (self._generation, self._member_id)
            await commit_offsets(self._client, self._group, self._topic, offsets, generation)

    async def leave(self) -> None:
        """Leave the group. A coordinator that does not answer is not an error."""
        await self._stop_heartbeats()
        member = MemberIdentity(member_id=self._member_id, reason="the command has ended")
        request = LeaveGroupRequest(group_id=self._group, members=[member], member_id=self._member_id)
        with contextlib.suppress(KafkaError):
            await self._ask(request)

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None


def range_assignment(
    wanted: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, range]]:
    """Kafka's range assignor. Each topic is divided into ranges of equal size. If the ranges cannot be equal,
    the first members get one partition more."""
    found: dict[str, dict[str, range]] = {member: {} for member in wanted}
    subscribers: dict[str, list[str]] = {}
    for member in sorted(wanted):
        for topic in set(wanted[member]):
            subscribers.setdefault(topic, []).append(member)
    for topic in sorted(subscribers):
        members = subscribers[topic]
        each, longer = divmod(partitions.get(topic, 0), len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + each + (index < longer)
            if end > start:
                found[member][topic] = range(start, end)
            start = end
    return found


async def commit_offsets(
    client: Client,
    group: str,
    topic: ClusterTopic,
    offsets: Mapping[int, int],
    member: tuple[int, str] = (-1, ""),
) -> None:
    """Commit offsets for a member, which is given by its generation and its id. Without ``member``, commit
    for a group that has no members.
    """
    rows = [
        OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        for partition, offset in sorted(offsets.items())
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member[0],
        member_id=member[1],
        topics=[OffsetCommitRequestTopic(topic_id=topic.topic_id, name=topic.name, partitions=rows)],
    )

    async def attempt() -> None:
        coordinator = await client.coordinator(group)
        response = await client.ask(request, broker=coordinator, version_max=MAX_OFFSET_VERSION)
        for row in (row for answered in response.topics for row in answered.partitions):
            if row.error_code is not ErrorCode.none:
                where = f"{topic.name}-{row.partition_index}"
                raise KafkaError(row.error_code, f"group {group}, {where}: {row.error_code.name.upper()}")

    await client.retrying(attempt)
