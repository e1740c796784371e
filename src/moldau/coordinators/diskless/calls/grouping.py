"""Rows of partitions under their topics, as messages have them."""

from collections.abc import Iterable
from itertools import groupby
from typing import Protocol, TypeVar
from uuid import UUID


class OfPartition(Protocol):
    """A value that names its partition."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partition_index(self) -> int: ...


P = TypeVar("P", bound=OfPartition)


def by_topic(rows: Iterable[P]) -> list[tuple[UUID, list[P]]]:
    """Neighbours of one topic together: results keep the order in which was asked."""
    return [(topic_id, list(some)) for topic_id, some in groupby(rows, key=lambda row: row.topic_id)]
