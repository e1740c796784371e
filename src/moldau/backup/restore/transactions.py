"""Fences the producers of a saved state, and ends the transactions that were open in it.

The old cluster may have used later epochs of a producer id after the cut, so the next epoch may be in use.
Therefore every transactional id gets the last possible epoch, which only markers may have. This epoch fences
the old producers of the id, and the next producer of the id gets a new producer id.

The batches that open transactions wrote after the cut are not restored. Therefore these transactions must not
be committed. The state of an ongoing transaction becomes "prepare abort", and the restored coordinator
completes the abort. If it was already decided how a transaction ends, this decision is kept and completed.

Diskless partitions are saved later than the logs of the transaction coordinators. A diskless partition may
therefore contain an open transaction that is missing in those logs. It is also possible that those logs
contain the transaction without this partition. A transaction that is open in a diskless partition is aborted
there, except if the transaction coordinator will commit this transaction. Commits that were decided after
those logs were saved are revoked (:mod:`.revoked_commits`).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from moldau.backup.restore.revoked_commits import Decision
from moldau.coordinators.diskless.calls import MarkerToWrite
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.producers import epoch_of
from moldau.coordinators.transactions.transaction import (
    EPOCH_MAX,
    NO_PRODUCER_ID,
    VERSION_WITH_BUMPS,
)
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import transactions as schema
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["abort_strays", "fence_producers"]

ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
_READ_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 19
"""The size of a batch that fences producers: half of the topic's default maximum size."""


class DecidedCommit(NamedTuple):
    """A transaction that the restored coordinator will commit."""

    partitions: frozenset[tuple[str, int]]
    """The partitions of the transaction, by topic."""
    next_epoch: int
    """The first epoch of the producer's next transaction. Batches with this epoch or a later epoch belong to
    that transaction. Since version 2 of transactions (KIP-890), it is the epoch of the markers. Before
    version 2, the next transaction has the same epoch as this transaction."""
    decision: Decision = Decision(-1, -1)
    """The position of the record that contains the decision to commit."""
    first_epoch: int = 0
    """Batches with an earlier epoch belong to an earlier transaction of the producer. Before version 2, all
    transactions may have the same epoch."""
    decided_ms: int = -1
    """The time of the decision to commit, by the clock of the transaction coordinator."""

    def includes(self, topic: str, partition_index: int, producer_epoch: int) -> bool:
        """Whether batches with this epoch in a partition belong to this transaction."""
        has_epoch = self.first_epoch <= producer_epoch < self.next_epoch
        return has_epoch and (topic, partition_index) in self.partitions


def fence_producers(log: SnapshotLog, epoch: int, now_ms: int) -> tuple[set[int], dict[int, DecidedCommit]]:
    """Append the fences and aborts to a log of ``__transaction_state``, as the leader of the log in
    ``epoch``.

    Returns the producer ids of the aborted transactions, and the transactions that the restored coordinator
    will commit, by producer id.
    """
    fences: list[Record] = []
    aborted: set[int] = set()
    committing: dict[int, DecidedCommit] = {}
    partition = log.log.topic_partition.partition
    for key, (value, version, offset) in _latest(log).items():
        # The saved next producer id is dropped, because the old cluster may also have used this id after the
        # cut, with later epochs than in the saved state.
        fenced = replace(value, producer_epoch=EPOCH_MAX, next_producer_id=NO_PRODUCER_ID)
        if value.transaction_status == ONGOING:
            aborted.add(value.producer_id)
            fenced = replace(
                fenced,
                transaction_status=PREPARE_ABORT,
                transaction_last_update_timestamp_ms=now_ms,
            )
        elif value.transaction_status == PREPARE_COMMIT:
            committing[value.producer_id] = _committing(value, Decision(partition, offset))
        fences.append(Record(0, now_ms, key, schema.RECORDS.encode_value(fenced, version)))
    for batch in _batches(fences):
        log.append_as_leader(build_batch(batch), epoch)
    return aborted, committing


