"""The data folder of ``moldau dev --brokers``: ``cluster.json``, and the data, properties and log of each
node.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.cli.errors import CommandError
from moldau.cluster.folders.folder_contents import data_in
from moldau.cluster.folders.meta_properties import FILE_NAME as META_PROPERTIES
from moldau.runtime.files.local_disk import LocalDisk
from moldau.server.development_cluster import BROKER, CONTROLLER, ClusterNode

CLUSTER_FILE: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """The cluster whose data are in a folder."""

    cluster_id: str
    brokers: int
    controllers: int


class ClusterFolder:
    """The folder of a cluster of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def known(self) -> KnownCluster | None:
        """The cluster that earlier starts created. It is None in a folder without data.

        Raises :class:`CommandError` for a single node's folder, and for a damaged ``cluster.json``.
        """
        try:
            content = json.loads((self.path / CLUSTER_FILE).read_text())
            roles = [role for node in content["nodes"] for role in node["roles"]]
            return KnownCluster(content["cluster_id"], roles.count(BROKER), roles.count(CONTROLLER))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CommandError(f"{self.path / CLUSTER_FILE} is damaged: {error}") from error
        if (self.path / META_PROPERTIES).exists() or data_in(LocalDisk(), str(self.path)):
            raise CommandError(
                f"{self.path} holds the data of a single node: start it without --brokers and --controllers,"
                " or take another folder for the cluster"
            )
        return None

    def check_counts(self, known: KnownCluster, brokers: int, controllers: int) -> None:
        """Raise :class:`CommandError` when the cluster of this folder cannot have the given numbers of
        nodes.
        """
        was = f"{self.path} holds a cluster with --brokers {known.brokers} --controllers {known.controllers}"
        if controllers != known.controllers:
            raise CommandError(f"{was}: the number of controllers cannot be changed yet")
        if brokers < known.brokers:
            raise CommandError(f"{was}: brokers can be added, but not removed, because they hold data")

    def write(self, cluster_id: str, nodes: Sequence[ClusterNode], pids: Mapping[int, int | None]) -> None:
        """Write ``cluster.json``. The pid of a stopped node is null."""
        content = {
            "cluster_id": cluster_id,
            "nodes": [self._described(node, pids.get(node.node_id)) for node in nodes],
        }
        text = json.dumps(content, indent=2) + "\n"
        LocalDisk().write_atomically(str(self.path / CLUSTER_FILE), text.encode())

    def _described(self, node: ClusterNode, pid: int | None) -> dict[str, Any]:
        return {
            "id": node.node_id,
            "roles": [node.role],
            "pid": pid,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "data": node.data,
            "config": str(self.config_of(node)),
            "log": str(self.log_of(node)),
        }

    def config_of(self, node: ClusterNode) -> Path:
        """The node's properties file."""
        return self.path / "config" / f"{node.name}.properties"

    def log_of(self, node: ClusterNode) -> Path:
        """The node's log file."""
        return self.path / "logs" / f"{node.name}.log"

    def write_config(self, node: ClusterNode, properties: Mapping[str, str]) -> None:
        """Write the node's properties file, and create the folders of its files."""
        for path in (self.config_of(node), self.log_of(node)):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={_escaped(value)}\n" for key, value in properties.items()]
        self.config_of(node).write_text("".join(lines))


def _escaped(value: str) -> str:
    """A value in the syntax of ``java.util.Properties``."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{escaped}" if escaped.startswith((" ", "\f")) else escaped


def refuse_cluster(folder: Path) -> None:
    """Raise :class:`CommandError` when a folder for a single node contains a cluster."""
    if (folder / CLUSTER_FILE).exists():
        known = ClusterFolder(folder).known()
        assert known is not None
        raise CommandError(
            f"{folder} holds a cluster of several nodes: start it with --brokers {known.brokers}"
            f" --controllers {known.controllers}, or take another folder for the single node"
        )
