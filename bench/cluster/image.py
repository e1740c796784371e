"""One controller with an image of many partitions: its memory, and the longest time without a response during
a snapshot.

The partitions belong to a broker that only registers and sends heartbeats, so no files are created.
"""

import threading
import time
import uuid
from typing import Final

from bench.cluster.nodes import CLUSTER_ID, ClusterNodes, Figures, wait_until
from bench.measuring.report import megabytes, rounded
from bench.partitions import CREATE_TOPICS, Connection, Pinger
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.runtime.errors import ErrorCode

REGISTRATION: Final = (62, 4)
HEARTBEAT: Final = (63, 1)
HEARTBEAT_INTERVAL_S: Final = 1.0
FEATURES: Final = {
    "metadata.version": (7, 29),
    "kraft.version": (0, 1),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "moldau.diskless.version": (0, 1),
}
PARTITIONS_A_TOPIC: Final = 1_000
SNAPSHOTS: Final = {"metadata.log.max.snapshot.interval.ms": "5000"}
"""With this interval, a snapshot follows soon after the last creation. The no-op records that an idle
controller writes are enough to trigger the snapshot."""


class SilentBroker:
    """A broker with the id 1. It is registered and unfenced while the block runs, but serves no clients."""

    def __init__(self, address: str) -> None:
        self._connection = Connection(address)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._epoch = -1

    def __enter__(self) -> "SilentBroker":
        request = BrokerRegistrationRequest(
            broker_id=1,
            cluster_id=CLUSTER_ID,
            incarnation_id=uuid.uuid4(),
            listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in FEATURES.items()
            ],
            rack=None,
            log_dirs=[uuid.uuid4()],
        )
        wait_until(lambda: self._register(request))
        wait_until(lambda: not self._beat())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _register(self, request: BrokerRegistrationRequest) -> bool:
        """Register the broker. Returns False if the controller was elected but is not active yet."""
        answer = self._connection.call(REGISTRATION, request)
        if answer.error_code is ErrorCode.not_controller:
            return False
        if answer.error_code is not ErrorCode.none:
            raise RuntimeError(f"the broker is not registered: {answer.error_code}")
        self._epoch = answer.broker_epoch
        return True

    def _beat(self) -> bool:
        """Send a heartbeat. Returns whether the broker is fenced."""
        request = BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=self._epoch, current_metadata_offset=self._epoch
        )
        return bool(self._connection.call(HEARTBEAT, request).is_fenced)

    def _run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_INTERVAL_S):
            self._beat()


def measure_image(nodes: ClusterNodes, partitions: int, idle_s: float) -> Figures:
    """Start a cluster of one controller. Returns its measurements."""
    (controller,) = nodes.controllers
    nodes.start()
    nodes.leader()
    address, folder = nodes.address(controller), nodes.metadata_folder(controller)
    with SilentBroker(address):
        time.sleep(idle_s)
        before = nodes.usage(controller).rss_bytes
        create(address, partitions)
        with Pinger(address) as pinger:
            time.sleep(idle_s)
        at_rest_s = pinger.longest_s
        known = set(folder.glob("*.checkpoint"))
        after = nodes.usage(controller).rss_bytes
        with Pinger(address) as pinger:
            wait_until(lambda: not known >= set(folder.glob("*.checkpoint")))
        size_bytes = max(path.stat().st_size for path in folder.glob("*.checkpoint"))
    return {
        "RSS, MB": megabytes(after),
        "RSS, bytes a partition": round((after - before) / partitions),
        "snapshot, MB": round(size_bytes / 1e6, 1),
        "longest silence at rest, ms": rounded(at_rest_s * 1000),
        "longest silence while a snapshot is written, ms": rounded(pinger.longest_s * 1000),
    }


def create(address: str, partitions: int) -> None:
    """Create topics of up to 1,000 partitions with one replica, one after another, on a controller."""
    connection = Connection(address)
    for first in range(0, partitions, PARTITIONS_A_TOPIC):
        count = min(PARTITIONS_A_TOPIC, partitions - first)
        topic = CreatableTopic(name=f"image-{first}", num_partitions=count, replication_factor=1)
        answer = connection.call(CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=300_000))
        if answer.topics[0].error_code is not ErrorCode.none:
            raise RuntimeError(f"not created: {answer.topics[0]}")
    connection.close()
