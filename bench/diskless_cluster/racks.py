"""*racks*: a consumer in each rack reads all records at the end of the topic, while producers write.

The part counts the bytes that pass between racks, the GETs for each object in each rack, and the commit calls
for each object. It compares the calls with the maximum that ``moldau diskless coordinators`` shows.
"""

import pathlib
import threading
from collections.abc import Mapping
from typing import Final

from bench.cluster.replication import Brokers, running
from bench.diskless_cluster.leadership import spread_coordinators
from bench.diskless_cluster.nodes import (
    FETCH_REQUESTS,
    RACKS,
    STORE_REQUESTS,
    UPLOADS,
    RackNodes,
    client_id,
    growth,
)
from bench.diskless_cluster.sizes import PARTITIONS, RECORD_SIZE, Sizes
from bench.loads.rdkafka import DrainingConsumer
from bench.measuring.measure import measure
from bench.measuring.plan import topic
from bench.measuring.report import Report, megabytes, rounded

CROSS_RACK: Final = (
    "moldau_diskless_RackTraffic_CrossRackBytesInPerSec_total",
    "moldau_diskless_RackTraffic_CrossRackBytesOutPerSec_total",
)
REQUESTS: Final = "kafka_network_RequestMetrics_RequestsPerSec_total"
COMMIT_APIS: Final = ('request="11642"', 'request="11673"')
"""DisklessCommitFile and DisklessCommitParts. Only calls over the network are counted."""
LIMIT_S: Final = 300.0
RATE: Final = 60_000
"""Records per second that the consumers can follow. If they fall behind, objects may have left the memory
before all their batches were read."""
Meters = Mapping[int, Mapping[str, float]]


class TailReader(threading.Thread):
    """A consumer in a rack. It reads all records of a new topic as soon as they are there."""

    def __init__(self, nodes: RackNodes, name: str, rack: str, records: int) -> None:
        super().__init__(daemon=True)
        settings = {"client.id": client_id(rack), "client.rack": rack, "fetch.wait.max.ms": "500"}
        self._consumer = DrainingConsumer(nodes.bootstrap, name, settings)
        self._records = records
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._consumer.drain(PARTITIONS, self._records, LIMIT_S)
        except RuntimeError as error:
            self._error = error
        self._consumer.close()

    def finish(self) -> None:
        """Wait for all records. Raises ``RuntimeError`` if they do not arrive."""
        self.join()
        if self._error is not None:
            raise self._error


def measure_racks(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    """Measure producers of one rack after the other, and then producers of all racks."""
    with running(RackNodes(folder / "racks")) as nodes:
        assert isinstance(nodes, RackNodes)
        spread_coordinators(nodes)
        predicted = nodes.coordinators()[0]["calls"]
        everywhere = tuple(RACKS.values())
        for writers, rate in (
            *(((rack,), None) for rack in everywhere),
            (everywhere, RATE),
            (everywhere, None),
        ):
            _produce_and_read(report, nodes, writers, sizes, predicted, rate)


def _produce_and_read(
    report: Report,
    nodes: RackNodes,
    writers: tuple[str, ...],
    sizes: Sizes,
    predicted: Mapping[str, int],
    rate: int | None,
) -> None:
    records = sizes.racks_bytes // RECORD_SIZE
    pace = {} if rate is None else {"rate": rate}
    with topic(Brokers(nodes), f"racks-{'-'.join(writers)}-{rate or 'all'}", PARTITIONS, len(RACKS)) as name:
        nodes.wait_until_cached()
        readers = [TailReader(nodes, name, rack, records) for rack in RACKS.values()]
        for reader in readers:
            reader.start()
        before = nodes.all_meters()
        sample = measure(
            Brokers(nodes),
            "produce_by_many",
            module="bench.loads.diskless_load",
            topic=name,
            partitions=PARTITIONS,
            record_size=RECORD_SIZE,
            records=records,
            client_ids=[client_id(rack) for rack in writers],
            **pace,
        )
        for reader in readers:
            reader.finish()
        nodes.wait_until_cached()
        after = nodes.all_meters()
    calls = max(predicted[str(broker)] for broker, rack in RACKS.items() if rack in writers)
    row = {
        "producers in rack": ", ".join(writers),
        "sent": "as fast as possible" if rate is None else f"{megabytes(rate * RECORD_SIZE)} MB/s",
        "MB/s": rounded(sample.mb_per_s),
        **_counts(before, after),
        "predicted": f"≤ {calls}",
    }
    report.add("A consumer in each of three racks reads everything", row, [sample])


def _counts(before: Meters, after: Meters) -> dict[str, float | str]:
    """Bytes between racks, and numbers of requests for each object."""
    uploads = growth(before, after, UPLOADS)
    objects = sum(uploads.values())
    gets = growth(before, after, STORE_REQUESTS, FETCH_REQUESTS)
    calls = sum(sum(growth(before, after, REQUESTS, api).values()) for api in COMMIT_APIS)
    shares = (
        f"{RACKS[broker]} {rounded(gets[broker] / max(1.0, objects - uploads[broker]))}" for broker in RACKS
    )
    return {
        "objects": round(objects),
        "bytes between racks": round(sum(sum(growth(before, after, name).values()) for name in CROSS_RACK)),
        "GETs for each object of other racks": ", ".join(shares),
        "commit calls for each object": rounded(calls / objects),
    }
