"""From WAL objects to Kafka segments.

``python -m bench.consolidation``: the builder alone, on batches in memory.
"""

import os
import time

from bench.measure import MEGABYTE
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.tiered.builder import BatchRun, build_segment

SEGMENT_BYTES = 64 << 20
RUN_BATCHES = 8
"""So many batches of a partition lie together in an object."""


def bench_builder(batch_size: int, repeats: int = 5) -> dict[str, int | float | str]:
    """Copy, check and index one segment; the best of several runs, in memory that was used before."""
    value = os.urandom(batch_size - 90)
    batch = build_batch(
        [Record(0, 1_700_000_000_000, None, value, ())], producer_id=7, producer_epoch=0, base_sequence=0
    )
    count = SEGMENT_BYTES // len(batch) // RUN_BATCHES * RUN_BATCHES
    source = memoryview(batch * count)
    step = RUN_BATCHES * len(batch)
    parts = [
        (
            BatchRun(at * RUN_BATCHES, (at + 1) * RUN_BATCHES - 1, step),
            source[at * step : (at + 1) * step],
        )
        for at in range(count // RUN_BATCHES)
    ]
    buffer = bytearray(len(source))
    best_s = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        built = build_segment(parts, into=buffer)
        best_s = min(best_s, time.perf_counter() - began)
    assert built.batches == count
    return {
        "batch": f"{batch_size} B",
        "MB/s": round(len(source) / best_s / MEGABYTE),
        "µs per batch": round(best_s / count * 1e6, 2),
    }


def main() -> None:
    for batch_size in (1024, 16 << 10, 128 << 10):
        print(bench_builder(batch_size))


if __name__ == "__main__":
    main()
