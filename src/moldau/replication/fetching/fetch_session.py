"""The follower's side of a fetch session with one leader (KIP-227). Pure.

The leader stores the followed partitions and their positions. A request contains only the changes since the
last request. After each :meth:`request` the caller must call either :meth:`accept` or :meth:`reset`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.runtime.errors import ErrorCode

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1

PositionOf = Callable[[PartitionKey], FetchPosition | None]
"""Returns the position from which a partition must be fetched. ``None`` means that the partition must not be
fetched now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The limits of a follower's requests, with Kafka's config names."""

    max_bytes: int = 1 << 20
    """Maximum bytes that are fetched of one partition."""
    response_max_bytes: int = 10 << 20
    wait_max_ms: int = 500
    min_bytes: int = 1


class FollowerSession:
    """The partitions that one fetcher follows. For each of them, this class knows whether the leader has it
    in the session."""

    def __init__(self, local_id: int, limits: FetchLimits) -> None:
        self._local_id = local_id
        self._limits = limits
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._followed: dict[PartitionKey, None] = {}
        self._sent: dict[PartitionKey, FetchPosition] = {}
        """The partitions that the leader knows, with the positions that were sent last."""
        self._changed: dict[PartitionKey, None] = {}
        """Partitions whose position may differ from the position that the leader knows."""
        self._removed: dict[PartitionKey, None] = {}
        """Partitions that were removed after the last request. Responses for them were ignored."""

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._followed

    def add(self, key: PartitionKey) -> None:
        """Begin to follow a partition."""
        self._followed[key] = None
        self._changed[key] = None

    def remove(self, key: PartitionKey) -> None:
        """Stop following a partition."""
        self._followed.pop(key, None)
        self._changed[key] = None
        self._removed[key] = None

    def changed(self, key: PartitionKey) -> None:
        """Record that the position of a partition may have changed, or that the partition may be fetched
        again."""
        self._changed[key] = None

    def sent(self, key: PartitionKey) -> FetchPosition | None:
        """Return the position of the last request for a partition. It is ``None`` when the partition was not
        requested."""
        return self._sent.get(key)

    def request(self, position_of: PositionOf, broker_epoch: int) -> FetchRequest | None:
        """The next request; ``None`` when there is nothing to fetch now."""
        is_full = self._epoch == INITIAL_EPOCH
        if is_full:
            self._sent.clear()
        wanted: dict[UUID, list[FetchPartition]] = {}
        forgotten: dict[UUID, list[int]] = {}
        changed, self._changed = self._changed, {}
        removed, self._removed = self._removed, {}
        must_ask_again = False
        for key in self._followed if is_full else changed:
            position = position_of(key) if key in self._followed else None
            if position is None:
                if self._sent.pop(key, None) is not None:
                    forgotten.setdefault(key.topic_id, []).append(key.partition)
            elif self._sent.get(key) != position:
                self._sent[key] = position
                wanted.setdefault(key.topic_id, []).append(self._row(key, position))
            elif key in removed:
                # The partition was added again. The leader may have sent its high watermark in the meantime,
                # and would not repeat it. So this request removes the partition, and the next one adds it.
                del self._sent[key]
                forgotten.setdefault(key.topic_id, []).append(key.partition)
                self._changed[key] = None
                must_ask_again = True
        if not self._sent and not forgotten:
            return None
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._local_id, replica_epoch=broker_epoch),
            # A request that only removes partitions from the session asks for no records. If another request
            # must follow soon, the leader must not wait for records.
            max_wait_ms=self._limits.wait_max_ms if self._sent and not must_ask_again else 0,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[FetchTopic(topic_id=id, partitions=rows) for id, rows in wanted.items()],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=id, partitions=indexes) for id, indexes in forgotten.items()
            ],
        )

    def _row(self, key: PartitionKey, position: FetchPosition) -> FetchPartition:
        return FetchPartition(
            partition=key.partition,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=self._limits.max_bytes,
        )

    def accept(self, response: FetchResponse) -> bool:
        """Record a response of the leader. Returns False when the leader does not know the session. Then the
        next request contains all partitions."""
        if response.error_code is not ErrorCode.none:
            self.reset()
            return False
        self._session_id = response.session_id
        if response.session_id == NO_SESSION:
            self._epoch = INITIAL_EPOCH
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1
        return True

    def reset(self) -> None:
        """Begin a new session. The leader may have lost its state of the session, or its state may be
        different."""
        self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
