"""Compares the epochs that requests to coordinators name with the epochs in the metadata."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol
from uuid import UUID

from moldau.runtime import ErrorCode, KafkaError

NO_EPOCH: Final = -1


class KnownEpochs(Protocol):
    """The epochs in a node's metadata."""

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of a broker's registration; -1 if the broker is unknown."""
        ...

    def leader_epoch(self, topic_id: UUID, partition: int) -> int:
        """The leader epoch of a partition. If the partition is unknown, the result is the highest possible
        epoch."""
        ...


class NamedEpochs(Protocol):
    """Yields a pair for each epoch that a request names: the epoch in the request, and the newest epoch in
    this node's metadata."""

    def __call__(self, request: Any, known: KnownEpochs) -> Iterable[tuple[int, int]]: ...


def no_epochs(request: Any, known: KnownEpochs) -> Iterable[tuple[int, int]]:
    """The :class:`NamedEpochs` of a request that names no epochs."""
    return ()


def epochs_of_file(request: Any, known: KnownEpochs) -> Iterator[tuple[int, int]]:
    """The epoch of the uploader in CommitFile."""
    if request.commit_number >= 0:
        yield request.broker_epoch, known.broker_epoch(request.uploader_broker_id)


def epochs_of_parts(request: Any, known: KnownEpochs) -> Iterator[tuple[int, int]]:
    """The epochs of the uploader in CommitParts."""
    for part in request.parts:
        if part.commit_number >= 0:
            yield part.broker_epoch, known.broker_epoch(request.uploader_broker_id)


def epochs_of_prunes(request: Any, known: KnownEpochs) -> Iterator[tuple[int, int]]:
    """The leader epochs that a Prune request names."""
    for topic in request.topics:
        for row in topic.partitions:
            yield row.epoch, known.leader_epoch(topic.topic_id, row.partition_index)


def check_epochs(named: Iterable[tuple[int, int]]) -> None:
    """Raise an error if a request names an epoch that is newer than the metadata of this node.

    There are two possible causes. First, the metadata of this node may be out of date; then the request
    succeeds when it is repeated later. Second, the epoch may not exist. If the coordinator stored such an
    epoch, it would refuse the requests with the real, lower epoch forever.

    Raises COORDINATOR_NOT_AVAILABLE.
    """
    for epoch, newest in named:
        if epoch > max(newest, NO_EPOCH):
            message = f"The newest epoch that this node knows is {newest}, not {epoch}."
            raise KafkaError(ErrorCode.coordinator_not_available, message)
