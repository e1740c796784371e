"""Kinds of partitions. A kind has an implementation of the partition interface, and the topics that use this
implementation."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import CLASSIC
from moldau.cluster.image.topics_image import Topic
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import Partition, StopReason
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.config import LogConfig

P = TypeVar("P", bound=Partition)


class PartitionKind(Protocol[P]):
    """Manages a broker's partitions of one kind (classic, diskless). ``P`` is the class of these
    partitions."""

    def log_config(self, topic: Topic) -> LogConfig | None:
        """Return the log configuration of a topic's partitions. The result is None when the partitions of
        this kind have no log."""
        ...

    def open(self, topic: Topic, index: int) -> P:
        """Open a partition, whose log exists. Raises ``KafkaError`` if the partition cannot be opened."""
        ...

    def apply_role(self, partition: P, topic: Topic, applied: Callable[[], None]) -> None:
        """Lead or follow the partition, according to the topic's metadata. Call ``applied`` when the
        partition has its role.

        The role begins at once. If a truncation of the log is in progress, the role begins after it. If the
        partition gets another role or is closed before that, ``applied`` is not called.
        """
        ...

    def reconfigure(self, partition: P) -> None:
        """Apply a change of the topic's or the broker's configuration."""
        ...

    def close(self, partition: P, reason: StopReason) -> None:
        """Stop serving a partition, and delete the data according to ``reason``."""
        ...

    def may_suspend(self, partition: P) -> bool:
        """Whether the partition may be closed now for an exchange of its log, and opened again after that."""
        return True

    def must_exchange(self, topic: Topic, index: int) -> bool:
        """Whether the partition's log must be exchanged before the partition is opened the first time, or
        again."""
        return False

    async def exchange(self, topic: Topic, index: int) -> None:
        """Exchange the log of a closed partition. After the call, the partition may have no log. In this case
        the caller creates a log, and calls this method again if the new log must be exchanged, too. Raises
        ``KafkaError`` if the exchange fails."""
        raise KafkaError(ErrorCode.kafka_storage_error, f"{topic.name}-{index}: its log is not exchanged")

    def retire(self, topic: Topic, index: int) -> bool:
        """Handle the log of a partition that no longer has a replica on this broker. Returns False if this
        kind does nothing with the log; the caller then handles the log."""
        return False

    def coordinator_replica(self, partition: P) -> ClassicPartition | None:
        """The replica whose log a coordinator may use. It is None for a kind without such logs."""
        return None


class RefusingKind(PartitionKind[Partition]):
    """Refuses to open the partitions of topics that this broker cannot serve with its configuration."""

    def __init__(self, reason: Callable[[Topic], str]) -> None:
        """``reason`` returns the message of the refusal."""
        self._reason = reason

    def log_config(self, topic: Topic) -> None: ...

    def open(self, topic: Topic, index: int) -> Partition:
        raise KafkaError(ErrorCode.kafka_storage_error, self._reason(topic))

    def apply_role(self, partition: Partition, topic: Topic, applied: Callable[[], None]) -> None: ...

    def reconfigure(self, partition: Partition) -> None: ...

    def close(self, partition: Partition, reason: StopReason) -> None: ...


R = TypeVar("R", contravariant=True)

StandIns = Callable[[Topic, int], Partition | None]
"""Finds the *stand-in* for a partition that has no replica on this broker. A stand-in is an object that
accepts requests for such a partition."""


def _any_topic(topic: Topic) -> bool:
    return True


class ReaderHooks(Protocol[R]):
    """Callbacks for a kind whose partitions are read on this broker without a replica."""

    def reader_opened(self, partition: R, /) -> None: ...

    def reader_closed(self, partition: R, /) -> None: ...


class KindClaim(NamedTuple):
    """The declaration of a subsystem that a kind of partition serves certain topics."""

    kind: PartitionKind[Any]
    is_for: Callable[[Topic], bool] = _any_topic
    """Returns whether a topic is of this kind. If the controller's table of kinds has a row for the kind,
    this is ``is_kind_of`` of that row."""
    stand_in: StandIns | None = None
    """Finds the stand-in of a partition. A stand-in is an object that accepts requests for a partition on a
    broker without a replica. Only some kinds have stand-ins."""
    wraps: PartitionKind[Any] | None = None
    """The kind that this kind wraps. This kind then serves only topics of the wrapped kind."""
    reader_hooks: ReaderHooks[Any] | None = None
    """Callbacks for partitions that are read without a replica. Only a kind that wraps another kind has such
    callbacks."""
    gives_tier: bool = False
    """Whether this kind decides about the remote tier of the wrapped partitions. Such a kind either gives
    them a remote tier, or refuses tiered topics."""
    gives_chunks: bool = False
    """Whether this kind adds chunks to the partitions of the wrapped kind."""


class PartitionKinds:
    """The kinds of a broker. When several ``KindClaim`` objects match a topic, the one that was added last
    applies.

    The kinds are added while the broker's subsystems are made, before the first partition is opened.
    """

    def __init__(self) -> None:
        self._claims: list[KindClaim] = []

    def add(self, claims: Iterable[KindClaim]) -> None:
        self._claims += claims

    def check_complete(self, topic_kinds: Iterable[TopicKind]) -> None:
        """Raise ``ValueError`` when a kind in the controller's table has no ``KindClaim``, and when a
        ``KindClaim`` is for a kind that is not in the table. Also raise it when a kind needs a remote tier or
        chunks, and no ``KindClaim`` that wraps its partitions gives them."""
        topic_kinds = tuple(topic_kinds)
        self._check_rows(topic_kinds)
        claimed = {claim.is_for: claim.kind for claim in self._claims}
        for kind in topic_kinds:
            partitions = claimed.get(kind.is_kind_of)
            if partitions is None:
                raise ValueError(
                    f"no subsystem of the broker claims the {kind.name} topics: it contributes a KindClaim"
                    " with the is_kind_of of their row in cluster/decisions/kinds, also where they are off"
                )
            if not isinstance(partitions, RefusingKind):
                self._check_wrappers(kind, partitions)

    def _check_rows(self, topic_kinds: Sequence[TopicKind]) -> None:
        for claim in self._claims:
            kind = getattr(claim.is_for, "__self__", None)
            if isinstance(kind, TopicKind) and not any(kind is each for each in (CLASSIC, *topic_kinds)):
                raise ValueError(
                    f"{type(claim.kind).__name__} claims the {kind.name} topics, and KINDS"
                    " (cluster/decisions/kinds/table.py) has no row of this kind: the controller would create"
                    " classic topics"
                )

    def _check_wrappers(self, kind: TopicKind, partitions: PartitionKind[Any]) -> None:
        inside, wrappers = [partitions], []
        for claim in self._claims:
            if any(claim.wraps is each for each in inside):
                inside.append(claim.kind)
                wrappers.append(claim)
        if kind.has_remote_tier and not any(claim.gives_tier for claim in wrappers):
            raise ValueError(
                f"the {kind.name} topics have has_remote_tier=True, and no claim that wraps their partitions"
                " has gives_tier: their segments would never be copied"
            )
        if kind.no_chunks is None and not any(claim.gives_chunks for claim in wrappers):
            raise ValueError(
                f"the {kind.name} topics have no_chunks=None, and no claim that wraps their partitions has"
                " gives_chunks: give the reason in no_chunks"
            )

    def of(self, topic: Topic) -> PartitionKind[Any]:
        """The kind of a topic. The first ``KindClaim`` is for classic partitions, and matches all topics."""
        return self._claim_on(topic).kind

    def reader_hooks(self, topic: Topic) -> ReaderHooks[Any] | None:
        """The callbacks of the topic's kind; None for most kinds."""
        return self._claim_on(topic).reader_hooks

    def _claim_on(self, topic: Topic) -> KindClaim:
        found: KindClaim | None = None
        for claim in self._claims:
            kind = None if found is None else found.kind
            if (claim.wraps is None or claim.wraps is kind) and claim.is_for(topic):
                found = claim
        assert found is not None
        return found

    def stand_in(self, topic: Topic, index: int) -> Partition | None:
        """Return the stand-in of a partition that has no replica on this broker; None for most kinds.

        If a kind wraps another kind, it does not have to repeat the stand-in of the wrapped kind.
        """
        for claim in reversed(self._claims):
            if claim.stand_in is not None and claim.is_for(topic):
                found: Partition | None = claim.stand_in(topic, index)
                if found is not None:
                    return found
        return None
