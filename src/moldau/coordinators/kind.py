"""The description of a kind of coordinator: everything that the runtime needs in order to lead its
partitions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from moldau.cluster.internal_topics import StateTopic
from moldau.coordinators.log import CoordinatorLog, PartitionCoordinatorLog
from moldau.coordinators.shard import RecordCodec, RunReplay, Shard, ShardStore
from moldau.records.compression import Compression
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import ErrorCode, KafkaError

R = TypeVar("R")
S = TypeVar("S", bound=Shard[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """The rules for a coordinator's log: how records are appended, and how the log is loaded."""

    compression: Compression = Compression.NONE
    skips_broken: bool = False
    """Whether a load skips unreadable records and continues. This is allowed only if the records of the log
    are independent of each other."""
    skips_damaged: bool = True
    """Whether ``skips_broken`` also applies to batches with a wrong checksum. The value must be False for a
    log whose records contain decisions that must not be lost, for example the decision to commit a
    transaction."""
    commit_timeout_ms: int = 5000
    """Time for which a write waits for the high watermark."""


class Term(NamedTuple):
    """One term of leadership over a partition of the coordinators' topic: this node leads the partition
    during one leader epoch."""

    partition: int
    epoch: int
    log: CoordinatorLog


def no_keys(key: str, partition_count: int) -> int:
    """The ``partition_of`` of a kind that does not find its coordinators by keys. It always raises an
    error."""
    raise KafkaError(ErrorCode.invalid_request, "coordinators of this kind have no keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorKind(Generic[S, R]):
    """A kind of coordinator. Each partition of ``topic`` is one coordinator: a shard whose log is this
    partition."""

    topic: StateTopic
    new_shard: Callable[[int], S]
    """Creates the empty shard of a partition."""
    codec: RecordCodec[R]
    open_log: Callable[[ClassicPartition], CoordinatorLog] = PartitionCoordinatorLog
    """Returns the log of a coordinator. The argument is the partition that contains the log."""
    new_store: Callable[[Term], ShardStore] | None = None
    """Creates the store that keeps the state of a shard, for kinds that have a store."""
    run_replay: Callable[[S], RunReplay] | None = None
    """Returns the faster replay of a shard, for kinds without a store that have one."""
    policy: LogPolicy = LogPolicy()
    key_type: int | None = None
    """The key type of FindCoordinator; ``None`` for a kind that clients cannot look up."""
    partition_of: Callable[[str, int], int] = no_keys
    """Returns the number of the partition to which a key belongs. The second argument is the number of
    partitions. Raises INVALID_REQUEST."""
