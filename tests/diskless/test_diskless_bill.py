"""``/metrics`` shows the number of requests to the store for each GiB, which is called the bill."""

import time
import urllib.request

from confluent_kafka import Consumer, Producer

from moldau.diskless.bill import GIB, watch_bill
from moldau.diskless.reading.read_meters import FetchMeters
from moldau.metrics import Meters
from moldau.testing import Node

COUNT = 200


def readings(text: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_the_bill_is_the_number_of_requests_for_each_gib() -> None:
    meters = Meters()
    fetched = FetchMeters(meters)
    watch_bill(meters, fetched)
    bill = meters.scoped("moldau.diskless", "Bill")
    assert bill.value("RequestsPerGiBProduced", operation="upload") == 0
    store = meters.scoped("moldau.objects", "ObjectStorage")
    store.counter("RequestsPerSec", operation="upload").mark(300)
    store.counter("RequestsPerSec", operation="fetch").mark(7)
    meters.scoped("moldau.diskless", "Writer").counter("UploadBytesPerSec").mark(3 * GIB)
    fetched.cache_hit_bytes.mark(GIB)
    fetched.cold_bytes.mark(GIB)
    assert bill.value("RequestsPerGiBProduced", operation="upload") == 100
    assert bill.value("RequestsPerGiBProduced", operation="delete") == 0
    assert bill.value("RequestsPerGiBConsumed", operation="fetch") == 3.5


def test_a_node_shows_its_bill() -> None:
    properties = {
        "diskless.system.enable": "true",
        "log.diskless.enable": "true",
        "diskless.storage.url": "memory://",
        "metrics.listener": "127.0.0.1:0",
        # Saves of the logs also cause requests, which may happen at any time.
        "backup.enable": "false",
    }
    with Node(properties=properties) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for _ in range(COUNT):
            producer.produce("orders", bytes(1000))
        assert producer.flush(60) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        seen, deadline = 0, time.monotonic() + 60
        while seen < COUNT and time.monotonic() < deadline:
            seen += len(consumer.consume(COUNT, 0.2))
        consumer.close()
        with urllib.request.urlopen(f"{node.monitoring_url}/metrics") as page:
            found = readings(page.read().decode())
    assert seen == COUNT
    uploads = found['moldau_objects_ObjectStorage_RequestsPerSec_total{operation="upload"}']
    uploaded = found["moldau_diskless_Writer_UploadBytesPerSec_total"]
    assert uploads >= 1
    assert uploaded > 0
    shown = found['moldau_diskless_Bill_RequestsPerGiBProduced{operation="upload"}']
    assert shown == uploads / (uploaded / GIB)
    # This node reads its own objects from memory, so consumers cause no requests.
    assert found['moldau_diskless_Bill_RequestsPerGiBConsumed{operation="fetch"}'] == 0
