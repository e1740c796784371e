"""Kinds of partitions: implementations of the partition interface, and the topics that use them."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from moldau.cluster.image.topics_image import Topic
from moldau.replication.partition import Partition, StopReason
from moldau.storage.log.config import LogConfig


class PartitionKind(Protocol):
    """Manages a broker's partitions of one kind (classic, diskless)."""

    def log_config(self, topic: Topic) -> LogConfig | None:
        """The log configuration of its partitions; None where they have no log."""
        ...

    def open(self, topic: Topic, index: int) -> Partition:
        """Open a partition, whose log exists. Raises ``KafkaError``."""
        ...

    def take_role(self, partition: Partition, topic: Topic, taken: Callable[[], None]) -> None:
        """Lead or follow, as the topic's metadata says; ``taken`` is called when the partition does so.

        This is immediate, or happens after a truncation of the log that is in progress. ``taken`` is not
        called if the partition gets another role, or is closed, before that.
        """
        ...

    def reconfigure(self, partition: Partition) -> None:
        """The topic's or the broker's configuration has changed."""
        ...

    def close(self, partition: Partition, reason: StopReason) -> None:
        """Stop serving a partition, and delete the data according to ``reason``."""
        ...


P = TypeVar("P", contravariant=True)

StandIns = Callable[[Topic, int], Partition | None]
"""Finds the stand-in for a partition of the metadata that has no replica on this broker."""


def _any_topic(topic: Topic) -> bool:
    return True


class ReaderHooks(Protocol[P]):
    """Is told of partitions of its kind that are read here without a replica."""

    def reader_opened(self, partition: P, /) -> None: ...

    def reader_closed(self, partition: P, /) -> None: ...


class KindClaim(NamedTuple):
    """A kind and the topics that are its own."""

    kind: PartitionKind
    is_for: Callable[[Topic], bool] = _any_topic
    stand_in: StandIns | None = None
    """For kinds whose partitions take requests on brokers without a replica, too."""
    wraps: PartitionKind | None = None
    """The kind that this one wraps; it claims only topics of that kind."""
    reader_hooks: ReaderHooks[Any] | None = None
    """For kinds around one whose partitions are read without a replica."""


class PartitionKinds:
    """The kinds of a broker. The last claim on a topic counts: a kind may claim topics of an earlier one.

    Filled while the broker's subsystems are made, before the first partition is opened.
    """

    def __init__(self) -> None:
        self._claims: list[KindClaim] = []

    def add(self, claims: Iterable[KindClaim]) -> None:
        self._claims += claims

    def of(self, topic: Topic) -> PartitionKind:
        """The kind of a topic. The first claim, of classic partitions, is on all of them."""
        return self._claim_on(topic).kind

    def reader_hooks(self, topic: Topic) -> ReaderHooks[Any] | None:
        """The hooks of the topic's kind; None for most kinds."""
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
        """The stand-in of a partition that has no replica here; None for most kinds.

        A kind that wraps another one need not name the other's again.
        """
        for claim in reversed(self._claims):
            if claim.stand_in is not None and claim.is_for(topic):
                found: Partition | None = claim.stand_in(topic, index)
                return found
        return None
