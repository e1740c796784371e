"""Aborts transactions that are open at the end of a classic log and get no marker after the restore.

The committed offsets are saved before the logs of the transaction coordinators. A transaction may end between
these two moments. Then its offsets are pending in the saved log of ``__consumer_offsets``, but in the saved
log of the transaction coordinator the transaction has ended. The coordinator therefore writes no marker for
these offsets. Without an abort, the offsets would stay pending, and no member of the group would get an
offset for their partitions again (UNSTABLE_OFFSET_COMMIT).
"""

from collections.abc import Iterable, Iterator, Mapping

from moldau.backup.restore.transactions import DecidedCommit
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header
from moldau.records.control import build_end_transaction_marker
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.producers.producer_state import ProducerEntry
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["abort_marker", "abort_pending_offsets", "open_producers"]


def open_producers(
    name: TopicPartition, producers: Iterable[ProducerEntry], committing: Mapping[int, DecidedCommit]
) -> Iterator[ProducerEntry]:
    """The producers with a transaction that is open at the end of a log and will not be committed, in the
    order of the transactions."""
    found = [each for each in producers if each.current_txn_first_offset is not None]
    for each in sorted(found, key=lambda each: each.current_txn_first_offset or 0):
        decided = committing.get(each.producer_id)
        if decided is None or not decided.includes(name.topic, name.partition, each.producer_epoch):
            yield each


def abort_marker(producer: ProducerEntry, now_ms: int) -> bytes:
    """The batch that aborts the open transaction of a producer."""
    return build_end_transaction_marker(
        producer.producer_id,
        producer.producer_epoch,
        committed=False,
        coordinator_epoch=max(0, producer.coordinator_epoch),
        timestamp=now_ms,
    )


def abort_pending_offsets(log: SnapshotLog, committing: Mapping[int, DecidedCommit], now_ms: int) -> None:
    """Abort the pending offsets in a log of ``__consumer_offsets``, except those that the restored
    coordinators will commit."""
    epoch = log.last_epoch + 1
    aborted = list(open_producers(log.log.topic_partition, log.log.producers.state, committing))
    if aborted:
        log.initialize_epoch(epoch)
    for each in aborted:
        marker = bytearray(abort_marker(each, now_ms))
        log.log.append_as_leader(marker, [parse_header(marker)], epoch, origin=AppendOrigin.COORDINATOR)
