"""A kind of coordinator in a broker: creation of its topic, permission to find it, its APIs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.network.context import RequestContext
from moldau.replication.classic import ClassicPartition
from moldau.server.requests.served import Handler
from moldau.server.topics.topic_creation import InternalTopic


class Leaders(Protocol):
    """The coordinators of one kind: one for each partition of the topic that this broker leads.

    Each term begins once and ends once; late changes were filtered out before (``coordinators/terms.py``).
    """

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """A term begins; one of an older epoch ends with it."""
        ...

    def leave(self, partition: int, epoch: int) -> None:
        """The term is over, as of ``epoch``."""
        ...


def everybody(context: RequestContext) -> None:
    """The check of a kind whose coordinators are no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """The lookup of a kind's coordinators by FindCoordinator."""

    key_type: int
    partition_of: Callable[[str, int], int]
    """The partition of a key, given the number of partitions. Raises INVALID_REQUEST."""
    check: Callable[[RequestContext], None] = everybody
    """Raises an authorization error for a principal that may not find the coordinators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEntry:
    """One kind: each partition of ``topic`` that this broker leads is a coordinator."""

    topic: InternalTopic
    leaders: Leaders
    on_change: Callable[[int], None] | None = None
    """Called with a partition after its term has begun or ended."""
    until_loaded: Callable[[], Awaitable[None]] | None = None
    """Returns when the loads in progress have ended; ``None`` where a start does not wait for them."""
    lookup: KeyLookup | None = None
    """``None`` for coordinators that clients cannot look up."""
    handlers: Mapping[int, Handler] = field(default_factory=dict)
    """The APIs that the coordinators answer."""

    def begin(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead a coordinator from ``epoch`` on."""
        self.leaders.lead(partition, epoch)
        self._changed(partition.key.partition)

    def end(self, partition: int, epoch: int) -> None:
        """From ``epoch`` on this broker does not lead a coordinator."""
        self.leaders.leave(partition, epoch)
        self._changed(partition)

    def _changed(self, partition: int) -> None:
        if self.on_change is not None:
            self.on_change(partition)


def entry_of(
    runtime: CoordinatorRuntime[Any, Any],
    topic: InternalTopic,
    handlers: Mapping[int, Handler],
    *,
    check: Callable[[RequestContext], None] = everybody,
    on_change: Callable[[int], None] | None = None,
    start_waits: bool = False,
) -> CoordinatorEntry:
    """The entry of a kind that is declared by a ``CoordinatorKind``, from which the other fields are derived.

    ``topic`` is how the kind's topic is made. ``start_waits``: the node is ready when the coordinators are
    loaded.
    """
    kind = runtime.kind
    if topic.name != kind.topic.name:
        raise ValueError(f"coordinators of {kind.topic.name} cannot stand on {topic.name}")
    lookup = None
    if kind.key_type is not None:
        lookup = KeyLookup(key_type=kind.key_type, partition_of=kind.partition_of, check=check)
    return CoordinatorEntry(
        topic=topic,
        leaders=runtime,
        on_change=on_change,
        until_loaded=runtime.until_all_loaded if start_waits else None,
        lookup=lookup,
        handlers=handlers,
    )
