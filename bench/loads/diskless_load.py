"""Loads of the diskless benchmarks in separate processes: ``python -m bench.loads.diskless_load SPEC``."""

import time
from math import inf
from typing import Any

from bench.loads import load

Spec = dict[str, Any]


def produce_by_many(spec: Spec) -> load.Result:
    """Parallel producers of librdkafka send ``records`` records in total. The load ends with the last
    response.

    ``producers`` is the number of producers. Instead, ``client_ids`` may contain the client id of each
    producer. ``rate`` is the number of records per second; without it, records are sent as fast as possible.
    """
    from bench.loads.rdkafka import BatchProducer

    partitions, left, common = spec["partitions"], spec["records"], spec.get("settings", {})
    named = [{"client.id": client_id} for client_id in spec.get("client_ids", ())]
    chunk = load.CHUNK_RECORDS
    clients = [
        BatchProducer(spec["bootstrap"], spec["topic"], spec["record_size"], chunk, {**common, **own})
        for own in named or [{}] * spec["producers"]
    ]
    producers = len(clients)
    before = sum(clients[0].end_offset(partition) for partition in range(partitions))
    for client in clients:
        client.end_offset(0)  # the client is connected and has the metadata
    rate = spec.get("rate", inf)
    if "rate" in spec:
        # Otherwise the records of an object would all be for one partition, because each chunk waits.
        chunk = max(1, chunk // partitions)
    start = load.wait_for_go()
    turn = 0
    while left:
        count = min(chunk, left)
        time.sleep(max(0.0, start + (spec["records"] - left) / rate - time.perf_counter()))
        # Each producer begins at another partition.
        clients[turn % producers].produce((turn // producers + turn % producers) % partitions, count)
        left -= count
        turn += 1
    for client in clients:
        client.flush(load.TIMEOUT_S)
    wall_s = time.perf_counter() - start
    after = sum(clients[0].end_offset(partition) for partition in range(partitions))
    for client in clients:
        client.close()
    if after - before != spec["records"]:
        raise RuntimeError(f"{spec['records']} records were acknowledged, {after - before} are there")
    return {"wall_s": wall_s, "records": spec["records"]}


load.LOADS["produce_by_many"] = produce_by_many

if __name__ == "__main__":
    load.main()
