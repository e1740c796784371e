"""``storage format``: makes folders ready for a node of a cluster."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.cluster.decisions.features import METADATA_VERSION_LATEST, default_features
from moldau.cluster.folders.folder_contents import (
    BOOTSTRAP_FILE_NAME,
    check_no_data,
    data_in,
)
from moldau.cluster.folders.initial_voters import initial_voter
from moldau.cluster.folders.meta_properties import (
    FILE_NAME,
    FormatError,
    MetaProperties,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
)
from moldau.cluster.image.directories import RESERVED_DIRECTORY_COUNT
from moldau.cluster.image.image import METADATA_VERSION_FEATURE
from moldau.cluster.image.image_records import encode_record
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.records.builder import build_batch
from moldau.records.control import (
    ControlRecord,
    KRaftVersion,
    RecordedVoters,
    SnapshotFooter,
    SnapshotHeader,
    VoterEndpoint,
    VotersRecordEntry,
    build_control_batch,
)
from moldau.records.record import Record
from moldau.runtime import Disk, Entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRequest:
    """Folders to format. ``metadata_dir`` is one of ``log_dirs``."""

    cluster_id: str
    node_id: int
    log_dirs: Sequence[str]
    metadata_dir: str
    ignore_formatted: bool = False
    metadata_version: int = METADATA_VERSION_LATEST
    bootstrap_records: Sequence[Message] = ()
    standalone: VoterEndpoint | None = None
    """The address of this node, if it is the only voter at first (KIP-853). Other controllers are added
    later.
    """
    initial_voters: tuple[VotersRecordEntry, ...] = ()
    """The first voters, including this node. If this list is empty, the voters are static
    (``controller.quorum.voters``), or this node gets them from the cluster later.
    """


def format_storage(disk: Disk, entropy: Entropy, request: FormatRequest, now_ms: int) -> list[str]:
    """Format the folders that are not formatted yet, and return their names.

    Raises :class:`FormatError` before anything is written if the cluster id is not valid. It also raises this
    error if a folder is already formatted (unless ``ignore_formatted``), belongs to another cluster or node,
    or contains data.
    """
    check_cluster_id(request.cluster_id)
    _check(request)
    unformatted = []
    existing_id = False
    for folder in dict.fromkeys(request.log_dirs):
        existing = read_meta_properties(disk, folder)
        if existing is None:
            unformatted.append(folder)
            continue
        if not request.ignore_formatted:
            raise FormatError(f"{folder} is already formatted; use --ignore-formatted to format the others.")
        check_belongs(existing, folder, request.cluster_id, request.node_id)
        existing_id = True
    for folder in unformatted:
        check_no_data(disk, folder, request.node_id, request.cluster_id if existing_id else None)
    if request.metadata_dir in unformatted:
        _check_new_metadata(disk, request)
    directory_ids = {folder: new_directory_id(entropy) for folder in unformatted}
    voters = request.initial_voters
    if request.standalone is not None and request.metadata_dir in unformatted:
        directory_id = directory_ids[request.metadata_dir]
        voters = (initial_voter(request.node_id, directory_id, request.standalone),)
    for voter in voters:
        if voter.voter_id == request.node_id and request.metadata_dir in unformatted:
            directory_ids[request.metadata_dir] = voter.directory_id
    for folder in unformatted:
        _make_durable_folder(disk, folder)
        if folder == request.metadata_dir:
            _write_bootstrap(disk, request, voters, now_ms)
        # This file is written last, because a folder counts as formatted when the file exists.
        properties = MetaProperties(request.cluster_id, request.node_id, directory_ids[folder])
        disk.write_atomically(f"{folder}/{FILE_NAME}", properties.encode())
    return unformatted


def _check_new_metadata(disk: Disk, request: FormatRequest) -> None:
    """Refuse to create new metadata next to old data. The new cluster would treat the old topics as deleted
    topics."""
    for folder in request.log_dirs:
        found = data_in(disk, folder)
        if found:
            raise FormatError(
                f"{request.metadata_dir} is not formatted and would get new metadata, but {folder} holds data"
                f" of a cluster ({found[0]}). Nothing was changed. Restore {request.metadata_dir}, or take"
                " that data away; see 'A folder without meta.properties' in docs/operations.md."
            )


def _make_durable_folder(disk: Disk, folder: str) -> None:
    """Create a folder and its parents, and sync them to disk."""
    missing = []
    path = folder
    while path and not disk.is_dir(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    disk.make_dirs(folder)
    for made in reversed(missing):
        disk.sync_dir(made.rpartition("/")[0] or "/")


def check_cluster_id(cluster_id: str) -> None:
    """Raise :class:`FormatError` if a text is not a cluster id (see :func:`new_cluster_id`)."""
    try:
        value = decode_uuid(cluster_id)
    except ValueError as error:
        raise FormatError(f"Cluster id {error}; make one with `moldau storage random-uuid`.") from None
    if encode_uuid(value) != cluster_id:
        raise FormatError(f"Cluster id '{cluster_id}' is not in its one form '{encode_uuid(value)}'.")


def check_belongs(properties: MetaProperties, folder: str, cluster_id: str, node_id: int) -> None:
    """Raise :class:`FormatError` when a folder belongs to another cluster or node."""
    if properties.cluster_id != cluster_id:
        raise FormatError(f"{folder} belongs to cluster {properties.cluster_id}, not to {cluster_id}.")
    if properties.node_id != node_id:
        raise FormatError(f"{folder} belongs to node {properties.node_id}, not to node {node_id}.")


def new_cluster_id(entropy: Entropy) -> str:
    """A random cluster id. It never begins with '-', because a command line would read such an id as an
    option."""
    while True:
        text = encode_uuid(entropy.uuid4())
        if not text.startswith("-"):
            return text


def new_directory_id(entropy: Entropy) -> uuid.UUID:
    """Return a random directory id that is not reserved by KIP-858."""
    while True:
        value = entropy.uuid4()
        if value.int >= RESERVED_DIRECTORY_COUNT and not encode_uuid(value).startswith("-"):
            return value


def bootstrap_snapshot(
    records: Sequence[Message],
    metadata_version: int,
    now_ms: int,
    voters: tuple[VotersRecordEntry, ...] = (),
    *,
    defaults: bool = True,
) -> bytes:
    """Return a snapshot of the metadata log that ends before the first offset of the log. It has the initial
    records of a new cluster.

    With ``voters`` it has kraft.version 1 (KIP-853). With ``defaults``, the features that no record names get
    their default levels.
    """
    control: list[ControlRecord] = [SnapshotHeader(last_contained_log_timestamp=now_ms)]
    if voters:
        control += [KRaftVersion(1), RecordedVoters(voters)]
    first = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=metadata_version)
    chosen = {record.name for record in records if isinstance(record, FeatureLevelRecord)}
    features = [
        level for level in default_features(metadata_version) if defaults and level.name not in chosen
    ]
    values = [encode_record(record, metadata_version) for record in (first, *features, *records)]
    header = build_control_batch(
        control,
        base_offset=0,
        leader_epoch=0,
        timestamp=now_ms,
    )
    data = build_batch(
        [Record(offset, now_ms, None, value, ()) for offset, value in enumerate(values, len(control))],
        base_offset=len(control),
        leader_epoch=0,
    )
    footer = build_control_batch(
        [SnapshotFooter()], base_offset=len(control) + len(values), leader_epoch=0, timestamp=now_ms
    )
    return bytes(header) + bytes(data) + bytes(footer)


def _check(request: FormatRequest) -> None:
    if request.node_id < 0:
        raise FormatError(f"Node id {request.node_id} is negative.")
    if request.metadata_dir not in request.log_dirs:
        raise FormatError(f"The metadata folder {request.metadata_dir} is not one of the log folders.")
    voter_ids = [voter.voter_id for voter in request.initial_voters]
    if voter_ids and request.node_id not in voter_ids:
        raise FormatError(f"Node {request.node_id} is not one of the initial controllers {voter_ids}.")


def _write_bootstrap(
    disk: Disk, request: FormatRequest, voters: tuple[VotersRecordEntry, ...], now_ms: int
) -> None:
    path = f"{request.metadata_dir}/{CLUSTER_METADATA_FOLDER}"
    disk.make_dirs(path)
    disk.sync_dir(request.metadata_dir)
    content = bootstrap_snapshot(request.bootstrap_records, request.metadata_version, now_ms, voters)
    disk.write_atomically(f"{path}/{BOOTSTRAP_FILE_NAME}", content)
