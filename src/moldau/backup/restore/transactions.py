"""Fences the producers of a saved state, and ends the transactions that were open in it.

The old cluster may have given later epochs after the cut, so the next epoch of a producer id may be in use.
Therefore every transactional id gets the last epoch, which only markers may have: its producers are fenced,
and the next one gets a new producer id.

The batches of open transactions after the cut do not come back, so these must not be committed. An ongoing
transaction is prepared for its abort, which the restored coordinator completes. A transaction whose end was
decided keeps it, and is completed. A transaction that is open only in a diskless partition began after the
logs of the transaction coordinators were read. It is aborted in that partition.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from moldau.coordinators.diskless.calls import MarkerToWrite
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.producers import epoch_of
from moldau.coordinators.diskless.store.view import StoredPartition
from moldau.coordinators.transactions.transaction import EPOCH_MAX, NO_PRODUCER_ID
from moldau.protocol.records import transactions as schema
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["abort_strays", "fence_producers"]

ONGOING: Final = 1
PREPARED: Final = frozenset({2, 3})
"""Kafka's numbers of the states in which the end is decided: PrepareCommit and PrepareAbort."""
PREPARE_ABORT: Final = 3
_READ_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 19
"""The size of a batch of fences: half of the largest that the topic takes by default."""


def fence_producers(log: SnapshotLog, epoch: int, now_ms: int) -> tuple[int, set[int]]:
    """Append the fences and aborts to a log of ``__transaction_state``, as its leader of ``epoch``.

    Returns the number of aborts, and the producer ids whose transactions the restored coordinator will
    complete.
    """
    fences: list[Record] = []
    aborts = 0
    ending: set[int] = set()
    for key, (value, version) in _latest(log).items():
        # A next id may be in use as well, with later epochs than the saved state knows.
        fenced = replace(value, producer_epoch=EPOCH_MAX, next_producer_id=NO_PRODUCER_ID)
        if value.transaction_status == ONGOING:
            aborts += 1
            fenced = replace(
                fenced,
                transaction_status=PREPARE_ABORT,
                transaction_last_update_timestamp_ms=now_ms,
            )
        if fenced.transaction_status in PREPARED:
            ending.add(value.producer_id)
        fences.append(Record(0, now_ms, key, schema.RECORDS.encode_value(fenced, version)))
    for batch in _batches(fences):
        log.append_as_leader(build_batch(batch), epoch)
    return aborts, ending


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    """The records in batches of about :data:`_BATCH_BYTES`, or of one record that is larger."""
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


def _latest(log: SnapshotLog) -> dict[bytes, tuple[schema.TransactionLogValue, int]]:
    """The latest value of each transactional id, with the version in which it is written."""
    found: dict[bytes, tuple[schema.TransactionLogValue, int]] = {}
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
                    found[key] = value, int.from_bytes(record.value[:2])
    return found


async def abort_strays(
    coordinators: DisklessCoordinator, coordinator_ids: Iterable[int], ending: set[int]
) -> int:
    """Abort the open transactions of diskless partitions whose producers are not in ``ending``."""
    count = 0
    for coordinator_id in coordinator_ids:
        led = coordinators.led(coordinator_id)
        assert led is not None
        markers = [
            marker
            for partition in led.store.view
            if partition.transactions is not None
            for marker in _markers(partition, ending)
        ]
        if markers:
            await coordinators.end_transactions(coordinator_id, markers)
        count += len(markers)
    return count


def _markers(partition: StoredPartition, ending: set[int]) -> Iterator[MarkerToWrite]:
    assert partition.transactions is not None
    epochs: Mapping[int, int] = partition.transactions.coordinator_epochs
    for producer_id in partition.transactions.open_from:
        window = partition.producers.get(producer_id)
        if producer_id not in ending and window is not None:
            yield MarkerToWrite(
                *partition.id,
                producer_id,
                epoch_of(window),
                max(0, epochs.get(producer_id, 0)),
                committed=False,
            )