def _committing(value: schema.TransactionLogValue, decision: Decision) -> DecidedCommit:
    partitions = frozenset(
        (each.topic, index) for each in value.transaction_partitions or () for index in each.partition_ids
    )
    has_bumps = value.client_transaction_version >= VERSION_WITH_BUMPS
    next_epoch = value.producer_epoch if has_bumps else EPOCH_MAX
    # If an earlier restore has fenced the producer, the epoch of its batches is no longer known.
    first_epoch = next_epoch - 1 if next_epoch < EPOCH_MAX else 0
    decided_ms = value.transaction_last_update_timestamp_ms
    return DecidedCommit(partitions, next_epoch, decision, first_epoch, decided_ms)


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    """The records in batches of about :data:`_BATCH_BYTES`. A record that is larger than this is alone in its
    batch.
    """
    batch: list[Record] = []
    size_bytes = 0
    for record in records:
        record_bytes = len(record.key or b"") + len(record.value or b"")
        if batch and size_bytes + record_bytes > _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record_bytes
    if batch:
        yield batch


class _Latest(NamedTuple):
    value: schema.TransactionLogValue
    version: int
    """The version in which the value is written."""
    offset: int


def _latest(log: SnapshotLog) -> dict[bytes, _Latest]:
    """The latest value of each transactional id."""
    found: dict[bytes, _Latest] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        content = memoryview(b"".join(log.read(offset, _READ_BYTES).views))
        for position, header in iter_headers(content):
            offset = header.last_offset + 1
            if header.is_control:
                continue
            for record in iter_records(content[position : position + header.size_bytes]):
                if record.key is None:
                    continue
                key = bytes(record.key)
                if record.value is None:
                    found.pop(key, None)
                    continue
                value = schema.RECORDS.decode_value(key, record.value)
                if isinstance(value, schema.TransactionLogValue):
                    found[key] = _Latest(value, int.from_bytes(record.value[:2]), record.offset)
    return found


async def abort_strays(
    coordinators: DisklessCoordinator,
    coordinator_ids: Iterable[int],
    committing: Mapping[int, DecidedCommit],
    marked: Container[tuple[PartitionKey, Decision]] = (),
) -> set[int]:
    """Abort the open transactions of diskless partitions, except those in ``committing``. Returns their
    producer ids.

    ``marked`` are the partitions that already have the marker of a decided commit. A transaction that is open
    in such a partition is the producer's next transaction.
    """
    aborted: set[int] = set()
    for coordinator_id in coordinator_ids:
        # The producers are read from the memory of the shard, because the coordinator's database does not
        # store them with its partitions.
        markers = await coordinators.runtime.read(
            coordinator_id,
            lambda shard, _: [
                marker for partition in shard.partitions for marker in _markers(partition, committing, marked)
            ],
        )
        if markers:
            await coordinators.end_transactions(coordinator_id, markers)
        aborted.update(marker.producer_id for marker in markers)
    return aborted


def _markers(
    partition: PartitionState,
    committing: Mapping[int, DecidedCommit],
    marked: Container[tuple[PartitionKey, Decision]],
) -> Iterator[MarkerToWrite]:
    if partition.transactions is None:
        return
    epochs: Mapping[int, int] = partition.transactions.coordinator_epochs
    for producer_id in partition.transactions.open_from:
        window, decided = partition.producers.get(producer_id), committing.get(producer_id)
        if window is None:
            continue
        place = partition.name, partition.id.partition
        is_decided = decided is not None and decided.includes(*place, epoch_of(window))
        if decided is not None and is_decided and (partition.id, decided.decision) not in marked:
            continue
        coordinator_epoch = max(0, epochs.get(producer_id, 0))
        yield MarkerToWrite(*partition.id, producer_id, epoch_of(window), coordinator_epoch, committed=False)
