"""The sizes and durations of measurements, and the topic of a measurement."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.measuring.measure import Measured

RECORD_SIZES = (100, 1024, 10_240)
PARTITION_COUNTS = (1, 12)
LATENCY_LINGER_MS = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes and durations of measurements."""

    bytes_by_record_size: dict[int, int]
    repeats: int
    latency_s: float
    latency_rate: int
    pipelined_requests: int
    idle_s: float
    long_polls_s: float
    warm_up_rounds: int
    latency_sizes: tuple[int, ...] = RECORD_SIZES
    peer_partitions: tuple[int, ...] = PARTITION_COUNTS
    peer_codecs: tuple[str, ...] = ()
    """Codecs of the client, beside records without compression."""
    peer_memories: tuple[bool, ...] = (False,)
    """Whether the files of the brokers are removed from the page cache before each run."""


FULL = Plan(
    bytes_by_record_size={100: 100_000_000, 1024: 600_000_000, 10_240: 800_000_000},
    repeats=3,
    latency_s=5,
    latency_rate=1000,
    pipelined_requests=150_000,
    idle_s=8,
    long_polls_s=8,
    warm_up_rounds=3,
    peer_partitions=(1, 12, 100),
    peer_codecs=("lz4", "zstd"),
    peer_memories=(False, True),
)
QUICK = Plan(
    bytes_by_record_size={100: 50_000_000, 1024: 250_000_000, 10_240: 300_000_000},
    repeats=1,
    latency_s=2,
    latency_rate=1000,
    pipelined_requests=80_000,
    idle_s=3,
    long_polls_s=3,
    warm_up_rounds=1,
    latency_sizes=(1024,),
)


@contextlib.contextmanager
def topic(broker: Measured, name: str, partitions: int, replicas: int = 1) -> Iterator[str]:
    """A topic for one measurement. It is deleted after the block, and its files are removed 0.1 s later."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    new = NewTopic(
        name, num_partitions=partitions, replication_factor=replicas, config={"file.delete.delay.ms": "100"}
    )
    admin.create_topics([new])[name].result(30)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)
