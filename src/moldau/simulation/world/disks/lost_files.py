"""Files that may get lost while the node is down, because the node can rebuild them."""

from collections.abc import Iterator, Sequence

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.host import Host
from moldau.simulation.world.process import Process

DATA = "/data"
REMOTE_CACHES = ("remote-log-metadata", "remote-log-index-cache")


def lose_folders(host: Host, topics: Sequence[str]) -> None:
    """Delete the folders of these topics' partitions, durably."""
    disk = host.disk.mount(Process("operator"))
    for folder in _folders(disk, topics):
        disk.remove_tree(f"{DATA}/{folder}")
    disk.sync_dir(DATA)


def lose_databases(host: Host) -> None:
    """Delete the coordinators' SQLite files and the caches of the remote tier, durably."""
    disk = host.disk.mount(Process("operator"))
    for cache in REMOTE_CACHES:
        disk.remove_tree(f"{DATA}/{cache}")
    if disk.exists(DATA):
        disk.sync_dir(DATA)
    for folder in _folders(disk, [DISKLESS_METADATA_TOPIC]):
        for name in disk.list(f"{DATA}/{folder}"):
            if ".sqlite" in name:
                disk.remove(f"{DATA}/{folder}/{name}")
        disk.sync_dir(f"{DATA}/{folder}")


def _folders(disk: MountedDisk, topics: Sequence[str]) -> Iterator[str]:
    if disk.exists(DATA):
        for name in disk.list(DATA):
            if name.rpartition("-")[0] in topics and disk.is_dir(f"{DATA}/{name}"):
                yield name
