"""The order in which a restore commits WAL objects. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from moldau.diskless.wal import WalObject

__all__ = ["HasFooter", "in_commit_order"]


class HasFooter(Protocol):
    """A WAL object whose footer was read."""

    @property
    def footer(self) -> WalObject: ...


F = TypeVar("F", bound=HasFooter)


class _Stream(NamedTuple):
    """The batches of an idempotent producer in a partition. Their positions are ascending."""

    topic_id: UUID
    partition: int
    producer_id: int


class _CommitPosition(NamedTuple):
    """The place of a batch in a stream. Sequences begin again at 0 when the producer increases its epoch."""

    producer_epoch: int
    sequence: int


def in_commit_order(found: Sequence[F]) -> list[F]:
    """Return the objects in their given order, with one exception: an object comes after all objects with
    earlier batches of the same idempotent producers.

    The given order follows the clocks of the brokers. A producer may move to a broker whose clock is slow.
    Its later batches are then in an object with an earlier time. Those batches would be refused if they were
    committed before the producer's earlier batches. If the sequence of a producer continues at 0 after its
    maximum, the order of its batches is not recognized.
    """
    needs = [_first_positions(each.footer) for each in found]
    waiting: dict[_Stream, list[_CommitPosition]] = defaultdict(list)
    for streams in needs:
        for stream, position in streams.items():
            waiting[stream].append(position)
    for positions in waiting.values():
        positions.sort(reverse=True)
    ordered: list[F] = []
    left = list(range(len(found)))
    while left:
        deferred: list[int] = []
        for number in left:
            streams = needs[number]
            if all(position <= waiting[stream][-1] for stream, position in streams.items()):
                ordered.append(found[number])
                _leave(waiting, streams)
            else:
                deferred.append(number)
        if len(deferred) == len(left):
            # Each remaining object would have to come after another remaining object. No order satisfies this
            # condition, so the first object in the given order comes next.
            first = deferred.pop(0)
            ordered.append(found[first])
            _leave(waiting, needs[first])
        left = deferred
    return ordered


def _first_positions(footer: WalObject) -> dict[_Stream, _CommitPosition]:
    """The first position of each idempotent producer in an object."""
    first: dict[_Stream, _CommitPosition] = {}
    for batch in footer.batches():
        if batch.producer_id >= 0 and batch.base_sequence >= 0:
            stream = _Stream(batch.topic_id, batch.partition_index, batch.producer_id)
            position = _CommitPosition(batch.producer_epoch, batch.base_sequence)
            first[stream] = min(position, first.get(stream, position))
    return first


def _leave(
    waiting: Mapping[_Stream, list[_CommitPosition]], streams: Mapping[_Stream, _CommitPosition]
) -> None:
    for stream, position in streams.items():
        waiting[stream].remove(position)
