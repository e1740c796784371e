"""Moldau in a minute: a stream goes into object storage, the node crashes in the middle, and no record is
missing.

The demo starts ``moldau dev`` on a temporary folder. All topics are diskless, so records are in the object
store when they are acknowledged. The demo produces orders with an ordinary Kafka client (librdkafka).
After half of the orders it kills the node without warning, deletes the node's local cache of the topic,
starts the node again, and produces the remaining orders. Then another ordinary client (kafka-python) reads
all orders, and the demo prints the content of the object store. Finally Spark moves the topic into Kafka
segments, exports it to a table and queries the table. The demo prints the number of the node's requests to
the store.

``make demo`` starts the demo. It needs only this repository and, for the table, Java. ``make demo
ARGS=--cluster`` shows a cluster instead (``demo_cluster.py``). ``make demo ARGS=--restore`` shows the loss of
all disks of a cluster (``demo_restore.py``).
"""

import argparse
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import demo_cluster
import demo_restore
from confluent_kafka import KafkaError, Message, Producer
from demo_node import Node, console, stored_objects
from demo_orders import orders
from kafka import KafkaConsumer
from rich.table import Table

from moldau.pipeline.requirements import missing_java, missing_packages

ORDER_COUNT = 40_000
TOPIC = "orders"
PARTITIONS = 6
MIB = 1 << 20
GIB = 1 << 30


def moldau(node: Node, *arguments: str) -> str:
    """Run a ``moldau`` command against the node. Returns its output."""
    command = [sys.executable, "-m", "moldau", *arguments, "--bootstrap", node.bootstrap]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def produce(node: Node) -> set[int]:
    """Produce all orders, with a crash after half of them. Returns the numbers of the acknowledged orders."""
    acknowledged: set[int] = set()
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "enable.idempotence": True,
            "log_level": 0,
            "error_cb": lambda _: None,
            "reconnect.backoff.max.ms": 200,
        }
    )

    def note(number: int) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged.add(number)

        return on_delivery

    for number, (key, value) in enumerate(orders(ORDER_COUNT)):
        producer.produce(TOPIC, value, key=key, on_delivery=note(number))
        producer.poll(0)
        if number == ORDER_COUNT // 2:
            while not acknowledged:
                producer.poll(0.01)
            crash(node)
    left = producer.flush(120)
    console.print(f"produced {ORDER_COUNT:,} orders, {len(acknowledged):,} acknowledged, {left} undelivered")
    return acknowledged


def crash(node: Node) -> None:
    """Kill the node, delete its local copy of the topic, and start it again."""
    node.kill()
    caches = list((node.folder / "data").glob(f"{TOPIC}-*"))
    for cache in caches:
        shutil.rmtree(cache)
    console.print(f"[red]deleted[/] its {len(caches)} local folders of the topic: only a cache")
    node.start()


def consume(node: Node, expected: int) -> list[int]:
    """Read the topic from the start as a consumer group. Returns the order numbers in the order of the
    records."""
    consumer: Any = KafkaConsumer(
        TOPIC, bootstrap_servers=node.bootstrap, group_id="demo", auto_offset_reset="earliest"
    )
    numbers: list[int] = []
    deadline = time.monotonic() + 120
    while len(numbers) < expected and time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=1000, max_records=5000).values():
            numbers += [json.loads(message.value)["order"] for message in messages]
    consumer.close()
    return numbers


def check(acknowledged: set[int], consumed: list[int]) -> bool:
    """Print the result. Returns whether it is correct."""
    missing = acknowledged - set(consumed)
    doubled = len(consumed) - len(set(consumed))
    table = Table(title="After a kill in the middle")
    for column in ("acknowledged", "consumed", "missing", "doubled"):
        table.add_column(column, justify="right")
    table.add_row(f"{len(acknowledged):,}", f"{len(consumed):,}", str(len(missing)), str(doubled))
    console.print(table)
    return not missing and not doubled


