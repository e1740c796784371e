"""The effects of a shard's operation: records to append, responses to send, timers to set. Pure.

An operation returns one :class:`Effects`. Nothing is carried out before the operation ends.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, NewType, TypeAlias, TypeVar

Token = NewType("Token", int)
"""Identifies a waiting request. The runtime makes one token for each operation. A shard keeps the token while
the request waits."""

TimerKey: TypeAlias = Hashable
"""Identifies a timer of a shard. If the timer is set again, its time changes."""

R = TypeVar("R")


class Reply(NamedTuple):
    """A response to a waiting request. It is sent when the decision of the operation, and all earlier
    decisions of the shard, are committed.

    But if the response is a ``KafkaError``, the request fails immediately.
    """

    token: Token
    response: Any


class SetTimer(NamedTuple):
    """Call the shard's ``on_timer`` with ``key`` after ``after_ms`` milliseconds, not earlier."""

    key: TimerKey
    after_ms: int


class CancelTimer(NamedTuple):
    """Cancel the timer ``key``, if it exists."""

    key: TimerKey


TimerChange: TypeAlias = SetTimer | CancelTimer


class BatchKind(NamedTuple):
    """Attributes with the same value for all records of a batch."""

    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False


PLAIN: Final = BatchKind()


@dataclass(frozen=True, slots=True)
class Effects(Generic[R]):
    """The result of one operation.

    ``records`` are appended in order. When ``atomic`` is set, they are appended in one batch. Records that
    are independent of each other (such as the expiry of many groups) use ``atomic=False`` and may be split.

    ``is_refusable`` means that the operation itself has changed nothing in the shard: all its changes are in
    these effects. If the records are then too large for a batch, or the log accepts no records now, the
    effects are dropped, only the requests of this operation get an error, and the shard stays valid.
    """

    records: Sequence[R] = ()
    replies: Sequence[Reply] = ()
    timers: Sequence[TimerChange] = ()
    kind: BatchKind = PLAIN
    atomic: bool = True
    is_refusable: bool = False


@dataclass(slots=True)
class Outbox(Generic[R]):
    """Collects the effects of an operation while the operation runs. The functions of the operation add their
    effects to it and do not have to return them."""

    records: list[R] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    timers: list[TimerChange] = field(default_factory=list)

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append(Reply(token, response))

    def set_timer(self, key: TimerKey, after_ms: int) -> None:
        self.timers.append(SetTimer(key, after_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        self.timers.append(CancelTimer(key))

    def effects(self, *, atomic: bool = True) -> Effects[R]:
        """All collected effects."""
        return Effects(self.records, self.replies, self.timers, atomic=atomic)


def answer(token: Token, response: Any, records: Sequence[R] = ()) -> Effects[R]:
    """The effects of a simple operation: append ``records``, then send the response to the operation's own
    request."""
    return Effects(records, (Reply(token, response),))
