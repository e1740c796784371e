"""Writes the folders of restored nodes: the metadata log as a snapshot, and the saved logs.

``meta.properties`` is written last, because a node does not start with a folder that lacks this file. An
interrupted restore therefore leaves no folder that a node could use.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.backup.cut_format import LogPiece
from moldau.backup.restore.placement import NewBroker
from moldau.cluster.folders.folder_contents import data_in
from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.folders.initial_voters import initial_voter
from moldau.cluster.folders.meta_properties import (
    FILE_NAME,
    FormatError,
    MetaProperties,
    read_meta_properties,
)
from moldau.cluster.image.image_records import encode_record
from moldau.cluster.metadata_log import RECORDS_A_TURN
from moldau.coordinators.diskless.service import DATABASE_FILE
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.voters import VoterSet
from moldau.quorum.state_store import QuorumStateStore
from moldau.records.control import ControlRecord, KRaftVersion, RecordedVoters, VoterEndpoint, control_key
from moldau.runtime import Machine
from moldau.storage.folders.file_names import folder_of
from moldau.storage.log.config import LogConfig
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot import FileSnapshotWriter
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["NewCluster", "NewNode", "copy_log", "write_log"]

_COPIED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A node of the restored cluster, and its folders."""

    node_id: int
    path: str
    """The log folder that gets the metadata log and the saved logs."""
    other_paths: Sequence[str] = ()
    """The other log folders of the node. They are only formatted."""
    directory_id: UUID
    """Id of the log folder ``path``."""
    is_broker: bool = True
    rack: str | None = None
    voter: VoterEndpoint | None = None
    """The address of a controller. It is needed for a metadata log that contains the voters (KIP-853)."""

    @property
    def paths(self) -> Sequence[str]:
        return (self.path, *self.other_paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """The nodes that a restore creates. All controllers are voters and get the same metadata log."""

    cluster_id: str
    nodes: Sequence[NewNode]
    static_voters: VoterSet | None = None
    """The voters as in ``controller.quorum.voters``; ``None`` if the nodes are configured without that
    key."""

    @property
    def brokers(self) -> list[NewBroker]:
        return [
            NewBroker(each.node_id, each.directory_id, each.rack) for each in self.nodes if each.is_broker
        ]

    def path_of(self, node_id: int) -> str:
        """The folder of a node that contains its logs."""
        return next(each.path for each in self.nodes if each.node_id == node_id)

    def check(self, machine: Machine) -> None:
        """Raise ``FormatError`` unless every folder belongs to only one node, and is missing or empty."""
        used: dict[str, int] = {}
        for node in self.nodes:
            for path in node.paths:
                if path in used:
                    raise FormatError(
                        f"{path} is a log folder of node {node.node_id} and of node {used[path]}: each node"
                        " needs its own"
                    )
                used[path] = node.node_id
                if read_meta_properties(machine.disk, path) is not None:
                    raise FormatError(f"{path} is formatted already; restore into a new folder.")
                if found := data_in(machine.disk, path):
                    raise FormatError(
                        f"{path} is not empty (it holds {found[0]}): restore into a new folder, or delete"
                        " this one if it is left from a restore that did not end"
                    )

    async def write_metadata(self, machine: Machine, records: Sequence[Message], end: LogPosition) -> None:
        """Write the metadata log of every node: a snapshot that ends at ``end``."""
        voters = tuple(
            initial_voter(each.node_id, each.directory_id, each.voter)
            for each in self.nodes
            if each.voter is not None
        )
        controls: tuple[ControlRecord, ...] = (KRaftVersion(1), RecordedVoters(voters)) if voters else ()
        levels = (each for each in records if isinstance(each, r.FeatureLevelRecord))
        version = next(each.feature_level for each in levels if each.name == "metadata.version")
        for node in self.nodes:
            folder = f"{node.path}/{CLUSTER_METADATA_FOLDER}"
            machine.disk.make_dirs(folder)
            writer = FileSnapshotWriter(machine, folder, end, machine.clock.now_ms())
            for control in controls:
                writer.append_control(control_key(control), control.encode())
            for start in range(0, len(records), RECORDS_A_TURN):
                some = records[start : start + RECORDS_A_TURN]
                writer.append([encode_record(each, version) for each in some])
            await writer.freeze()
            static = VoterSet(()) if self.static_voters is None else self.static_voters
            store = QuorumStateStore(machine.disk, folder, static)
            store.write(ElectionState(epoch=end.epoch), is_static=not voters)

    def finish(self, machine: Machine) -> None:
        """Write ``meta.properties`` into every folder. From then on, nodes can start with the folders."""
        for node in self.nodes:
            for path in (*node.other_paths, node.path):
                id = node.directory_id if path == node.path else new_directory_id(machine.entropy)
                machine.disk.make_dirs(path)
                content = MetaProperties(self.cluster_id, node.node_id, id).encode()
                machine.disk.write_atomically(f"{path}/{FILE_NAME}", content)


def copy_log(machine: Machine, source: str, target: str) -> None:
    """Copy the folder of a closed log durably. The database of a coordinator is not copied. Blocking."""
    disk = machine.disk
    disk.make_dirs(target)
    for name in disk.list(source):
        if name.startswith(DATABASE_FILE):
            continue  # the database is not copied, because each replica builds its own database
        with (
            closing(disk.open(f"{source}/{name}", read_only=True)) as read,
            closing(disk.open(f"{target}/{name}", create=True)) as written,
        ):
            for position in range(0, read.size(), _COPIED_BYTES):
                written.write_at(position, [read.read_at(position, _COPIED_BYTES)])
            written.sync()
    disk.sync_dir(target)


async def write_log(
    machine: Machine,
    folder: str,
    name: TopicPartition,
    topic_id: UUID,
    pieces: AsyncIterator[tuple[LogPiece, memoryview]],
) -> SnapshotLog:
    """Write a saved log below ``folder``. Returns the open log, which the caller must close.

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
