"""Writes the folders of a restored node: the metadata log as a snapshot, and the saved logs.

``meta.properties`` is written last. A folder without it is not a node's folder, so an interrupted restore
leaves nothing that could be started.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from moldau.backup.cut import LogPiece
from moldau.cluster.folders.folder_contents import METADATA_FOLDER, check_no_data
from moldau.cluster.folders.initial_voters import initial_voter
from moldau.cluster.folders.meta_properties import (
    FILE_NAME,
    FormatError,
    MetaProperties,
    read_meta_properties,
)
from moldau.cluster.image.image_records import encode_record
from moldau.cluster.metadata_log import RECORDS_A_TURN
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.quorum.core.voters import Voter, VoterSet
from moldau.quorum.core.votes import ElectionState
from moldau.quorum.state_store import QuorumStateStore
from moldau.records.control import ControlRecord, KRaftVersion, RecordedVoters, VoterEndpoint, control_key
from moldau.runtime import Machine
from moldau.storage.folders.file_names import folder_of
from moldau.storage.log.config import LogConfig
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot import FileSnapshotWriter
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.storage.topic_partition import TopicPartition

__all__ = ["NodeFolder", "write_log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    """The log folder of the node that is restored."""

    path: str
    cluster_id: str
    node_id: int
    directory_id: UUID
    static_voter: Voter | None = None
    """The node itself as the only voter of ``controller.quorum.voters``."""
    standalone: VoterEndpoint | None = None
    """The address of the only voter, if the metadata log shall contain the voters (KIP-853)."""

    def check(self, machine: Machine) -> None:
        """Raise ``FormatError`` unless the folder is missing or empty."""
        if read_meta_properties(machine.disk, self.path) is not None:
            raise FormatError(f"{self.path} is formatted already; restore into a new folder.")
        check_no_data(machine.disk, self.path, self.node_id, None)

    async def write_metadata(self, machine: Machine, records: Sequence[Message], end: LogPosition) -> None:
        """Write the metadata log: a snapshot that ends at ``end``."""
        folder = f"{self.path}/{METADATA_FOLDER}"
        machine.disk.make_dirs(folder)
        writer = FileSnapshotWriter(machine, folder, end, machine.clock.now_ms())
        if self.standalone is not None:
            voters = (initial_voter(self.node_id, self.directory_id, self.standalone),)
            controls: tuple[ControlRecord, ...] = (KRaftVersion(1), RecordedVoters(voters))
            for control in controls:
                writer.append_control(control_key(control), control.encode())
        levels = (each for each in records if isinstance(each, r.FeatureLevelRecord))
        version = next(each.feature_level for each in levels if each.name == "metadata.version")
        for start in range(0, len(records), RECORDS_A_TURN):
            writer.append([encode_record(each, version) for each in records[start : start + RECORDS_A_TURN]])
        await writer.freeze()
        voters_set = VoterSet(() if self.static_voter is None else (self.static_voter,))
        QuorumStateStore(machine.disk, folder, voters_set).write(
            ElectionState(epoch=end.epoch), is_static=self.standalone is None
        )

    def finish(self, machine: Machine) -> None:
        """Write ``meta.properties``, which makes this a folder of the node."""
        properties = MetaProperties(self.cluster_id, self.node_id, self.directory_id)
        machine.disk.write_atomically(f"{self.path}/{FILE_NAME}", properties.encode())


async def write_log(
    machine: Machine,
    folder: str,
    name: TopicPartition,
    topic_id: UUID,
    pieces: AsyncIterator[tuple[LogPiece, memoryview]],
) -> SnapshotLog:
    """Write a saved log below ``folder``. Returns the open log, which the caller closes.

    Raises ``StorageError`` and ``KafkaError``.
    """
    log = SnapshotLog.open(machine, f"{folder}/{folder_of(name)}", name, LogConfig(), topic_id=topic_id)
    snapshot = None
    is_first = True
    async for piece, content in pieces:
        if piece.is_snapshot:
            snapshot_id = LogPosition(piece.end_offset, piece.epoch)
            snapshot = snapshot or log.store_snapshot(snapshot_id)
            assert snapshot is not None
            snapshot.append(content)
            continue
        if snapshot is not None:
            await snapshot.freeze()
            await log.begin_at_snapshot(snapshot.snapshot_id)
            snapshot = None
        elif is_first and piece.base_offset > 0 and log.end_offset == 0:
            await log.log.truncate_fully_and_start_at(piece.base_offset)
        is_first = False
        log.append_as_follower(content)
    if snapshot is not None:
        await snapshot.freeze()
        await log.begin_at_snapshot(snapshot.snapshot_id)
    await log.flush()
    return log
