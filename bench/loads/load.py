"""A load in a process of its own: ``python -m bench.loads.load SPEC`` with a JSON object that describes it.

The process connects, fetches the metadata and the end offsets, and prints ``ready``. Then it waits for a line
on stdin, runs the load, and prints the result as JSON. The parent measures the broker between the line on
stdin and the result.
"""

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from bench.loads import canned

Spec: TypeAlias = dict[str, Any]
Result: TypeAlias = dict[str, float]

CHUNK_RECORDS = 500
"""Number of consecutive records for one partition, similar to keyed records with many keys."""
TIMEOUT_S = 120.0


def produce(spec: Spec) -> Result:
    """Produces ``records`` records over ``partitions``, until the last record is acknowledged. The end
    offsets must grow by this number, unless ``exact_ends`` is false."""
    from bench.loads.rdkafka import BatchProducer

    partitions, records = spec["partitions"], spec["records"]
    producer = BatchProducer(
        spec["bootstrap"],
        spec["topic"],
        spec["record_size"],
        CHUNK_RECORDS,
        spec.get("settings", {}),
        spec.get("compressible", False),
    )
    before = sum(producer.end_offset(partition) for partition in range(partitions))
    start = wait_for_go()
    _send(producer, partitions, records)
    producer.flush(TIMEOUT_S)
    wall_s = time.perf_counter() - start
    after = sum(producer.end_offset(partition) for partition in range(partitions))
    producer.close()
    if spec.get("exact_ends", True) and after - before != records:
        raise RuntimeError(f"{records} records were acknowledged, {after - before} are there")
    return {"wall_s": wall_s, "records": records}


def produce_and_consume(spec: Spec) -> Result:
    """Produces like :func:`produce`, while a consumer reads the records. It ends with the last record that is
    read."""
    from bench.loads.rdkafka import BatchProducer, DrainingConsumer

    partitions, records, settings = spec["partitions"], spec["records"], spec.get("settings", {})
    producer = BatchProducer(
        spec["bootstrap"],
        spec["topic"],
        spec["record_size"],
        CHUNK_RECORDS,
        settings,
        spec.get("compressible", False),
    )
    consumer = DrainingConsumer(spec["bootstrap"], spec["topic"], {})
    if any(consumer.end_offset(partition) for partition in range(partitions)):
        raise RuntimeError(f"{spec['topic']} is not empty")
    with ThreadPoolExecutor(1) as reader:
        start = wait_for_go()
        reading = reader.submit(consumer.drain, partitions, records, TIMEOUT_S)
        _send(producer, partitions, records)
        reading.result()
        wall_s = time.perf_counter() - start
    finished()
    producer.flush(TIMEOUT_S)
    consumer.close()
    producer.close()
    return {"wall_s": wall_s, "records": records}


def _send(producer: Any, partitions: int, records: int) -> None:
    left, partition = records, 0
    while left:
        count = min(CHUNK_RECORDS, left)
        producer.produce(partition, count)
        left -= count
        partition = (partition + 1) % partitions


def consume(spec: Spec) -> Result:
    """Reads all records of ``partitions`` from the beginning. ``records`` is their number; without it, the
    end offsets are the number."""
    from bench.loads.rdkafka import DrainingConsumer

    consumer = DrainingConsumer(spec["bootstrap"], spec["topic"], spec.get("settings", {}))
    ends = sum(consumer.end_offset(partition) for partition in range(spec["partitions"]))
    records = spec.get("records", ends)
    start = wait_for_go()
    consumer.drain(spec["partitions"], records, TIMEOUT_S)
    wall_s = time.perf_counter() - start
    finished()
    consumer.close()
    return {"wall_s": wall_s, "records": records}


