"""A diskless partition on a broker that has no replica of it: it takes records, and serves none.

Any broker may write any diskless partition (KIP-1163): the order is the coordinator's. What it writes is read
from its replicas.
"""

from collections.abc import Callable

from moldau.diskless.partition.appends import PartitionAppends
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import TopicTraffic
from moldau.replication.partition import (
    FoundOffset,
    PartitionKey,
    PartitionState,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
)
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.storage.log.config import LogConfig


class _NoReplica:
    """The place of a partition that is not here: nothing is waited for, nothing is closed."""

    is_closed = False
    is_known = True

    def when_known(self, callback: Callable[[], None]) -> None:
        callback()


class DisklessPassage:
    """Implements :class:`moldau.replication.partition.Partition`, of which it has the producers' part.

    A partition that its coordinator does not have yet is refused by that; producers try again.
    """

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        services: PartitionServices,
        config: LogConfig,
        traffic: TopicTraffic,
    ) -> None:
        self._key = key
        self._topic = topic
        self._appends = PartitionAppends(key, _NoReplica(), services, config, traffic)
        self.append = self._appends.append

    @property
    def config(self) -> LogConfig:
        """The topic's."""
        return self._appends.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._appends.config = config

    @property
    def key(self) -> PartitionKey:
        return self._key

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def leader_epoch(self) -> int:
        return -1

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def is_under_replicated(self) -> bool:
        return False

    def read(self, request: ReadRequest) -> ReadAnswer:
        return ReadOutcome(error=ErrorCode.not_leader_or_follower)

    async def find_offset(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
    ) -> FoundOffset:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    async def delete_records(self, before_offset: int) -> int:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    def state(self) -> PartitionState:
        raise KafkaError(ErrorCode.not_leader_or_follower)
