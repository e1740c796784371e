"""The canonical form of a diskless coordinator's state. Two states have equal canonical forms if they have
the same content. Pure."""

from typing import Any

from moldau.coordinators.diskless.state.file_memory import FileMemory
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.shard import CanonicalState


def canonical(table: PartitionTable, files: FileMemory) -> CanonicalState:
    """Return the state in canonical form: the partitions, the producers, and the stored results of files."""
    partitions = sorted(table, key=lambda partition: partition.number)
    return CanonicalState(
        parts={
            "partitions": [_partition(partition) for partition in partitions],
            "producers": [
                (partition.number, producer_id, window)
                for partition in partitions
                for producer_id, window in sorted(partition.producers.items())
            ],
            "results": sorted((key, *remembered) for key, remembered in files.results()),
            "closed": sorted(files.closed()),
        }
    )


def _partition(partition: PartitionState) -> tuple[Any, ...]:
    transactions = partition.transactions
    return (
        partition.number,
        partition.id,
        partition.name,
        partition.log_start,
        partition.wal_start,
        partition.next,
        partition.prune_epoch,
        partition.last_prune,
        partition.remote_position,
        None
        if transactions is None
        else (sorted(transactions.open_from.items()), sorted(transactions.coordinator_epochs.items())),
    )
