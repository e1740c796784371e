"""Examines the contents of a log folder. A folder that has a cluster's data must not be formatted as a new
folder."""

from typing import Final

from moldau.cluster.folders.meta_properties import FILE_NAME, FormatError
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.runtime import Disk

BOOTSTRAP_FILE_NAME: Final = "00000000000000000000-0000000000.checkpoint"
CLAIMS_FOLDER: Final = "objects/.moldau/clusters"
"""A folder inside the log folder. In it, a development node's object store stores the id of its cluster."""
_SHOWN_MAX: Final = 3
_LOG_FILES: Final = (
    ".log",
    ".deleted",
    ".checkpoint",
    "partition.metadata",
    "quorum-state",
    "durable-offset",
)


def data_in(disk: Disk, folder: str) -> list[str]:
    """Return the names of the subfolders with data that a node has written while it ran. A folder that was
    only formatted has no such subfolders.
    """
    if not disk.is_dir(folder):
        return []
    found = [
        name
        for name in disk.list(folder)
        if disk.is_dir(f"{folder}/{name}") and _has_data(disk, f"{folder}/{name}", name)
    ]
    return found + (["objects"] if claims_in(disk, folder) else [])


def _has_data(disk: Disk, path: str, name: str) -> bool:
    if "-" not in name:
        return False
    formatted = (BOOTSTRAP_FILE_NAME,) if name == CLUSTER_METADATA_FOLDER else ()
    return any(file.endswith(_LOG_FILES) and file not in formatted for file in disk.list(path))


def claims_in(disk: Disk, folder: str) -> list[str]:
    """Return the ids of the clusters that own objects in a development node's folder."""
    path = f"{folder}/{CLAIMS_FOLDER}"
    return disk.list(path) if disk.is_dir(path) else []


def check_no_data(disk: Disk, folder: str, node_id: int, cluster_id: str | None) -> None:
    """Raise :class:`FormatError` when a folder without ``meta.properties`` contains data.

    ``cluster_id`` is the id in the node's other folders, if it is known.
    """
    found = data_in(disk, folder)
    if not found:
        return
    shown = ", ".join(found[:_SHOWN_MAX])
    if len(found) > _SHOWN_MAX:
        shown += f" and {len(found) - _SHOWN_MAX} more"
    claims = claims_in(disk, folder)
    if len(claims) == 1:
        whence = f"{folder}/{CLAIMS_FOLDER} says that the cluster is {claims[0]}"
    elif cluster_id is not None:
        whence = f"the node's other folders belong to cluster {cluster_id}"
    else:
        whence = "the cluster's id is the name of the object below .moldau/clusters/ in its object store"
    raise FormatError(
        f"{folder} holds data of a cluster ({shown}), but its {FILE_NAME} is missing."
        " Nothing was changed, and it is not formatted. Put the file back, or write it anew with the lines"
        f" version=1, cluster.id=ID and node.id={node_id}: {whence}. See 'A folder without meta.properties'"
        " in docs/operations.md."
    )
