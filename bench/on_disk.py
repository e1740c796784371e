"""The cost of reading files with expensive batches, and the cost of beginning a segment.

``python -m bench.on_disk`` prints processor time, which depends little on other work on the machine, and the
growth of the peak memory. Each row is measured in a separate process.
"""

import contextlib
import multiprocessing
import pathlib
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial

from bench.hostile import bomb
from moldau.cli.main import main as command_line
from moldau.protocol.partitions import TopicPartition
from moldau.records import Compression, Record, build_batch
from moldau.records.batch import parse_header, validate_produce
from moldau.runtime import InlineWorkers, LocalDisk, Machine, SeededEntropy, SystemClock
from moldau.storage.log.partition_log import PartitionLog

SMALL = build_batch([Record(0, 0, None, b"v")])
ROLLS = 400


def write_segment(folder: str, batch: bytes, count: int) -> str:
    """Write a segment that contains a batch ``count`` times. Returns its path."""
    path = pathlib.Path(folder, "00000000000000000000.log")
    path.parent.mkdir()
    records, content = parse_header(batch).records_count, bytearray(batch)
    with path.open("wb") as file:
        for number in range(count):
            struct.pack_into(">q", content, 0, number * records)
            file.write(content)
    return str(path)


def open_log(folder: str) -> PartitionLog:
    machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())
    return PartitionLog.open(machine, folder, TopicPartition("t", 0))


def recover(folder: str, batch: bytes, count: int) -> str:
    """Open a log after a kill. All its batches are checked."""
    write_segment(folder, batch, count)
    return timed(lambda: open_log(folder))


def dump(folder: str, batch: bytes) -> str:
    """Run ``moldau dump-log --deep``."""
    path = write_segment(folder, batch, 1)

    def run() -> None:
        with contextlib.suppress(SystemExit):
            command_line(["dump-log", path, "--deep"])

    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return timed(run)


def roll(folder: str) -> str:
    """Close a segment, and create the files of the next one."""
    log = open_log(folder)
    headers = validate_produce(SMALL, max_batch_bytes=1 << 20)
    took = []
    for _ in range(ROLLS):
        log.append_as_leader(SMALL, headers, 0)
        started = time.process_time()
        log.roll()
        took.append(time.process_time() - started)
    took.sort()
    return f"p50 {1000 * took[ROLLS // 2]:.2f} ms, p99 {1000 * took[ROLLS * 99 // 100]:.2f} ms"


def timed(work: Callable[[], object]) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    work()
    took = time.process_time() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    return f"{took:.2f} s, +{grown} MiB"


def show(name: str, measure: Callable[[str], str]) -> None:
    with tempfile.TemporaryDirectory() as parent:
        print(f"| {name} | {measure(f'{parent}/t-0')} |", flush=True)


def main() -> None:
    tiny, large = (
        bomb(Compression.GZIP, 200_000),
        build_batch([Record(0, 0, None, bytes(60_000_000))], compression=Compression.ZSTD),
    )
    rows: dict[str, Callable[[str], str]] = {
        "recovery, 50,000 batches of one record": partial(recover, batch=SMALL, count=50_000),
        "recovery, 200,000 batches of one record": partial(recover, batch=SMALL, count=200_000),
        "recovery, 500 batches of 200,000 records, gzip": partial(recover, batch=tiny, count=500),
        "`dump-log --deep`, 200,000 records, gzip, 2 KB": partial(dump, batch=tiny),
        "`dump-log --deep`, a record of 60 MB, zstd, 2 KB": partial(dump, batch=large),
        "a roll": roll,
    }
    for name, measure in rows.items():
        process = multiprocessing.get_context("spawn").Process(target=show, args=(name, measure))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
