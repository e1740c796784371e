"""*produce*: MB for each CPU second of three brokers together, beside the same load on one broker.

Both clusters run at the same time, and get the load in turns. There is a producer for each rack. It sends to
the broker of its rack, or to the only broker. CPU seconds include the time that the caches of all brokers
need for the records.
"""

import contextlib
import pathlib
import statistics
import time
from dataclasses import replace
from typing import Final, NamedTuple

from bench.cluster.replication import Brokers, running
from bench.diskless_cluster.leadership import spread_coordinators
from bench.diskless_cluster.nodes import RACKS, RackNodes, client_id
from bench.diskless_cluster.sizes import PARTITIONS, RECORD_SIZE, Sizes
from bench.measuring.measure import Sample, measure, median_sample, watch_idle
from bench.measuring.plan import topic
from bench.measuring.report import Report, rounded

SETTLING_S: Final = 1.5
"""Time after the last response in which the caches get the last records."""
IDLE_S: Final = 5.0


class _Side(NamedTuple):
    """A cluster, the replication factor of its topic, and the share of a core that it uses without load."""

    name: str
    nodes: RackNodes
    replicas: int
    idle_share: float


def measure_produce(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(running(RackNodes(folder / "one", brokers=(1,))))
        three = stack.enter_context(running(RackNodes(folder / "three")))
        assert isinstance(one, RackNodes)
        assert isinstance(three, RackNodes)
        spread_coordinators(three)
        shares = [watch_idle(Brokers(nodes), IDLE_S).broker_share for nodes in (one, three)]
        sides = [
            _Side("1 broker", one, 1, shares[0]),
            _Side("3 brokers, 1 replica", three, 1, shares[1]),
            _Side("3 brokers, 3 replicas", three, 3, shares[1]),
        ]
        # The first round warms up the brokers and is not counted.
        rounds = [
            [_produced(stack, side, sizes, number) for side in sides] for number in range(sizes.repeats + 1)
        ][1:]
    for position, side in enumerate(sides):
        samples = [found[position] for found in rounds]
        ratio = statistics.median(found[position].mb_per_cpu_s / found[0].mb_per_cpu_s for found in rounds)
        sample = median_sample(samples)
        row = {
            "cluster": side.name,
            "MB/s": rounded(sample.mb_per_s),
            "MB per CPU-s of all brokers": rounded(sample.mb_per_cpu_s),
            "to 1 broker": rounded(ratio),
            "goal": "≥ 0.8" if position else "",
            "client CPU %": round(sample.client_cpu_s / sample.wall_s * 100),
        }
        report.add("Produce, a producer for each of three racks", row, samples)


def _produced(stack: contextlib.ExitStack, side: _Side, sizes: Sizes, number: int) -> Sample:
    """Produce to a new topic. The CPU time of the sample ends when all caches have the records, without the
    time that the brokers would also use without load.

    ``stack`` deletes the topics when all runs are over. Otherwise a run would contain the deletion of the
    objects of an earlier run.
    """
    brokers = Brokers(side.nodes)
    new = topic(brokers, f"produce-{side.replicas}-{number}", PARTITIONS, side.replicas)
    name = stack.enter_context(new)
    side.nodes.wait_until_cached()
    before_s = brokers.usage().cpu_s
    start = time.perf_counter()
    sample = measure(
        brokers,
        "produce_by_many",
        module="bench.loads.diskless_load",
        topic=name,
        partitions=PARTITIONS,
        record_size=RECORD_SIZE,
        records=sizes.produce_bytes // RECORD_SIZE,
        client_ids=[client_id(rack) for rack in RACKS.values()],
    )
    time.sleep(SETTLING_S)
    took_s = time.perf_counter() - start
    spent_s = brokers.usage().cpu_s - before_s
    if side.nodes.lag():
        raise RuntimeError(f"after {SETTLING_S} s the caches of {name} do not have all records")
    return replace(sample, broker_cpu_s=spent_s - side.idle_share * (took_s - sample.wall_s))
