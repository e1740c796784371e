"""*latency*: acknowledgements and end-to-end latency at 1,000 records a second, with the latency of S3.

The producer is in one rack. The consumer is in the same rack or in another rack, whose broker must read the
objects from the store.
"""

import pathlib
from typing import Final

from bench.cluster.replication import Brokers, running
from bench.diskless import COMMIT_INTERVAL_MS, p50_ms, upload_times_of
from bench.diskless_cluster.leadership import spread_coordinators
from bench.diskless_cluster.nodes import RackNodes, client_id
from bench.diskless_cluster.sizes import RECORD_SIZE, Sizes
from bench.measuring.measure import measure
from bench.measuring.plan import topic
from bench.measuring.report import Report, rounded

RATE: Final = 1_000
PRODUCER_RACK: Final = "a"
S3: Final = {"diskless.storage.class.name": "moldau.objects.open_with_latency"}
EARLY_CLOSE: Final = {"on": "8", "off": "0"}
"""The limits of PUTs a second that close objects early."""


def measure_latency(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    for early_close, puts in EARLY_CLOSE.items():
        properties = {**S3, "diskless.append.early.close.puts.per.second": puts}
        with running(RackNodes(folder / f"latency-{early_close}", properties=properties)) as nodes:
            assert isinstance(nodes, RackNodes)
            spread_coordinators(nodes)
            trip_ms = nodes.round_trip_s() * 1000
            for partitions in sizes.latency_partitions:
                for rack in ("a", "b"):
                    _paced(report, nodes, sizes, early_close, partitions, rack, trip_ms)


def _paced(
    report: Report,
    nodes: RackNodes,
    sizes: Sizes,
    early_close: str,
    partitions: int,
    consumer_rack: str,
    trip_ms: float,
) -> None:
    brokers = Brokers(nodes)
    with topic(brokers, f"latency-{partitions}-{consumer_rack}", partitions, len(nodes.brokers)) as name:
        load = {"topic": name, "partitions": partitions, "record_size": RECORD_SIZE}
        producer = {"client.id": client_id(PRODUCER_RACK)}
        # The first batch of a partition opens the partition's files.
        measure(brokers, "produce", records=500 * partitions, settings=producer, **load)
        nodes.wait_until_cached()
        before = upload_times_of(nodes.metrics_text(nodes.brokers[0]))
        sample = measure(
            brokers,
            "latency",
            rate=RATE,
            seconds=sizes.latency_s,
            linger_ms=0,
            producer_settings=producer,
            consumer_settings={"client.id": client_id(consumer_rack), "client.rack": consumer_rack},
            **load,
        )
        put_ms = p50_ms(before, upload_times_of(nodes.metrics_text(nodes.brokers[0])))
    goal_ms = COMMIT_INTERVAL_MS / 2 + put_ms + 5 + 2 * trip_ms
    row = {
        "early close": early_close,
        "partitions": partitions,
        "consumer": "in the same rack" if consumer_rack == PRODUCER_RACK else "in another rack",
        "ack p50 ms": rounded(sample.detail["ack_p50_ms"]),
        "ack p99 ms": rounded(sample.detail["ack_p99_ms"]),
        "end to end p50 ms": rounded(sample.detail["end_to_end_p50_ms"]),
        "end to end p99 ms": rounded(sample.detail["end_to_end_p99_ms"]),
        "PUT p50 ms": rounded(put_ms),
        "round trip ms": rounded(trip_ms),
        "goal of ack p50 ms": f"{'≤ 1.1 ×' if early_close == 'off' else '<'} {goal_ms:.0f}",
    }
    report.add(f"Latency at {RATE} records/s of 1 KiB, S3's latency", row, [sample])
