"""A kind of coordinator in a broker. Its entry names the kind's topic, has the access check for clients that
look up a coordinator, and has the handlers of the kind's APIs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from moldau.cluster.internal_topics import InternalTopic
from moldau.coordinators.hosted import HostedKind
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.network.context import RequestContext
from moldau.network.own_serving import CallHandlers
from moldau.network.served import Handler
from moldau.replication.classic_partition import ClassicPartition


class Leaders(Protocol):
    """The coordinators of one kind on this broker. If this broker leads a partition of the kind's topic, it
    has a coordinator for this partition.

    The methods are called once at the beginning and once at the end of each term of leadership. The caller
    ignores changes of leadership that arrive too late (``coordinators/terms.py``).
    """

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        """Begin a term of leadership. If a term with an older epoch is in progress, end it."""
        ...

    def leave(self, partition: int, epoch: int) -> None:
        """End the term of leadership, because this broker is not the leader in ``epoch`` and later epochs."""
        ...


def everybody(context: RequestContext) -> None:
    """The access check for kinds whose coordinators every principal is allowed to look up. It refuses no
    request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """The lookup of a kind's coordinators by FindCoordinator."""

    key_type: int
    partition_of: Callable[[str, int], int]
    """Returns the number of the partition to which a key belongs. The second argument is the number of
    partitions. Raises INVALID_REQUEST if the key is not valid."""
    check: Callable[[RequestContext], None] = everybody
    """Raises an authorization error if the principal of the request is not allowed to look up the
    coordinators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEntry:
    """A kind of coordinator. Each partition of ``topic`` that this broker leads is a coordinator."""

    topic: InternalTopic
    leaders: Leaders
    runtime: CoordinatorRuntime[Any, Any] | None = None
    """The runtime of a kind whose coordinators have shards."""
    on_change: Callable[[int], None] | None = None
    """A callback, which gets the number of a partition after the term of its coordinator has begun or
    ended."""
    until_loaded: Callable[[], Awaitable[None]] | None = None
    """A function that waits until the loads in progress have ended. ``None`` means that the start of the node
    does not wait for loads."""
    lookup: KeyLookup | None = None
    """The lookup of the coordinators; ``None`` if clients cannot look them up."""
    handlers: Mapping[int, Handler] = field(default_factory=dict)
    """Kafka's APIs that the coordinators answer."""
    calls: Sequence[CallHandlers] = ()
    """Our own calls that the coordinators answer."""

    def begin(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead the coordinator from ``epoch`` on."""
        self.leaders.lead(partition, epoch)
        self._changed(partition.key.partition)

    def end(self, partition: int, epoch: int) -> None:
        """Stop leading the coordinator from ``epoch`` on."""
        self.leaders.leave(partition, epoch)
        self._changed(partition)

    def _changed(self, partition: int) -> None:
        if self.on_change is not None:
            self.on_change(partition)


def entry_of(kind: HostedKind) -> CoordinatorEntry:
    """Return the entry of a kind whose coordinators have shards."""
    declared = kind.runtime.kind
    lookup = None
    if declared.key_type is not None:
        lookup = KeyLookup(
            key_type=declared.key_type, partition_of=declared.partition_of, check=kind.check_lookup
        )
    return CoordinatorEntry(
        topic=kind.topic,
        leaders=kind.runtime,
        runtime=kind.runtime,
        on_change=kind.on_change,
        until_loaded=kind.runtime.until_all_loaded if kind.start_waits else None,
        lookup=lookup,
        handlers=kind.handlers(),
        calls=kind.calls(),
    )
