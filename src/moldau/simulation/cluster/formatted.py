"""Folders of simulated nodes, formatted at their first start."""

from moldau.cluster.folders.formatter import FormatRequest, format_storage
from moldau.cluster.folders.meta_properties import FILE_NAME
from moldau.config.broker import BrokerConfig
from moldau.runtime import Machine


def format_folders(machine: Machine, config: BrokerConfig, cluster_id: str) -> None:
    """Format a node's folders below ``/data``. Folders that an earlier process has formatted stay as they
    are."""
    machine.disk.make_dirs("/data")  # the mount point of the disk exists before the node
    machine.disk.sync_dir("/")
    try:
        if machine.disk.exists(f"{config.metadata_log_dir}/{FILE_NAME}"):
            return  # the other folders are not read, because they may be on failed disks
    except OSError:
        return  # the node itself will report the failed folder
    request = FormatRequest(
        cluster_id=cluster_id,
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        metadata_dir=config.metadata_log_dir,
        ignore_formatted=True,
    )
    format_storage(machine.disk, machine.entropy, request, machine.clock.now_ms())
