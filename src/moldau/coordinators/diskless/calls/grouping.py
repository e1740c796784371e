"""Groups rows of partitions by topic, as messages have them."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Protocol, TypeVar
from uuid import UUID

from moldau.network.own_calls import Fields


class OfPartition(Protocol):
    """A value that belongs to one partition."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partition_index(self) -> int: ...


P = TypeVar("P", bound=OfPartition)
V = TypeVar("V")


def by_topic(rows: Iterable[P]) -> list[tuple[UUID, list[P]]]:
    """Groups adjacent items of one topic, so that results keep the order of the request."""
    return [(topic_id, list(some)) for topic_id, some in groupby(rows, key=lambda row: row.topic_id)]


def topics_of(values: Iterable[P], topic: Callable[..., Any], row: Callable[[P], Any]) -> Fields:
    """The field ``topics``: a ``topic`` message for each topic, and in it a ``row`` for each value."""
    return {
        "topics": [
            topic(topic_id=topic_id, partitions=[row(value) for value in some])
            for topic_id, some in by_topic(values)
        ]
    }


def rows_of(message: Any, value: Callable[[UUID, Any], V]) -> list[V]:
    """A value for each row of a message whose ``topics`` have ``partitions``."""
    return [value(topic.topic_id, row) for topic in message.topics for row in topic.partitions]
