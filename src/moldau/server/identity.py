"""The identity of this node. The node reads it from its formatted folders."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moldau.cluster.folders.folder_contents import check_no_data
from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id, new_directory_id
from moldau.cluster.folders.kafka_bootstrap import complete_kafka_format
from moldau.cluster.folders.meta_properties import (
    FILE_NAME,
    FormatError,
    MetaProperties,
    read_meta_properties,
)
from moldau.config.broker import BrokerConfig
from moldau.runtime.files.disk import Disk
from moldau.runtime.machine import Machine


@dataclass(frozen=True, slots=True)
class Identity:
    """A node of a cluster, and its log folders."""

    cluster_id: str
    node_id: int
    directories: Mapping[str, uuid.UUID]
    """Ids of the log folders, by path. Unreadable folders are not included."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Log folders that cannot be read, by path, with the reason. They are offline until the node starts
    again."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which clients connect to the node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def identify(machine: Machine, config: BrokerConfig, *, format_new: bool) -> Identity:
    """Read the folders' ``meta.properties``. With ``format_new``, format unformatted folders first.

    Raises ``FormatError`` when a folder is not formatted, or belongs to another node or cluster.
    """
    unreadable = _unreadable(machine.disk, config)
    folders = [folder for folder in config.log_dirs if folder not in unreadable]
    found = [read_meta_properties(machine.disk, folder) for folder in folders]
    known = next((properties for properties in found if properties is not None), None)
    if None in found and known is None and config.is_controller and not config.quorum_voters:
        raise FormatError(
            f"{config.metadata_log_dir} is not formatted, and without controller.quorum.voters it cannot be"
            " by itself: run `moldau storage format` with --standalone or another option that tells how the"
            " quorum begins."
        )
    if None in found and (format_new or known is not None):
        request = FormatRequest(
            cluster_id=known.cluster_id if known is not None else new_cluster_id(machine.entropy),
            node_id=config.node_id,
            log_dirs=folders,
            metadata_dir=config.metadata_log_dir,
            ignore_formatted=True,
        )
        format_storage(machine.disk, machine.entropy, request, machine.clock.now_ms())
        found = [read_meta_properties(machine.disk, folder) for folder in folders]
    for folder, one in zip(folders, found, strict=True):
        if one is None:
            check_no_data(machine.disk, folder, config.node_id, None)
    properties = [_formatted(folder, one) for folder, one in zip(folders, found, strict=True)]
    for folder, one in zip(folders, properties, strict=True):
        if one.node_id != config.node_id:
            raise FormatError(f"{folder} belongs to node {one.node_id}, but node.id is {config.node_id}.")
        if one.cluster_id != properties[0].cluster_id:
            raise FormatError(
                f"{folder} belongs to cluster {one.cluster_id}, but {folders[0]} to "
                f"{properties[0].cluster_id}."
            )
    complete_kafka_format(machine.disk, folders, config.metadata_log_dir, machine.clock.now_ms())
    directories = {
        folder: one.directory_id or _new_directory_id(machine, folder, one)
        for folder, one in zip(folders, properties, strict=True)
    }
    return Identity(properties[0].cluster_id, config.node_id, directories, unreadable)


def _unreadable(disk: Disk, config: BrokerConfig) -> dict[str, str]:
    """Return the log folders whose disks have failed, by path, with the reason. The node can run without
    these folders. Raises ``FormatError`` if the folder with the metadata log cannot be read."""
    failed = {}
    for folder in config.log_dirs:
        try:
            disk.list(folder)
            read_meta_properties(disk, folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if folder == config.metadata_log_dir:
                raise FormatError(
                    f"{folder} cannot be read: {error.strerror or error}. It holds the metadata log, without"
                    " which the node cannot start."
                ) from error
            failed[folder] = f"{error.filename or folder}: {error.strerror or error}"
    return failed


def _new_directory_id(machine: Machine, folder: str, properties: MetaProperties) -> uuid.UUID:
    """Give an id to a folder whose ``meta.properties`` has no id. An old version of Kafka wrote such a file,
    or an operator edited it."""
    directory_id = new_directory_id(machine.entropy)
    content = replace(properties, directory_id=directory_id).encode()
    machine.disk.write_atomically(f"{folder}/{FILE_NAME}", content)
    return directory_id


def _formatted(folder: str, properties: MetaProperties | None) -> MetaProperties:
    if properties is None:
        raise FormatError(f"{folder} is not formatted; run `moldau storage format` first.")
    return properties
