"""A producer of single records, while another producer of the same process sends batches at a fixed rate:
``python -m bench.loads.busy_load SPEC``."""

import itertools
import threading
import time
from typing import Any, Final

from confluent_kafka import Producer

from bench.loads.load import LOADS, TIMEOUT_S, Result, Spec, main, percentiles, wait_for_go
from bench.loads.rdkafka import BatchProducer

TICK_S: Final = 0.005
"""Interval in which the other producer sends its next records."""
BEHIND_S: Final = 1.0
"""If the other producer is later than this, the broker cannot take its rate."""


def single_records(spec: Spec) -> Result:
    """Sends ``rate`` single records a second without linger, each to the next partition, and measures the
    time until their acknowledgement. Another producer sends ``other_rate`` records a second, which may
    be 0."""
    producer = Producer({"bootstrap.servers": spec["bootstrap"], "linger.ms": 0})
    producer.list_topics(spec["topic"], timeout=TIMEOUT_S)
    waits_ms: list[float] = []

    def acknowledged(error: object, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        waits_ms.append(message.latency() * 1000)

    ended = threading.Event()
    other = threading.Thread(target=_send_others, args=(spec, ended))
    value = bytes(spec["record_size"])
    partitions = itertools.cycle(range(spec["partitions"]))
    start = wait_for_go()
    other.start()
    for number in range(int(spec["rate"] * spec["seconds"])):
        due = start + number / spec["rate"]
        while (ahead := due - time.perf_counter()) > 0:
            producer.poll(0)
            time.sleep(min(ahead, 0.0005))
        producer.produce(spec["topic"], value, partition=next(partitions), on_delivery=acknowledged)
    producer.flush(TIMEOUT_S)
    wall_s = time.perf_counter() - start
    ended.set()
    other.join()
    # The first fifth warms up the connections and the caches.
    measured = waits_ms[len(waits_ms) // 5 :]
    sent = int(spec["other_rate"] * wall_s)
    return {"wall_s": wall_s, "records": len(waits_ms) + sent, **percentiles("ack", measured)}


def _send_others(spec: Spec, ended: threading.Event) -> None:
    if not spec["other_rate"]:
        return
    at_once = max(1, round(spec["other_rate"] * TICK_S))
    producer = BatchProducer(spec["bootstrap"], spec["topic"], spec["record_size"], at_once, {})
    start = time.perf_counter()
    for number, partition in enumerate(itertools.cycle(range(spec["partitions"]))):
        ahead = start + number * TICK_S - time.perf_counter()
        if ahead < -BEHIND_S:
            raise RuntimeError(f"{spec['other_rate']} records/s are too many")
        if ended.wait(max(0.0, ahead)):
            break
        producer.produce(partition, at_once)
    producer.flush(TIMEOUT_S)
    producer.close()


LOADS["single_records"] = single_records

if __name__ == "__main__":
    main()
