"""Groups entries of partitions by topic, because Kafka's messages have partitions inside topics. A *row* is
the entry of one partition."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar, overload
from uuid import UUID

from moldau.network.own_calls import Fields


class OfTopic(Protocol):
    """A value that belongs to one topic."""

    @property
    def topic_id(self) -> UUID: ...


P = TypeVar("P", bound=OfTopic)
S = TypeVar("S")
V = TypeVar("V")


def by_topic(rows: Iterable[P]) -> list[tuple[UUID, list[P]]]:
    """Groups adjacent items of one topic, so that results keep the order of the request."""
    return [(topic_id, list(some)) for topic_id, some in groupby(rows, key=lambda row: row.topic_id)]


def topics_of(values: Iterable[P], topic: Callable[..., Any], row: Callable[[P], Any]) -> Fields:
    """Make the field ``topics`` of a message. It has a ``topic`` message for each topic. This message
    contains a ``row`` for each value of the topic."""
    return {
        "topics": [
            topic(topic_id=topic_id, partitions=[row(value) for value in some])
            for topic_id, some in by_topic(values)
        ]
    }


class LateRows(Sequence[V], Generic[S, V]):
    """A sequence that does not store its values. Each time a value is read, it is computed from an element of
    ``origins``.

    The sequence is used for requests with tens of thousands of rows. With this class, the rows are not all in
    memory at the same time, and need not all be computed in one iteration of the event loop.
    """

    def __init__(self, origins: Sequence[S], value: Callable[[S], V]) -> None:
        self._origins = origins
        self._value = value

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[V]:
        return map(self._value, self._origins)

    @overload
    def __getitem__(self, index: int) -> V: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[V]: ...

    def __getitem__(self, index: int | slice) -> V | Sequence[V]:
        if isinstance(index, slice):
            return [self._value(origin) for origin in self._origins[index]]
        return self._value(self._origins[index])


def late_topics_of(values: Iterable[P], topic: Callable[..., Any], row: Callable[[P], Any]) -> Fields:
    """The topics as in :func:`topics_of`. Their messages are made only when they are encoded."""
    return {
        "topics": LateRows(
            by_topic(values), lambda one: topic(topic_id=one[0], partitions=LateRows(one[1], row))
        )
    }


def late_rows_of(message: Any, value: Callable[[UUID, Any], V]) -> Sequence[V]:
    """The rows as in :func:`rows_of`. Their values are made only when they are read."""
    rows = [(topic.topic_id, row) for topic in message.topics for row in topic.partitions]
    return LateRows(rows, lambda one: value(*one))


def distinct_partitions(topics: Sequence[Any]) -> Iterator[Any]:
    """The topics of a message. Each partition of a topic appears once."""
    rows: dict[UUID, dict[int, Any]] = {}
    for topic in topics:
        rows.setdefault(topic.topic_id, {}).update({row.partition_index: row for row in topic.partitions})
    for topic in topics:
        found = rows.pop(topic.topic_id, None)
        if found is not None:
            yield replace(topic, partitions=list(found.values()))


def rows_of(message: Any, value: Callable[[UUID, Any], V]) -> list[V]:
    """Make a value for each row of a message. The message has ``topics``, and each topic has
    ``partitions``."""
    return [value(topic.topic_id, row) for topic in message.topics for row in topic.partitions]
