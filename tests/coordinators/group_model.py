"""A group shard with a log in memory. A test moves the clock of its timers."""

from dataclasses import dataclass, field
from typing import Any

from moldau.coordinators.effects import PLAIN, CancelTimer, Effects, SetTimer, TimerKey, Token
from moldau.coordinators.groups.classic.joining import Join
from moldau.coordinators.groups.classic.member import ClientFacts
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.operation import ExpiryTimer
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.records.groups import encode_subscription


def subscription(topic: str) -> bytes:
    return encode_subscription(ConsumerProtocolSubscription(topics=[topic]), 0)


@dataclass
class GroupModel:
    """Runs operations as the runtime does, but without waiting for commits."""

    settings: GroupSettings
    now_ms: int = 0
    log: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    answered: dict[int, Any] = field(default_factory=dict)
    fresh_replies: list[tuple[int, Any]] = field(default_factory=list)
    fresh_records: list[ConsumerOffsetsRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._codec = ConsumerOffsetsCodec()
        self._tokens = 0
        self.start()

    def start(self) -> None:
        """Replay the log into a new shard, as a restart does."""
        self.shard = self.replayed()
        self.timers.clear()
        self.apply(self.shard.on_loaded(self.now_ms))

    def replayed(self) -> GroupShard:
        shard = GroupShard(self.settings)
        for offset, (key, value) in enumerate(self.log):
            record = self._codec.decode(key, value)
            assert record is not None
            shard.replay(offset, record, PLAIN)
        return shard

    def apply(self, effects: Effects[ConsumerOffsetsRecord]) -> None:
        for record in effects.records:
            pair = self._codec.encode(record)
            assert self._codec.decode(*pair) == record
            self.shard.replay(len(self.log), record, effects.kind)
            self.log.append(pair)
            self.fresh_records.append(record)
        for change in effects.timers:
            match change:
                case SetTimer(key, after_ms):
                    assert after_ms >= 0
                    self.timers[key] = self.now_ms + after_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
        for reply in effects.replies:
            assert reply.token in self.asked, f"{reply.token} was never asked, or is answered twice"
            self.asked.discard(reply.token)
            self.answered[reply.token] = reply.response
            self.fresh_replies.append((reply.token, reply.response))

    def advance(self, by_ms: int) -> None:
        """Move the clock forward. Timers that are due fire in order."""
        end_ms = self.now_ms + by_ms
        while True:
            due = [(at_ms, str(key), key) for key, at_ms in self.timers.items() if at_ms <= end_ms]
            if not due:
                break
            self.now_ms, _, key = min(due, key=lambda each: each[:2])
            del self.timers[key]
            self.apply(self.shard.on_timer(key, self.now_ms))
        self.now_ms = end_ms

    def session_timers(self) -> dict[TimerKey, int]:
        return {key: due for key, due in self.timers.items() if not isinstance(key, ExpiryTimer)}

    def token(self) -> Token:
        self._tokens += 1
        self.asked.add(self._tokens)
        return Token(self._tokens)

    def join(
        self,
        client: str,
        member_id: str = "",
        *,
        group: str = "g",
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
    ) -> Token:
        token = self.token()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        new_id = f"{instance_id or client}-{token}"
        room = self.settings.metadata_max_bytes - self.shard.classic.metadata_bytes
        event = Join(token, request, version, ClientFacts(client, "/host"), new_id, room)
        self.apply(self.shard.classic.join(event, self.now_ms))
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance_id: str | None = None,
        protocol: str | None = None,
    ) -> Token:
        token = self.token()
        given = (assignments or {}).items()
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_name=protocol,
            assignments=[SyncGroupRequestAssignment(member_id=each, assignment=data) for each, data in given],
        )
        self.apply(self.shard.classic.sync(token, request, self.now_ms))
        return token

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance_id: str | None = None
    ) -> Token:
        token = self.token()
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance_id
        )
        self.apply(self.shard.classic.heartbeat(token, request, self.now_ms))
        return token

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> Token:
        token = self.token()
        identities = [
            MemberIdentity(member_id=each, group_instance_id=instance) for each, instance in members
        ]
        request = LeaveGroupRequest(group_id=group, members=identities)
        self.apply(self.shard.classic.leave(token, request, self.now_ms))
        return token

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "orders",
        partition: int = 0,
        member_id: str = "",
        generation: int = -1,
        retention_ms: int = -1,
    ) -> Token:
        """Commit one offset. Returns the token of the request. Raises :class:`KafkaError` like the shard. A
        request that raises an error counts as completed, too."""
        token = self.token()
        part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        try:
            self.apply(self.shard.commit_offsets(token, request, 9, self.now_ms))
        except BaseException:
            self.asked.discard(token)
            raise
        return token
