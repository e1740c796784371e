"""The in-sync set of a partition from the leader's side, and notifications about its role."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from moldau.replication.core.leader import InSyncProposal, LeaderReplica, ProposalFailure
from moldau.replication.core.replica import Replica
from moldau.replication.throttling import ReplicationQuota

P = TypeVar("P", contravariant=True)


class ReplicaListener(Protocol[P]):
    """Is notified by this broker's replicas."""

    @property
    def active_brokers(self) -> Mapping[int, int]:
        """Epochs of the brokers that may be in sync: neither fenced nor shutting down."""
        ...

    @property
    def leader_quota(self) -> ReplicationQuota:
        """Limits the bytes that leaders on this broker send to throttled followers (KIP-73)."""
        ...

    def role_changed(self, partition: P, /) -> None:
        """The replica leads, follows or has resigned, in a new epoch or role."""
        ...

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int], /) -> int:
        """A follower for the consumers of a rack, chosen from those given by id with their log ends; -1:
        none.
        """
        ...

    def outsider_fetched(self, partition: P, /) -> None:
        """A follower that is not in sync has fetched from this leader."""
        ...


class Leading:
    """Changes of the in-sync set of a partition that this broker leads; does nothing on other replicas."""

    def __init__(
        self,
        replica: Replica,
        listener: ReplicaListener[Any] | None,
        monotonic_ms: Callable[[], int],
        watermark_moved: Callable[[], None],
        brokers_moved: Callable[[], None] = lambda: None,
    ) -> None:
        """``monotonic_ms``: the clock by which the lag of followers is measured."""
        self._replica = replica
        self._listener = listener
        self._monotonic_ms = monotonic_ms
        self._watermark_moved = watermark_moved
        self._brokers_moved = brokers_moved

    @property
    def has_followers(self) -> bool:
        """Whether this replica leads, and there are other replicas."""
        leader = self._replica.leader
        return leader is not None and bool(leader.followers)

    def brokers_changed(self) -> None:
        """The set of active brokers may have changed, or this replica has become the leader."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or not leader.followers:
            return
        if leader.brokers_changed(listener.active_brokers):
            self._watermark_moved()
        self._brokers_moved()

    def nearest_replica(self, client_rack: str, offset: int) -> int:
        """A follower with an offset, for the consumers of a rack (KIP-392); -1: this leader serves."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or not leader.followers:
            return -1
        return listener.nearest_replica(client_rack, leader.end_offsets_with(offset))

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether this replica's answers to followers count for the leader's quota (KIP-73)."""
        listener = self._listener
        return listener is not None and listener.leader_quota.is_throttled(topic, partition)

    def withholds(self, follower_id: int) -> bool:
        """Whether a throttled follower gets no records now: it is out of sync, and the rate is exceeded."""
        leader, listener = self._replica.leader, self._listener
        if leader is None or listener is None or follower_id in leader.in_sync:
            return False
        return listener.leader_quota.is_exceeded(self._monotonic_ms() / 1000)

    def propose(self, lag_ms_max: int, local_broker_epoch: int) -> InSyncProposal | None:
        """The change of the in-sync set to request now; see :meth:`LeaderReplica.propose`."""
        leader = self._replica.leader
        if leader is None:
            return None
        return leader.propose(self._monotonic_ms(), lag_ms_max, local_broker_epoch=local_broker_epoch)

    def committed(self, leader_epoch: int, in_sync: tuple[int, ...], partition_epoch: int) -> None:
        """The controller has answered a proposal of the term with this set."""
        leader: LeaderReplica | None = self._replica.leader
        if leader is None or leader.leader_epoch != leader_epoch:
            return
        if leader.set_changed(in_sync, partition_epoch):
            self._watermark_moved()

    def failed(self, proposal: InSyncProposal, failure: ProposalFailure) -> None:
        """The controller has not answered a proposal with a set."""
        leader = self._replica.leader
        if leader is not None and leader.proposal_failed(proposal, failure):
            self._watermark_moved()
