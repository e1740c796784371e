"""The interface of a kind of shard: a state machine, a codec and, for some kinds, a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from moldau.coordinators.effects import BatchKind, Effects, TimerKey

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalState:
    """The state of a shard as plain, sorted values, for ``==``.

    Waiting requests and timers are left out, because a restart does not restore them.
    """

    parts: Mapping[str, Sequence[Any]]
    """Everything that replay creates, by the names of its parts. After a replay to the same offset the values
    are equal on every node."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Values that replay creates, by name. A shard with leadership may change these values before it writes
    them."""
    unwritten: frozenset[str] = frozenset()
    """The names of values that have changed since their last record."""


class Shard(Protocol[R]):
    """The pure state of one partition. A concrete class has its operations as further methods.

    Contract: only :meth:`replay` and :meth:`replay_marker` change persistent state. Transient state
    (waiting requests, live members) may change in an operation; it is lost with the shard.
    """

    def replay(self, offset: int, record: R, kind: BatchKind) -> None:
        """Apply a record of the log at ``offset``. It is a recent decision of this shard, or a record that
        is being loaded."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Apply the end of a transaction."""
        ...

    def on_loaded(self, now_ms: int) -> Effects[R]:
        """Start timers, because the whole log has been replayed and this node may decide."""
        ...

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[R]:
        """Handle a timer that the shard set and that is now due."""
        ...

    def canonical(self) -> CanonicalState:
        """The state in a form that can be compared, for the checks of failovers and restarts."""
        ...


class UnreadableRecordError(Exception):
    """A record with a readable key and an unreadable value. ``stand_in`` is replayed in its place."""

    def __init__(self, stand_in: object, reason: str) -> None:
        super().__init__(reason)
        self.stand_in = stand_in


class RecordCodec(Protocol[R]):
    """Converts between a shard's records and the keys and values of its topic."""

    def encode(self, record: R) -> tuple[bytes | None, bytes | None]:
        """Encode the record as key and value."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """Decode the record; ``None`` for a kind that this version does not know and can skip.

        May raise :class:`UnreadableRecordError`.
        """
        ...


class CommittedRecord(NamedTuple):
    """A record and the offset at which the log has committed it."""

    offset: int
    record: object


class ShardStore(Protocol):
    """A materialised copy of the state outside the log (snapshots, SQLite), for shards that have one.

    The calls are made on the event loop in the order restore, committed (any number of times), close. A store
    that works in threads has its own queue. The content of a store never contains records above the log's
    high watermark.
    """

    async def restore(self, shard: object) -> int | None:
        """Load the store's state into ``shard``; return the first offset to replay after it.

        Returns ``None`` when the store's content does not match the log. Replay then starts at the log's
        start.
        """
        ...

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None:
        """Accept committed records. All offsets below ``up_to_offset`` are committed. ``records`` are the
        records since the last call."""
        ...

    async def close(self) -> None:
        """Close the store. The partition has left this node, or will soon be loaded again."""
        ...
