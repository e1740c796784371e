"""Brokers with diskless topics, each in a rack of its own, and the meters of these brokers."""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.brokers import free_ports
from bench.cluster.nodes import BROKERS, METADATA, MoldauNodes, wait_until
from bench.partitions import Connection
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

RACKS: Final = {1: "a", 2: "b", 3: "c"}
COORDINATORS: Final = 3
COORDINATORS_TOPIC: Final = DISKLESS_METADATA_TOPIC
UPLOADS: Final = "moldau_diskless_Writer_FilesUploadedPerSec_total"
STORE_REQUESTS: Final = "moldau_objects_ObjectStorage_RequestsPerSec_total"
FETCH_REQUESTS: Final = 'operation="fetch"'
LAG: Final = "moldau_diskless_Cache_LagRecords"
PINGS: Final = 500
_METER: Final = re.compile(r"^([^#\s]\S*) (\S+)$", re.MULTILINE)


class RackNodes(MoldauNodes):
    """A controller, and brokers whose topics are diskless. All brokers use one folder as their object
    store."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        brokers: Iterable[int] = BROKERS,
        coordinators: int = COORDINATORS,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        ids = tuple(brokers)
        self._metrics_ports = dict(zip(ids, free_ports(len(ids)), strict=True))
        self.objects = folder.resolve() / "objects"
        replicas = str(min(3, len(ids)))
        diskless = {
            "offsets.topic.replication.factor": replicas,
            "auto.leader.rebalance.enable": "false",
            "diskless.system.enable": "true",
            "log.diskless.enable": "true",
            "diskless.storage.url": f"file://{self.objects}",
            "diskless.metadata.topic.num.partitions": str(coordinators),
            "diskless.metadata.topic.replication.factor": replicas,
        }
        super().__init__(
            folder, controllers=(101,), brokers=ids, properties={**diskless, **(properties or {})}
        )

    def _properties(self, node_id: int) -> dict[str, str]:
        found = super()._properties(node_id)
        if node_id in self._metrics_ports:
            found["broker.rack"] = RACKS[node_id]
            found["metrics.listener"] = f"127.0.0.1:{self._metrics_ports[node_id]}"
        return found

    def metrics_text(self, node_id: int) -> str:
        """A broker's meters in Prometheus' text format."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_ports[node_id]}/metrics") as page:
            text: str = page.read().decode()
        return text

    def meters(self, node_id: int) -> dict[str, float]:
        """The values of a broker's meters, by name and labels."""
        return {name: float(value) for name, value in _METER.findall(self.metrics_text(node_id))}

    def all_meters(self) -> dict[int, dict[str, float]]:
        return {node_id: self.meters(node_id) for node_id in self.brokers}

    def start(self, *node_ids: int) -> None:
        """Start the nodes. At the first start, wait until diskless topics can be created."""
        super().start(*node_ids)
        if not node_ids:
            self.wait_for_brokers(*self.brokers)
            wait_until(self._is_useful)

    def _is_useful(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        new = NewTopic("first", COORDINATORS, len(self.brokers))
        try:
            admin.create_topics([new])["first"].result(60)
        except KafkaException:
            return "first" in admin.list_topics(timeout=60).topics  # the first response may have been lost
        return True

    def partitions_of(self, topic: str) -> list[Any]:
        """The partitions of a topic by number, according to the first broker that responds."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        for node_id in self.brokers:
            try:
                (found,) = self.ask(node_id, METADATA, request).topics
            except (OSError, EOFError):
                continue  # the broker is down
            return sorted(found.partitions, key=lambda partition: partition.partition_index)
        return []

    def lag(self) -> float:
        """The number of committed records that are missing in the brokers' caches."""
        return sum(total(found, LAG) for found in self.all_meters().values())

    def wait_until_cached(self) -> None:
        """Wait until the caches of all brokers have all committed records."""
        wait_until(lambda: not self.lag())

    def coordinators(self) -> list[dict[str, Any]]:
        """The rows of ``moldau diskless coordinators``."""
        command = [sys.executable, "-m", "moldau", "diskless", "coordinators", "--json"]
        command += ["--bootstrap", self.bootstrap]
        found: list[dict[str, Any]] = json.loads(subprocess.check_output(command))
        return found

    def round_trip_s(self) -> float:
        """The median time of a small request to a broker without other work."""
        connection = Connection(self.address(self.brokers[0]))
        times_s = sorted(_timed_ping(connection) for _ in range(PINGS))
        connection.close()
        return times_s[len(times_s) // 2]


def _timed_ping(connection: Connection) -> float:
    start = time.perf_counter()
    connection.ping()
    return time.perf_counter() - start


def client_id(rack: str) -> str:
    """A client id that names the rack of the client."""
    return f"bench,rack={rack}"


def total(meters: Mapping[str, float], name: str, label: str = "") -> float:
    """The sum of a meter's values over all labels, or over those that contain ``label``."""
    return sum(value for key, value in meters.items() if key.partition("{")[0] == name and label in key)


def growth(
    before: Mapping[int, Mapping[str, float]],
    after: Mapping[int, Mapping[str, float]],
    name: str,
    label: str = "",
) -> dict[int, float]:
    """By how much a meter of each broker has grown."""
    return {
        node_id: total(found, name, label) - total(before[node_id], name, label)
        for node_id, found in after.items()
    }
