"""One measurement: a load in its own process, and the resources that the broker uses during the load."""

import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench.brokers import Usage

MEGABYTE = 1_000_000
BUSY_SHARE = 0.85
"""A process that uses more than this share of a core limits the load."""

LIMIT_S = 3600.0
"""The default limit of a load. It is far above the time that any load needs."""


class Measured(Protocol):
    """A broker, or several brokers whose resources are added."""

    @property
    def bootstrap(self) -> str: ...

    def usage(self) -> Usage: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. Sizes are sizes of record values. MB means 10^6 bytes."""

    wall_s: float
    records: int
    size_bytes: int
    broker_cpu_s: float
    broker_system_s: float
    client_cpu_s: float
    broker_rss_bytes: int
    detail: dict[str, float]

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / self.wall_s / MEGABYTE

    @property
    def records_per_s(self) -> float:
        return self.records / self.wall_s

    @property
    def mb_per_cpu_s(self) -> float:
        return self.size_bytes / max(self.broker_cpu_s, 0.01) / MEGABYTE

    def request_columns(self) -> dict[str, float]:
        """The columns of a row whose records are requests."""
        return {
            "requests/s": round(self.records_per_s),
            "broker µs per request": round(self.broker_cpu_s / self.records * 1e6, 1),
            "broker CPU %": round(self.broker_share * 100),
        }

    @property
    def broker_share(self) -> float:
        """The broker's CPU time as a share of the wall time (1 is one core)."""
        return self.broker_cpu_s / self.wall_s


class LoadTimeoutError(RuntimeError):
    """A load that took longer than its limit."""


def measure(broker: Measured, load: str, *, limit_s: float = LIMIT_S, **spec: Any) -> Sample:
    """Run a load against a broker. ``module`` is the module of the load, ``bench.loads.load`` by default.

    Raises ``RuntimeError`` if the load fails, and ``LoadTimeoutError`` if it takes longer than ``limit_s``.
    """
    module = spec.pop("module", "bench.loads.load")
    spec |= {"load": load, "bootstrap": broker.bootstrap}
    worker = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        raise RuntimeError(f"load {load} did not start")
    before = broker.usage()
    limit = threading.Timer(limit_s, worker.kill)
    limit.daemon = True
    limit.start()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    marked = worker.stdout.readline().strip() == "finished"
    after = broker.usage()
    line = worker.stdout.readline()
    worker.wait()
    limit.cancel()
    if worker.returncode == -signal.SIGKILL:
        raise LoadTimeoutError(f"load {load} took more than {limit_s:.0f} s")
    if not marked or worker.returncode:
        raise RuntimeError(f"load {load} failed")
    result = json.loads(line)
    records = int(result.pop("records"))
    return Sample(
        wall_s=result.pop("wall_s"),
        records=records,
        size_bytes=records * spec.get("record_size", 0),
        broker_cpu_s=after.cpu_s - before.cpu_s,
        broker_system_s=after.system_s - before.system_s,
        client_cpu_s=result.pop("client_cpu_s"),
        broker_rss_bytes=after.rss_bytes,
        detail=result,
    )


def watch_idle(broker: Measured, seconds: float) -> Sample:
    """The resources of a broker without requests."""
    before = broker.usage()
    start = time.perf_counter()
    time.sleep(seconds)
    after = broker.usage()
    wall_s = time.perf_counter() - start
    cpu_s, system_s = after.cpu_s - before.cpu_s, after.system_s - before.system_s
    return Sample(wall_s, 0, 0, cpu_s, system_s, 0.0, after.rss_bytes, {})


def median_sample(samples: list[Sample]) -> Sample:
    """The median of each field over several runs of the same load."""
    rows = [asdict(sample) for sample in samples]
    details = [row.pop("detail") for row in rows]
    merged = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    detail = {name: statistics.median(each[name] for each in details) for name in details[0]}
    whole = {name: int(merged[name]) for name in ("records", "size_bytes", "broker_rss_bytes")}
    return Sample(**{**merged, **whole}, detail=detail)