def latency(spec: Spec) -> Result:
    """A producer at a fixed rate and a consumer at the end of the topic, both by confluent-kafka.

    ``producer_settings`` and ``consumer_settings`` are further settings of the two clients.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": spec["bootstrap"]}
    pace = {"linger.ms": spec["linger_ms"]}
    producer = Producer({**settings, **pace, **spec.get("producer_settings", {})})
    alone = {"group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **alone, **spec.get("consumer_settings", {})})
    partitions = [TopicPartition(spec["topic"], number) for number in range(spec["partitions"])]
    for position in partitions:
        position.offset = consumer.get_watermark_offsets(position, timeout=10)[1]
    consumer.assign(partitions)
    arrived_ms: list[float] = []
    acknowledged_ms: list[float] = []
    total = int(spec["rate"] * spec["seconds"])

    def receive() -> None:
        deadline = time.monotonic() + spec["seconds"] + 20
        while len(arrived_ms) < total and time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is not None:
                sent_ns = int.from_bytes((message.value() or b"")[:8], "big")
                arrived_ms.append((time.perf_counter_ns() - sent_ns) / 1e6)

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        acknowledged_ms.append(message.latency() * 1000)

    receiver = threading.Thread(target=receive)
    receiver.start()
    start = wait_for_go()
    padding = bytes(spec["record_size"] - 8)
    for number in range(total):
        due = start + number / spec["rate"]
        while (ahead := due - time.perf_counter()) > 0:
            producer.poll(0)
            time.sleep(min(ahead, 0.0005))
        value = time.perf_counter_ns().to_bytes(8, "big") + padding
        producer.produce(spec["topic"], value, partition=number % spec["partitions"], on_delivery=delivered)
    producer.flush(20)
    wall_s = time.perf_counter() - start
    receiver.join()
    consumer.close()
    # The first tenth of the records is not measured, because it warms up connections and caches.
    skipped = total // 10
    return {
        "wall_s": wall_s,
        "records": len(acknowledged_ms),
        "received": len(arrived_ms),
        **percentiles("ack", acknowledged_ms[skipped:]),
        **percentiles("end_to_end", arrived_ms[skipped:]),
    }


def percentiles(name: str, values: list[float]) -> Result:
    ordered = sorted(values)
    return {
        f"{name}_p{percent}_ms": ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
        for percent in (50, 99)
    }


def requests(spec: Spec) -> Result:
    """Produce requests of one record, pipelined, on a few connections."""
    count = spec["connections"]
    partitions = spec["partitions"]
    pipelines = [
        canned.Pipeline(spec["bootstrap"], spec["topic"], number % partitions, spec["record_size"])
        for number in range(count)
    ]
    depth = canned.PIPELINE_DEPTH
    each = spec["records"] // count // depth * depth
    canned.run_pipelines(pipelines, depth * 8)
    start = wait_for_go()
    canned.run_pipelines(pipelines, each)
    wall_s = time.perf_counter() - start
    for pipeline in pipelines:
        pipeline.close()
    return {"wall_s": wall_s, "records": each * count}


def long_polls(spec: Spec) -> Result:
    """Idle consumers on connections of their own."""
    polls = canned.hold_long_polls(spec["bootstrap"], spec["topic"], spec["connections"], spec["max_wait_ms"])
    polls.start()
    polls.run(1.0)
    start = wait_for_go()
    answered = polls.run(spec["seconds"])
    return {"wall_s": time.perf_counter() - start, "records": answered}


LOADS: dict[str, Callable[[Spec], Result]] = {
    "produce": produce,
    "produce_and_consume": produce_and_consume,
    "consume": consume,
    "latency": latency,
    "requests": requests,
    "long_polls": long_polls,
}

_cpu_at_start = 0.0
_cpu_at_end: float | None = None


def cpu_s() -> float:
    """CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def wait_for_go() -> float:
    """Report that everything is prepared, and wait for the parent. Returns the start time."""
    global _cpu_at_start
    print("ready", flush=True)
    sys.stdin.readline()
    _cpu_at_start = cpu_s()
    return time.perf_counter()


def finished() -> None:
    """Mark the end of the measured part, because closing the clients uses CPU time, too."""
    global _cpu_at_end
    _cpu_at_end = cpu_s()
    print("finished", flush=True)


def main() -> None:
    spec: Spec = json.loads(sys.argv[1])
    result = LOADS[spec["load"]](spec)
    if _cpu_at_end is None:
        finished()
    assert _cpu_at_end is not None
    result["client_cpu_s"] = _cpu_at_end - _cpu_at_start
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