def show_store(node: Node) -> None:
    """Print the content of the object store, as the store lists it and as the coordinators describe it."""
    stored = stored_objects(node)
    table = Table(title=f"In the object store: {stored.files} objects, {stored.size_bytes / MIB:.1f} MiB")
    for column in ("topic", "records", "batches", "bytes", "objects"):
        table.add_column(column, justify="left" if column == "topic" else "right")
    for topic in json.loads(moldau(node, "diskless", "topics", "--json")):
        partitions = topic["partitions"]
        table.add_row(
            topic["name"],
            f"{sum(row['next'] - row['log_start'] for row in partitions):,}",
            f"{sum(row['batches'] for row in partitions):,}",
            f"{topic['size_bytes']:,}",
            str(topic["objects"]),
        )
    console.print(table)


def show_table(node: Node, acknowledged: set[int]) -> bool:
    """Consolidate and export the topic, and query the table. Returns whether the table has every
    order once. The result is also True if Spark or Java is not installed, because there is no table then."""
    reason = missing_packages() or missing_java()
    if reason is not None:
        console.print(f"[yellow]no table:[/] {reason}")
        return True
    folder = node.folder / "orders-table"
    script = pathlib.Path(__file__).with_name("demo_table.py")
    command = [sys.executable, str(script), node.bootstrap, TOPIC, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        console.print(f"[red]Spark's part failed[/]: {done.stderr.strip()[-2000:]}")
        return False
    found = json.loads(done.stdout.splitlines()[-1])
    console.print(
        f"[green]consolidated[/] into {found['segments']} Kafka segments"
        f" ({found['segment_bytes'] / MIB:.1f} MiB) in {found['consolidated_s']:.1f} s"
    )
    console.print(
        f"[green]exported[/] {found['records']:,} records to {found['files']} Parquet files"
        f" ({found['bytes'] / MIB:.1f} MiB) in {found['took_s']:.1f} s, lag {found['lag']}"
    )
    table = Table(title=f"Spark SQL: {found['orders']:,} orders in {found['rows']:,} rows")
    for column in ("customer", "orders", "amount"):
        table.add_column(column, justify="left" if column == "customer" else "right")
    for row in found["best"]:
        table.add_row(row["customer"], f"{row['orders']:,}", f"{row['amount']:,.2f}")
    console.print(table)
    is_whole = found["rows"] == found["orders"] >= len(acknowledged)
    return bool(is_whole and found["segments"] and not found["dead_letters"])


def show_bill(node: Node) -> None:
    """Print the number of requests to the store. A short stream needs more requests for each GiB than a long
    stream.
    """
    stored = stored_objects(node)
    table = Table(title="The bill")
    for column in ("request", "count", "per GiB"):
        table.add_column(column, justify="left" if column == "request" else "right")
    names = {"upload": "PUT", "fetch": "GET", "list": "LIST", "delete": "DELETE"}
    for operation, name in names.items():
        count = node.requests[operation]
        table.add_row(name, str(count), f"{count / (stored.size_bytes / GIB):,.0f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill Moldau in the middle of a stream; nothing is missing.")
    parser.add_argument("--cluster", action="store_true", help="show a cluster of six processes")
    parser.add_argument(
        "--timeout", type=float, default=80.0, metavar="SECONDS", help="of --cluster and --restore"
    )
    parser.add_argument("--restore", action="store_true", help="lose all disks of a cluster, and restore it")
    options = parser.parse_args()
    if options.restore:
        return demo_restore.run(options.timeout)
    return demo_cluster.run(options.timeout) if options.cluster else single_node()


def single_node() -> int:
    """Run the demo with one node. Returns the exit code."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="moldau-demo-") as folder:
        node = Node(folder)
        node.start()
        try:
            moldau(node, "topics", "create", TOPIC, "--partitions", str(PARTITIONS))
            acknowledged = produce(node)
            consumed = consume(node, len(acknowledged))
            is_right = check(acknowledged, consumed)
            show_store(node)
            is_right = show_table(node, acknowledged) and is_right
        finally:
            node.stop()
        show_bill(node)
    if not is_right:
        console.print("[red]records are missing or doubled[/]")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
