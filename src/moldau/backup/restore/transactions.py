"""Ends the transactions that were open when a state was saved.

Their batches after the cut do not come back, so they must not be committed. An ongoing transaction is
prepared for its abort, with the next epoch of its producer: the restored coordinator completes the abort, and
the old producer is fenced. A transaction whose end was decided keeps it, and is completed. A transaction that
is open only in a diskless partition began after the logs of the transaction coordinators were read. It is
aborted in that partition.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from moldau.coordinators.diskless.calls import MarkerToWrite
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.producers import epoch_of
from moldau.coordinators.diskless.store.view import StoredPartition
from moldau.protocol.records import transactions as schema
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["abort_ongoing", "abort_strays"]

ONGOING: Final = 1
PREPARED: Final = frozenset({2, 3})
"""Kafka's numbers of the states in which the end is decided: PrepareCommit and PrepareAbort."""
PREPARE_ABORT: Final = 3
_EPOCH_MAX: Final = 2**15 - 2
_READ_BYTES: Final = 1 << 20


def abort_ongoing(log: SnapshotLog, epoch: int, now_ms: int) -> tuple[int, set[int]]:
    """Append the aborts of a log of ``__transaction_state``, as its leader of ``epoch``.

    Returns their number, and the producer ids whose transactions the restored coordinator will complete.
    """
    aborts: list[Record] = []
    ending: set[int] = set()
    for key, (value, version) in _latest(log).items():
        if value.transaction_status == ONGOING:
            value = replace(
                value,
                transaction_status=PREPARE_ABORT,
                producer_epoch=min(value.producer_epoch + 1, _EPOCH_MAX),
                transaction_last_update_timestamp_ms=now_ms,
            )
            aborts.append(Record(0, now_ms, key, schema.RECORDS.encode_value(value, version)))
        elif value.transaction_status not in PREPARED:
            continue
        ending.add(value.producer_id)
    if aborts:
        log.append_as_leader(build_batch(aborts), epoch)
    return len(aborts), ending


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
