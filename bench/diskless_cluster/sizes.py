"""The sizes of the measurements."""

from dataclasses import dataclass
from typing import Final

RECORD_SIZE: Final = 1024
PARTITIONS: Final = 12


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and durations of all parts."""

    produce_bytes: int
    repeats: int
    latency_s: float
    latency_partitions: tuple[int, ...]
    racks_bytes: int
    moves: int
    """Number of moves and kills of each kind."""
    kills: int
    """Number of kills of the coordinator's broker, for a percentile."""
    moved_bytes: int
    simulated_bytes: int
    idle_partitions: int
    idle_s: float


FULL: Final = Sizes(
    produce_bytes=1_200_000_000,
    repeats=5,
    latency_s=15,
    latency_partitions=(1, 12, 100),
    racks_bytes=600_000_000,
    moves=10,
    kills=100,
    moved_bytes=1_000_000_000,
    simulated_bytes=50_000_000_000,
    idle_partitions=10_000,
    idle_s=30,
)
QUICK: Final = Sizes(
    produce_bytes=200_000_000,
    repeats=1,
    latency_s=4,
    latency_partitions=(12,),
    racks_bytes=100_000_000,
    moves=2,
    kills=5,
    moved_bytes=100_000_000,
    simulated_bytes=2_000_000_000,
    idle_partitions=1_000,
    idle_s=5,
)
