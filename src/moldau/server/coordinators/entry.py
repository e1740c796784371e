"""A kind of coordinator as a broker serves it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from moldau.network.context import RequestContext
from moldau.replication.classic import ClassicPartition
from moldau.server.requests.dispatch import Handler
from moldau.server.topic_creation import InternalTopic

L = TypeVar("L")


def everybody(context: RequestContext) -> None:
    """The check of a kind whose coordinators are no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """How FindCoordinator finds the coordinators of a kind."""

    key_type: int
    partition_of: Callable[[str], int]
    """The partition of a key. Raises INVALID_REQUEST."""
    check: Callable[[RequestContext], None] = everybody
    """Raises an authorization error for a principal that may not know the coordinators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEntry(Generic[L]):
    """One kind: each partition of ``topic`` that this broker leads is a coordinator."""

    topic: InternalTopic
    open_log: Callable[[ClassicPartition, int], L]
    """The log of a coordinator, over a partition that is led from an epoch on."""
    load: Callable[[int, int, L], None]
    """Begins a term: partition, epoch, log."""
    unload: Callable[[int, int], None]
    """Ends a term: partition, and the epoch as of which it is over."""
    until_loaded: Callable[[], Awaitable[None]] | None = None
    """Returns when the loads that are under way have ended; ``None`` where a start does not wait for them."""
    lookup: KeyLookup | None = None
    """``None`` for coordinators that clients do not look for."""
    handlers: Mapping[int, Handler] = field(default_factory=dict)
    """The APIs that the coordinators answer."""

    def begin(self, partition: ClassicPartition, epoch: int) -> None:
        """Lead a coordinator from ``epoch`` on."""
        self.load(partition.key.partition, epoch, self.open_log(partition, epoch))
