"""Loads of transactional producers in separate processes: ``python -m bench.loads.transaction_load SPEC``."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bench.loads import load
from bench.loads.rdkafka import BatchProducer, lib

Spec = dict[str, Any]

TIMEOUT_MS: Final = 60_000
RUN: Final = f"{time.time_ns():x}"
"""Makes the transactional ids of this process unique."""


def _declare() -> None:
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, arguments in (
        ("rd_kafka_init_transactions", [pointer, integer]),
        ("rd_kafka_begin_transaction", [pointer]),
        ("rd_kafka_commit_transaction", [pointer, integer]),
        ("rd_kafka_abort_transaction", [pointer, integer]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = pointer, arguments
    lib.rd_kafka_error_string.restype = ctypes.c_char_p
    lib.rd_kafka_error_string.argtypes = [pointer]


_declare()


class TransactionalProducer(BatchProducer):
    """Produces copies of one payload in transactions of librdkafka."""

    def __init__(self, spec: Spec, number: int, batch_count: int) -> None:
        settings = {
            "transactional.id": f"bench-{RUN}-{number}",
            "linger.ms": "0",
            "log_level": "3",
            **spec.get("settings", {}),
        }
        super().__init__(spec["bootstrap"], spec["topic"], spec["record_size"], batch_count, settings)
        self._must(lib.rd_kafka_init_transactions(self._handle, TIMEOUT_MS))

    def begin(self) -> None:
        self._must(lib.rd_kafka_begin_transaction(self._handle))

    def end(self, *, commit: bool = True) -> None:
        """Send the records that are left, and end the transaction. Returns with the broker's response."""
        if not commit:
            self.flush(load.TIMEOUT_S)  # an abort would remove the records that were not sent yet
        function = lib.rd_kafka_commit_transaction if commit else lib.rd_kafka_abort_transaction
        self._must(function(self._handle, TIMEOUT_MS))

    def _must(self, error: int | None) -> None:
        if error:
            raise RuntimeError(lib.rd_kafka_error_string(error).decode())


def transactions(spec: Spec) -> load.Result:
    """``producers`` producers in threads. Each commits ``transactions`` transactions of ``batch`` records to
    one partition. Every tenth transaction is aborted if ``aborts`` is set. With ``rate``, a producer begins
    at most this number of transactions in a second."""
    producers = [TransactionalProducer(spec, number, spec["batch"]) for number in range(spec["producers"])]
    commits_ms: list[float] = []
    failures: list[BaseException] = []

    def run(number: int, producer: TransactionalProducer) -> None:
        try:
            partition = number % spec["partitions"]
            for turn in _paced(spec, number):
                producer.begin()
                producer.produce(partition, spec["batch"])
                begun = time.perf_counter()
                producer.end(commit=not (spec.get("aborts") and turn % 10 == 9))
                commits_ms.append((time.perf_counter() - begun) * 1000)
        except BaseException as error:
            failures.append(error)

    start = load.wait_for_go()
    wall_s = _together([partial(run, *each) for each in enumerate(producers)], start)
    load.finished()
    for producer in producers:
        producer.close()
    if failures:
        raise failures[0]
    return {
        "wall_s": wall_s,
        "records": len(commits_ms) * spec["batch"],
        "transactions": len(commits_ms),
        **load.percentiles("commit", commits_ms),
    }


def _paced(spec: Spec, number: int) -> Iterator[int]:
    rate = spec.get("rate")
    start = time.perf_counter() + (number / spec["producers"] / rate if rate else 0)
    for turn in range(spec["transactions"]):
        if rate:
            time.sleep(max(0.0, start + turn / rate - time.perf_counter()))
        yield turn


def _together(works: list[Callable[[], None]], start: float) -> float:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def one_transaction(spec: Spec) -> load.Result:
    """``records`` records in a single transaction, to compare its produce requests with those of an
    idempotent producer."""
    settings = {"linger.ms": "5", **spec.get("settings", {})}
    producer = TransactionalProducer({**spec, "settings": settings}, 0, load.CHUNK_RECORDS)
    start = load.wait_for_go()
    producer.begin()
    left, partition = spec["records"], 0
    while left:
        count = min(load.CHUNK_RECORDS, left)
        producer.produce(partition, count)
        left -= count
        partition = (partition + 1) % spec["partitions"]
    producer.end()
    wall_s = time.perf_counter() - start
    load.finished()
    producer.close()
    return {"wall_s": wall_s, "records": spec["records"]}


def drain(spec: Spec) -> load.Result:
    """Read ``records`` records of all partitions from the beginning. The number of records depends on the
    isolation level."""
    from bench.loads.rdkafka import DrainingConsumer

    consumer = DrainingConsumer(spec["bootstrap"], spec["topic"], spec["settings"])
    consumer.end_offset(0)
    start = load.wait_for_go()
    consumer.drain(spec["partitions"], spec["records"], load.TIMEOUT_S)
    wall_s = time.perf_counter() - start
    load.finished()
    consumer.close()
    return {"wall_s": wall_s, "records": spec["records"]}


load.LOADS |= {"transactions": transactions, "one_transaction": one_transaction, "drain": drain}

if __name__ == "__main__":
    load.main()
