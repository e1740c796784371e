"""Makes the logs of classic tiered topics begin after their remote segments (KIP-405).

The local records of classic topics are lost, but the records in remote segments are not lost. The log of a
restored replica is empty and begins after the last remote record. The log gets the leader epochs and
producers that were stored with the newest segment. Its log start offset is the first offset of the segments,
so all segments are readable.

A transaction may be open at the end of the newest segment. Its marker was in the lost records. Without a
marker, ``read_committed`` consumers would get the transaction's records, but no records after the segment.
Therefore the restore aborts the transaction, except if the restored coordinator will commit it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from moldau.backup.restore.open_producers import abort_marker, open_producers
from moldau.backup.restore.remote_segments import RemoteChain
from moldau.backup.restore.transactions import DecidedCommit
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header
from moldau.runtime import Machine
from moldau.storage.folders.checkpoint import write_offset_checkpoint
from moldau.storage.folders.file_names import LOG_START_OFFSETS, folder_of
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.config import LogConfig
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.restoring import fetch_auxiliary_state
from moldau.tiered.storage.storage_manager import RemoteStorageError, RemoteStorageManager

__all__ = ["TieredLog", "WrittenLogs", "write_tiered_logs"]

_CONFIG: Final = LogConfig(remote_storage_enable=True)


class TieredLog(NamedTuple):
    """A log that must be written."""

    chain: RemoteChain
    folders: Sequence[str]
    """The log folders of the replicas."""
    leader_epoch: int
    """The leader epoch of records that the restore appends."""


class WrittenLogs(NamedTuple):
    """The result of :func:`write_tiered_logs`."""

    problems: Sequence[str] = ()
    """The reasons why the state of some partitions could not be read. For these partitions only the records
    of their newest segments are restored."""
    aborted: Collection[int] = ()
    """The producers whose transactions were aborted."""


async def write_tiered_logs(
    machine: Machine,
    tier: RemoteStorageManager,
    logs: Mapping[TopicIdPartition, TieredLog],
    committing: Mapping[int, DecidedCommit],
) -> WrittenLogs:
    """Write the logs of partitions into the log folders of their replicas.

    ``committing`` has the transactions that the restored coordinators will commit, by producer id. Raises
    ``RemoteStorageError`` for an error that may be temporary.
    """
    problems: list[str] = []
    aborted: set[int] = set()
    starts: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, wanted in logs.items():
        chain = wanted.chain
        try:
            state = await fetch_auxiliary_state(tier, chain.newest, chain.start_offset)
        except RemoteStorageError as error:
            if error.transient:
                raise
            problems.append(f"earlier records of {partition.topic}-{partition.partition}: {error}")
            state = _state_behind(chain.newest)
        name = TopicPartition(partition.topic, partition.partition)
        unfinished = list(open_producers(name, state.producers, _decided_before(chain.newest, committing)))
        aborted.update(each.producer_id for each in unfinished)
        # The replicas must be equal byte for byte, so they get the same markers.
        markers = [abort_marker(each, machine.clock.now_ms()) for each in unfinished]
        for folder in wanted.folders:
            path = f"{folder}/{folder_of(name)}"
            await _write(machine, path, name, partition.topic_id, state, markers, wanted.leader_epoch)
            starts[folder][name] = state.log_start_offset
    for folder, offsets in starts.items():
        write_offset_checkpoint(machine.disk, f"{folder}/{LOG_START_OFFSETS}", offsets)
    return WrittenLogs(problems, aborted)


def _decided_before(
    segment: RemoteLogSegmentMetadata, committing: Mapping[int, DecidedCommit]
) -> dict[int, DecidedCommit]:
    """The transactions that were perhaps decided before a segment was copied. A segment is copied only after
    all transactions with records in it are decided. A later transaction therefore has no record in it."""
    copied_ms = segment.event_timestamp_ms + CoordinatorTimes().clock_skew_ms
    return {id: decided for id, decided in committing.items() if decided.decided_ms <= copied_ms}


def _state_behind(segment: RemoteLogSegmentMetadata) -> AuxiliaryState:
    """The state after a segment, if only the segment's metadata can be read: the leader epochs, and no
    producers."""
    epochs = [EpochEntry(each.epoch, each.start_offset) for each in segment.leader_epochs]
    return AuxiliaryState(segment.end_offset + 1, segment.start_offset, epochs, ())


async def _write(
    machine: Machine,
    path: str,
    name: TopicPartition,
    topic_id: UUID,
    state: AuxiliaryState,
    markers: Iterable[bytes],
    leader_epoch: int,
) -> None:
    log = PartitionLog.open(machine, path, name, _CONFIG, topic_id=topic_id)
    try:
        await log.begin_behind_remote(state)
        for marker in markers:
            batch = bytearray(marker)
            log.append_as_leader(batch, [parse_header(batch)], leader_epoch, origin=AppendOrigin.COORDINATOR)
        await log.flush()
    finally:
        log.close()
