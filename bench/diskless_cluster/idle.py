"""*idle*: the requests to the store and the CPU time of brokers with many partitions without traffic."""

import pathlib
import time
from typing import Final

from bench.cluster.measurements import MANY_TOPICS, create_many
from bench.cluster.nodes import MoldauNodes
from bench.cluster.replication import running
from bench.diskless_cluster.leadership import spread_coordinators
from bench.diskless_cluster.nodes import STORE_REQUESTS, RackNodes, growth
from bench.diskless_cluster.sizes import Sizes
from bench.measuring.report import Report, megabytes, rounded
from bench.partitions import Connection, produce_to_all

SETTLING_S: Final = 25.0
"""Time after a change until the brokers are idle. They save their own logs every 10 s while these grow."""


def measure_idle(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    """Measure partitions without records, and then the same partitions with one record each."""
    with running(RackNodes(folder / "idle")) as nodes:
        assert isinstance(nodes, RackNodes)
        spread_coordinators(nodes)
        _watch(report, nodes, "no partition", sizes)
        create_many(nodes, sizes.idle_partitions)
        _watch(report, nodes, f"{sizes.idle_partitions:,} partitions without records", sizes)
        _produce_one_to_each(nodes, sizes.idle_partitions // MANY_TOPICS)
        nodes.wait_until_cached()
        _watch(report, nodes, f"{sizes.idle_partitions:,} partitions with one record each", sizes)


def _produce_one_to_each(nodes: MoldauNodes, partitions: int) -> None:
    connection = Connection(nodes.address(nodes.brokers[0]))
    for number in range(MANY_TOPICS):
        produce_to_all(connection, f"many-{number}", partitions)
    connection.close()


def _watch(report: Report, nodes: RackNodes, what: str, sizes: Sizes) -> None:
    time.sleep(SETTLING_S)
    before = nodes.all_meters()
    used_s = {node_id: nodes.usage(node_id).cpu_s for node_id in nodes.brokers}
    start = time.perf_counter()
    time.sleep(sizes.idle_s)
    wall_s = time.perf_counter() - start
    usages = {node_id: nodes.usage(node_id) for node_id in nodes.brokers}
    shares = [(usage.cpu_s - used_s[node_id]) / wall_s for node_id, usage in usages.items()]
    requests = sum(growth(before, nodes.all_meters(), STORE_REQUESTS).values())
    row = {
        "three brokers with": what,
        "requests to the store a second (goal 0)": rounded(requests / wall_s),
        "CPU % of the busiest broker (goal < 5)": rounded(max(shares) * 100),
        "CPU % of a broker, mean": rounded(sum(shares) / len(shares) * 100),
        "RSS, MB, largest": megabytes(max(usage.rss_bytes for usage in usages.values())),
    }
    report.add("Idle partitions", row)
