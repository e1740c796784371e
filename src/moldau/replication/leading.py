"""The in-sync set of a partition on the leader's side, notifications about the replica's role, and the choice
of a follower for consumers of another rack (KIP-392)."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from moldau.replication.core.leader import InSyncProposal, LeaderReplica, ProposalFailure
from moldau.replication.core.replica import Replica
from moldau.replication.throttling import ReplicationQuota

P = TypeVar("P", contravariant=True)


class ReplicaListener(Protocol[P]):
    """Gets notifications from this broker's replicas."""

    @property
    def active_brokers(self) -> Mapping[int, int]:
        """Returns the epochs of the brokers that may be in sync. They are not fenced and not shutting
        down."""
        ...

    @property
    def leader_quota(self) -> ReplicationQuota:
        """Limits the bytes that leaders on this broker send to throttled followers (KIP-73)."""
        ...

    def role_changed(self, partition: P, /) -> None:
        """Called when the replica leads, follows or has resigned, in a new epoch or in a new role."""
        ...

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int], /) -> int:
        """Returns a follower for the consumers of a rack, or -1 if there is no such follower. The argument
        contains the possible followers by id, with their log ends."""
        ...

    def outsider_fetched(self, partition: P, /) -> None:
        """Called when a follower that is not in sync has fetched from this leader."""
        ...


class Leading:
    """Changes of the in-sync set of a partition. If this broker does not lead the partition, the class does
    nothing."""

    def __init__(
        self,
        replica: Replica,
        listener: ReplicaListener[Any] | None,
        monotonic_ms: Callable[[], int],
        watermark_moved: Callable[[], None],
        brokers_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """``monotonic_ms`` is the clock that measures the lag of followers."""
        self._replica = replica
        self._listener = listener
        self._monotonic_ms = monotonic_ms
        self._watermark_moved = watermark_moved
        self._brokers_moved = brokers_moved
        self.metadata_epoch = -1
        """The partition epoch in the newest metadata that name this broker as the leader."""

    def now_ms(self) -> int:
        """The time by the clock that measures the lag of followers."""
        return self._monotonic_ms()

    @property
    def has_followers(self) -> bool:
        """Whether this replica leads and there are other replicas."""
        leader = self._replica.leader
        return leader is not None and bool(leader.followers)

    def brokers_changed(self) -> None:
        """Check the watermark and the in-sync set, because the active brokers may have changed or this
        replica has become the leader."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or not leader.followers:
            return
        if leader.brokers_changed(listener.active_brokers):
            self._watermark_moved()
        self._brokers_moved()

    def nearest_replica(self, client_rack: str, offset: int) -> int:
        """Return a follower whose log contains ``offset``, for the consumers of a rack (KIP-392); -1 means
        that this leader serves these consumers."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or not leader.followers:
            return -1
        return listener.nearest_replica(client_rack, leader.end_offsets_with(offset))

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether responses of this replica to followers count towards the leader's quota (KIP-73)."""
        listener = self._listener
        return listener is not None and listener.leader_quota.is_throttled(topic, partition)

    def withholds(self, follower_id: int) -> bool:
        """Whether a throttled follower gets no records now. This is the case if the follower is out of sync
        and the quota is exceeded."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or follower_id in leader.in_sync:
            return False
        return listener.leader_quota.is_exceeded(self._monotonic_ms() / 1000)

    @property
    def is_settled(self) -> bool:
        """Whether the in-sync set in the metadata of this broker is certainly the committed set. That is not
        certain while a proposal of this leader is in progress, because the controller may commit it at any
        time. The response of the controller may also arrive before the metadata."""
        leader = self._replica.leader
        return leader is None or (leader.pending is None and leader.partition_epoch <= self.metadata_epoch)

    def propose(self, lag_ms_max: int, local_broker_epoch: int) -> InSyncProposal | None:
        """Return the change of the in-sync set that is needed now; see :meth:`LeaderReplica.propose`."""
        leader = self._replica.leader
        if leader is None:
            return None
        return leader.propose(self._monotonic_ms(), lag_ms_max, local_broker_epoch=local_broker_epoch)

    def committed(self, leader_epoch: int, in_sync: tuple[int, ...], partition_epoch: int) -> None:
        """Record the controller's response to a proposal of ``leader_epoch``. ``in_sync`` is the set that the
        controller now has. Does nothing if this epoch has ended."""
        leader: LeaderReplica | None = self._replica.leader
        if leader is None or leader.leader_epoch != leader_epoch:
            return
        if leader.set_changed(in_sync, partition_epoch):
            self._watermark_moved()

    def failed(self, proposal: InSyncProposal, failure: ProposalFailure) -> None:
        """Record that a proposal has failed, because the controller refused it or did not answer."""
        leader = self._replica.leader
        if leader is not None and leader.proposal_failed(proposal, failure):
            self._watermark_moved()


def nearest_replica(client_rack: str, end_offsets: Mapping[int, int], racks: Mapping[int, str | None]) -> int:
    """Return the follower that serves the consumers of a rack (KIP-392); -1 if there is no such follower.

    ``end_offsets`` contains the log end of each follower that has the consumer's offset. ``racks`` contains
    the racks of the active brokers. The follower with the most records is chosen. Among followers with
    equally many records, the lowest id is chosen.
    """
    near = [broker_id for broker_id in end_offsets if racks.get(broker_id) == client_rack]
    return max(near, key=lambda broker_id: (end_offsets[broker_id], -broker_id), default=-1)
