"""The order of each broker's commits at one coordinator. Pure.

A broker has several commits in progress. Each commit has a place: the epoch of the broker's registration, and
a number that grows by one. The coordinator decides number n + 1 after number n. Therefore the batches of a
producer without sequence numbers stay in order, even if a connection is lost or the coordinator moves to
another broker.

The log contains the place of each committed file. A refused commit has no record, so the leader keeps its
number only in memory. A new leader uses ``open_from``, the lowest number whose outcome the broker does not
know yet. This number shows that the earlier numbers were decided. Snapshots do not contain the places. A
coordinator that starts from a snapshot begins at ``open_from``. If a commit is repeated, the coordinator
returns the result that it remembers by object key.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from moldau.coordinators.diskless.calls import CommitFileCall, CommitPlace
from moldau.coordinators.effects import Reply, Token
from moldau.runtime import ErrorCode, KafkaError

WAITING_MAX: Final = 64
"""Maximum number of waiting commits of one broker. Brokers have fewer commits in progress."""
WAITING_MS: Final = 1_000
"""Time after which a waiting commit gets an error. The broker then repeats the commit. The responses on a
connection come in the order of its requests. A waiting commit therefore delays the responses after it. The
delays of two connections of a broker differ by much less than this time."""


class CommitTurn(Enum):
    """The position of a commit in its broker's order."""

    NOW = "now"
    LATER = "later"
    """An earlier commit of the broker is missing, so the commit must wait."""
    PAST = "past"
    """The number of the commit was decided before, or the coordinator already knows a newer epoch of this
    broker."""


class WaitingCommit(NamedTuple):
    """A commit whose predecessor is missing."""

    call: CommitFileCall
    token: Token
    since_ms: int
    """Arrival time of the commit, by a clock without jumps."""


@dataclass(slots=True)
class _Sender:
    epoch: int
    next: int
    """The number of the commit that the coordinator must decide next."""
    waiting: dict[int, WaitingCommit] = field(default_factory=dict)


class CommitOrder:
    """The places of all brokers at one coordinator."""

    def __init__(self) -> None:
        self._senders: dict[int, _Sender] = {}

    def turn(self, broker_id: int, place: CommitPlace) -> CommitTurn:
        sender = self._senders.get(broker_id)
        first = place.open_from
        if sender is not None:
            if place.broker_epoch < sender.epoch:
                return CommitTurn.PAST
            if place.broker_epoch == sender.epoch:
                first = max(first, sender.next)
        if place.number == first:
            return CommitTurn.NOW
        return CommitTurn.PAST if place.number < first else CommitTurn.LATER

    def passed(self, broker_id: int, place: CommitPlace) -> list[Reply]:
        """Record that a number was decided or refused. Returns errors for waiting commits that can never be
        decided."""
        return self._advance(broker_id, place.broker_epoch, max(place.number + 1, place.open_from))

    def heard(self, broker_id: int, place: CommitPlace) -> list[Reply]:
        """Record that the broker knows the outcomes of all numbers before ``place.open_from``. Returns errors
        for waiting commits that can never be decided."""
        return self._advance(broker_id, place.broker_epoch, place.open_from)

    def restore(self, broker_id: int, epoch: int, next_number: int) -> None:
        """Store the number of a broker's next commit, which was read from the log."""
        self._advance(broker_id, epoch, next_number)

    def _advance(self, broker_id: int, epoch: int, next_number: int) -> list[Reply]:
        sender = self._senders.get(broker_id)
        if sender is None or epoch > sender.epoch:
            left = [] if sender is None else list(sender.waiting.values())
            self._senders[broker_id] = _Sender(epoch, next_number)
            return [_refuse(waiting, "The broker has registered again.") for waiting in left]
        if epoch == sender.epoch:
            sender.next = max(sender.next, next_number)
        return []

    def wait(self, waiting: WaitingCommit, place: CommitPlace) -> list[Reply]:
        """Keep a commit until all earlier numbers are decided. If an earlier call with the same number is
        still waiting, the result contains an error for the earlier call.

        Raises COORDINATOR_NOT_AVAILABLE when too many commits of the broker wait.
        """
        sender = self._senders[waiting.call.uploader_broker_id]
        earlier = sender.waiting.get(place.number)
        if earlier is None and len(sender.waiting) >= WAITING_MAX:
            message = "Too many commits of the broker wait for an earlier one."
            raise KafkaError(ErrorCode.coordinator_not_available, message)
        sender.waiting[place.number] = waiting
        return [] if earlier is None else [_refuse(earlier, "The commit was sent again.")]

    @property
    def has_waiting(self) -> bool:
        """Whether any commit waits for an earlier commit."""
        return any(sender.waiting for sender in self._senders.values())

    def due(self) -> WaitingCommit | None:
        """A waiting commit that can be decided now. The commit with the lowest number of its broker comes
        first."""
        return next((sender.waiting[number] for sender, number in self._due()), None)

    def take_due(self) -> WaitingCommit | None:
        """Remove the commit that :meth:`due` returns."""
        return next((sender.waiting.pop(number) for sender, number in self._due()), None)

    def _due(self) -> Iterator[tuple[_Sender, int]]:
        for sender in self._senders.values():
            number = min(sender.waiting, default=None)
            if number is not None and number <= sender.next:
                yield sender, number

    def outdated(self, elapsed_ms: int) -> list[Reply]:
        """Remove commits that have waited too long. Returns errors for them."""
        replies: list[Reply] = []
        for sender in self._senders.values():
            for number, waiting in list(sender.waiting.items()):
                if elapsed_ms - waiting.since_ms >= WAITING_MS:
                    del sender.waiting[number]
                    replies.append(_refuse(waiting, "An earlier commit of the broker is missing."))
        return replies

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield each broker's id, its epoch, and the number that is decided next."""
        for broker_id, sender in self._senders.items():
            yield broker_id, sender.epoch, sender.next


def _refuse(waiting: WaitingCommit, reason: str) -> Reply:
    """Answer with an error that is not a definite refusal. The broker must not treat the commit as failed,
    because it may have sent the same commit a second time.
    """
    return Reply(waiting.token, KafkaError(ErrorCode.coordinator_not_available, reason))
