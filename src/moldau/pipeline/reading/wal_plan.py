"""Sorts batches for reading, so that an object is usually requested only once. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from moldau.coordinators.diskless.calls import BatchCoordinate


class _BatchesInObject(NamedTuple):
    """The batches of a partition in one object."""

    object_key: str
    batches: list[BatchCoordinate]


def in_object_order(partitions: Sequence[Sequence[BatchCoordinate]]) -> list[BatchCoordinate]:
    """All batches in a new order: the batches of an object are together, and the offsets of each partition
    ascend.

    All partitions of one coordinator refer to their objects in the order of the commits. If the orders of two
    partitions still contradict each other, an object occurs more than once.
    """
    queues = [deque(_runs(batches)) for batches in partitions]
    waiting: dict[str, int] = {}
    for queue in queues:
        for run in queue:
            waiting[run.object_key] = waiting.get(run.object_key, 0) + 1
    heads: dict[str, list[int]] = {}
    ready: deque[str] = deque()

    def advance(index: int) -> None:
        if queues[index]:
            key = queues[index][0].object_key
            at_head = heads.setdefault(key, [])
            at_head.append(index)
            if len(at_head) == waiting[key]:
                ready.append(key)

    for index in range(len(queues)):
        advance(index)
    ordered: list[BatchCoordinate] = []
    while heads:
        key = ready.popleft() if ready else next(iter(heads))
        indexes = heads.pop(key)
        waiting[key] -= len(indexes)
        for index in indexes:
            ordered += queues[index].popleft().batches
        for index in indexes:
            advance(index)
    return ordered


def _runs(batches: Sequence[BatchCoordinate]) -> list[_BatchesInObject]:
    runs: list[_BatchesInObject] = []
    for batch in batches:
        if not runs or runs[-1].object_key != batch.object_key:
            runs.append(_BatchesInObject(batch.object_key, []))
        runs[-1].batches.append(batch)
    return runs


def is_dense(batches: Sequence[BatchCoordinate], offset: int) -> bool:
    """Whether the batches have no gap from ``offset`` to the end of the last batch. Usually a diskless
    partition has no gaps."""
    if batches and batches[0].base_offset <= offset:
        offset = batches[0].base_offset
    for batch in batches:
        if batch.base_offset != offset:
            return False
        offset = batch.last_offset + 1
    return True
