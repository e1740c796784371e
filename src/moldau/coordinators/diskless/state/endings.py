"""Decides about the markers that end transactions. Pure."""

from collections.abc import Sequence

from moldau.coordinators.diskless.calls import EndedTransactionPart, MarkerToWrite
from moldau.coordinators.diskless.state.guards import VERSION_WITH_BUMPS
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.producers import epoch_of
from moldau.coordinators.diskless.state.records import MarkerExtent, TransactionsEnded
from moldau.coordinators.diskless.state.transactions import NO_COORDINATOR_EPOCH
from moldau.runtime import ErrorCode


def decide_markers(
    partitions: PartitionTable, markers: Sequence[MarkerToWrite], now_ms: int
) -> tuple[TransactionsEnded | None, list[EndedTransactionPart]]:
    """Decide about markers. Return the record of the accepted markers, or ``None`` if no marker was accepted.
    Also return the results in the order of the call."""
    answers: list[EndedTransactionPart] = []
    accepted: list[MarkerExtent] = []
    ends: dict[int, int] = {}
    for marker in markers:
        partition = partitions.find(marker.topic_id, marker.partition_index)
        error = _error(partition, marker)
        answers.append(EndedTransactionPart(marker.topic_id, marker.partition_index, error))
        if error is ErrorCode.none and partition is not None:
            offset = ends.get(partition.number, partition.next)
            ends[partition.number] = offset + 1
            accepted.append(
                MarkerExtent(
                    marker.topic_id,
                    marker.partition_index,
                    offset,
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.coordinator_epoch,
                    marker.committed,
                    marker.decision_partition,
                    marker.decision_offset,
                )
            )
    return (TransactionsEnded(now_ms, tuple(accepted)) if accepted else None), answers


def _error(partition: PartitionState | None, marker: MarkerToWrite) -> ErrorCode:
    """Check a marker by the rules for the leader of a classic partition. A marker without an open transaction
    is accepted, and fences the producer."""
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    producer_id, epoch = marker.producer_id, marker.producer_epoch
    if producer_id < 0 or epoch < 0:
        return ErrorCode.invalid_request
    window = partition.producers.get(producer_id)
    if window is not None and epoch < epoch_of(window):
        return ErrorCode.invalid_producer_epoch
    if partition.transactions is not None:
        known = partition.transactions.coordinator_epochs.get(producer_id, NO_COORDINATOR_EPOCH)
        if marker.coordinator_epoch < known:
            return ErrorCode.transaction_coordinator_fenced
    is_of_next = partition.is_in_transaction(producer_id) and window is not None and epoch == epoch_of(window)
    if marker.transaction_version >= VERSION_WITH_BUMPS and is_of_next:
        # This is a late copy of a marker that was already written. The first copy has raised the producer's
        # epoch, and the producer's next transaction is now open with this epoch. The late copy must not end
        # the next transaction.
        return ErrorCode.invalid_producer_epoch
    return ErrorCode.none
