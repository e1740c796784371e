"""The states of a remote segment, and of the remote data of a deleted partition, as tables. Pure.

Names and numbers are Kafka's (``RemoteLogSegmentState``, ``RemotePartitionDeleteState``). A repeated event
for the current state is allowed, and changes nothing. The reason is that a writer repeats its event if it got
no response. The writer's successor may also repeat the event.
"""

import enum
from collections.abc import Mapping
from typing import Final

__all__ = [
    "PARTITION_DELETE_TRANSITIONS",
    "SEGMENT_TRANSITIONS",
    "IllegalTransitionError",
    "RemoteLogSegmentState",
    "RemotePartitionDeleteState",
    "check_partition_delete_move",
    "check_segment_move",
]


class RemoteLogSegmentState(enum.IntEnum):
    """The state of a segment from the first byte of its copy to the end of its deletion.

    Only ``COPY_SEGMENT_FINISHED`` segments are read. The other states matter for garbage collection.
    """

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    """The progress of removing the remote data of a deleted partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


SEGMENT_TRANSITIONS: Final[Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]]] = {
    None: frozenset({RemoteLogSegmentState.COPY_SEGMENT_STARTED}),
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: frozenset(
        {RemoteLogSegmentState.COPY_SEGMENT_FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: frozenset({RemoteLogSegmentState.DELETE_SEGMENT_STARTED}),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: frozenset({RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: frozenset(),
}
"""For each state, its possible successors. ``None`` means that the segment does not exist yet."""

PARTITION_DELETE_TRANSITIONS: Final[
    Mapping[RemotePartitionDeleteState | None, frozenset[RemotePartitionDeleteState]]
] = {
    None: frozenset({RemotePartitionDeleteState.DELETE_PARTITION_MARKED}),
    RemotePartitionDeleteState.DELETE_PARTITION_MARKED: frozenset(
        {RemotePartitionDeleteState.DELETE_PARTITION_STARTED}
    ),
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED: frozenset(
        {RemotePartitionDeleteState.DELETE_PARTITION_FINISHED}
    ),
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED: frozenset(),
}
"""For each state, its possible successors. ``None`` means that the partition is not deleted."""


class IllegalTransitionError(ValueError):
    """A change of state that is not in the tables."""


def check_segment_move(current: RemoteLogSegmentState | None, target: RemoteLogSegmentState) -> None:
    """Raise :class:`IllegalTransitionError` unless ``target`` is ``current`` or one of its successors."""
    if target is not current and target not in SEGMENT_TRANSITIONS[current]:
        raise IllegalTransitionError(f"a remote segment does not go from {_name(current)} to {target.name}")


def check_partition_delete_move(
    current: RemotePartitionDeleteState | None, target: RemotePartitionDeleteState
) -> None:
    """Raise :class:`IllegalTransitionError` unless ``target`` is ``current`` or one of its successors."""
    if target is not current and target not in PARTITION_DELETE_TRANSITIONS[current]:
        raise IllegalTransitionError(
            f"the deletion of a partition does not go from {_name(current)} to {target.name}"
        )


def _name(state: enum.IntEnum | None) -> str:
    return "nothing" if state is None else state.name
