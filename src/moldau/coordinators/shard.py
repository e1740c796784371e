"""The interface of a kind of shard: a state machine, a codec and, for some kinds, a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from moldau.coordinators.effects import BatchKind, Effects, TimerKey
from moldau.records.batch import BatchHeader

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalState:
    """The state of a shard as plain, sorted values, for comparison with ``==``.

    Waiting requests and timers are left out, because a restart does not restore them.
    """

    parts: Mapping[str, Sequence[Any]]
    """Everything that replay creates, by the names of its parts. After a replay to the same offset, these
    values are equal on every node."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Values that replay creates, by name. Unlike ``parts``, these values may already be changed on the
    leader before the record of the change is written."""
    unwritten: frozenset[str] = frozenset()
    """The names of those values in ``named`` that have changed since their last record was written. A
    comparison must leave them out."""


class Shard(Protocol[R]):
    """The pure state of one partition. The methods that a concrete class adds are its operations.

    Rule for all shards: only :meth:`replay` and :meth:`replay_marker` change persistent state. An operation
    may change transient state (waiting requests, members that are alive), which is lost when the shard is
    closed.
    """

    def replay(self, offset: int, record: R, kind: BatchKind) -> None:
        """Apply a record of the log at ``offset``. Either the shard has just decided the record, or the
        record was read from the log during a load."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Apply the marker that ends a transaction in the shard's log."""
        ...

    def on_loaded(self, now_ms: int) -> Effects[R]:
        """Return the first effects, for example timers. Called when the whole log has been replayed, so that
        the shard can make decisions from now on."""
        ...

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[R]:
        """Handle a timer that the shard has set and whose time has come."""
        ...

    def canonical(self) -> CanonicalState:
        """Return the state in a form that can be compared. Tests of failovers and restarts compare it."""
        ...


class UnreadableRecordError(Exception):
    """The key of a record can be read, but its value cannot be read. The loader replays ``stand_in`` instead
    of the record."""

    def __init__(self, stand_in: object, reason: str) -> None:
        super().__init__(reason)
        self.stand_in = stand_in


class RecordCodec(Protocol[R]):
    """Converts between a shard's records and the keys and values of its topic."""

    def encode(self, record: R) -> tuple[bytes | None, bytes | None]:
        """Encode the record as key and value."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """Decode the record. Returns ``None`` for a record type that this version does not know and is
        allowed to skip.

        Raises :class:`UnreadableRecordError` if only the value cannot be read and ``stand_in`` can replace
        the record.
        """
        ...


class ReplayedRun(NamedTuple):
    """Consecutive records of a batch that were replayed together."""

    records_count: int
    end_position: int
    """The position after the last of the records."""
    last_offset: int
    """The offset of the last of the records."""


class RunReplay(Protocol):
    """Replays records of frequent forms faster than a codec and a shard.

    The result must be the same as if the codec decoded each of the records, and the shard replayed them.
    """

    def replay_run(
        self, header: BatchHeader, data: bytes, position: int, count_max: int
    ) -> ReplayedRun | None:
        """Replay records from ``position`` on, at most ``count_max``. ``data`` are the records of the batch
        without its header.

        Stops before the first record of another form. Returns ``None`` if this is the record at
        ``position``.
        """
        ...


class CommittedRecord(NamedTuple):
    """A record and the offset at which the log has committed it."""

    offset: int
    record: object


class ShardStore(Protocol):
    """A copy of the state outside the log (snapshots, SQLite), for shards that have one.

    The calls are made on the event loop in this order: restore, committed (any number of times), close. A
    store that works in threads has its own queue. A store never contains records above the log's high
    watermark.
    """

    async def restore(self, shard: object) -> int | None:
        """Load the store's state into ``shard``. Returns the offset from which the log must be replayed.

        Returns ``None`` when the store's content does not match the log. Replay then starts at the log's
        start.
        """
        ...

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None:
        """Accept committed records. All offsets before ``up_to_offset`` are committed. ``records`` are the
        records since the last call."""
        ...

    async def close(self) -> None:
        """Close the store. Called when this node has no coordinator or standby for the partition any more,
        and before the partition is loaded again."""
        ...
