"""The leaders that responses name, so that clients find a new leader without a Metadata request (KIP-951)."""

from typing import Final, NamedTuple
from uuid import UUID

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime.errors import ErrorCode
from moldau.server.metadata.cluster_view import BrokerAddress, ClusterView

PRODUCE_VERSION: Final = 10
"""First version of Produce whose responses name leaders."""
FETCH_VERSION: Final = 16
"""First version of Fetch whose responses have the addresses of leaders."""
NAMING_ERRORS: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
"""The errors after which a response names the leader. They show that the client does not know the current
leader or its epoch."""


class CurrentLeader(NamedTuple):
    """The leader of a partition, with its address for the clients of one listener."""

    epoch: int
    broker: BrokerAddress


class CurrentLeaders:
    """Finds leaders in the newest committed metadata on this node."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def find(self, topic: str, topic_id: UUID, index: int, listener_name: str) -> CurrentLeader | None:
        """Return the leader of a partition. The topic is found by its id if the request has an id.

        The result is ``None`` if the partition is unknown or has no leader, or if clients of the listener
        cannot reach the leader. It is also ``None`` for kinds of topics whose clients are assigned a leader
        by their rack, because every broker can serve these clients.
        """
        topics = self._view.image.topics
        known = topics.get(topic) if topic_id == ZERO_UUID else topics.get_by_id(topic_id)
        if known is None or not 0 <= index < len(known.partitions) or kind_of(known).rack_brokers is not None:
            return None
        partition = known.partitions[index]
        broker = self._view.broker(partition.leader, listener_name)
        return None if broker is None else CurrentLeader(partition.leader_epoch, broker)
