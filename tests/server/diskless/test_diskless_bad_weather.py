"""Ordinary clients use a running node while its object store fails."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.objects import FaultyStorage, ObjectStorage, open_by_url
from moldau.objects.faults import StorageWeather
from moldau.runtime import Machine
from moldau.testing import Node

WEATHERS: dict[str, StorageWeather] = {}
"""The kinds of failures of the store, by name."""


def open_faulty(url: str, options: Mapping[str, str], machine: Machine) -> ObjectStorage:
    """The function to which ``diskless.storage.class.name`` refers."""
    return FaultyStorage(open_by_url(url, {}, machine), machine.entropy, WEATHERS[options["weather"]])


def diskless(folder: Path, weather: str) -> dict[str, str]:
    WEATHERS[weather] = StorageWeather()
    return {
        "diskless.system.enable": "true",
        "log.diskless.enable": "true",
        "diskless.metadata.topic.num.partitions": "2",
        "diskless.storage.url": f"file://{folder}/objects",
        "diskless.storage.class.name": f"{__name__}.open_faulty",
        "diskless.storage.weather": weather,
        "metrics.listener": "127.0.0.1:0",
    }


def produce(bootstrap: str, count: int, **options: object) -> list[KafkaError]:
    """Produce ``count`` records. Returns their errors."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, **options})

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    for number in range(count):
        producer.produce("orders", b"%d" % number, on_delivery=delivered)
    assert producer.flush(60) == 0
    return errors


def consume(bootstrap: str, group: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[int] = []
    until = time.monotonic() + 60
    while len(values) < count and time.monotonic() < until:
        for message in consumer.consume(count, 0.1):
            assert message.error() is None
            values.append(int(message.value() or b""))
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(values)


def health(node: Node) -> dict[str, str]:
    try:
        with urllib.request.urlopen(f"{node.monitoring_url}/health", timeout=60) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        found = json.loads(error.read())
    checks: dict[str, str] = found["checks"]
    return checks


def metric(node: Node, name: str) -> float:
    with urllib.request.urlopen(f"{node.monitoring_url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " "))


def eventually(holds: Callable[[], bool], limit_s: float = 60.0) -> bool:
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_all_but_producing_continues_while_the_store_is_down(tmp_path: Path) -> None:
    properties = diskless(tmp_path, "down")
    with Node(data=str(tmp_path / "data"), properties=properties) as node:
        bootstrap = node.bootstrap_servers
        assert produce(bootstrap, 100) == []
        assert consume(bootstrap, "before", 100) == list(range(100))
        WEATHERS["down"].down = True

        errors = produce(bootstrap, 20, **{"request.timeout.ms": 1_500, "retries": 0})
        assert {error.code() for error in errors} <= {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT}
        assert len(errors) == 20
        assert eventually(lambda: metric(node, "moldau_diskless_Writer_BufferedBytes") == 0)
        assert "503" in health(node)["objects"]

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("made-meanwhile", 1)])["made-meanwhile"].result(60)
        assert "made-meanwhile" in admin.list_topics(timeout=60).topics
        assert consume(bootstrap, "meanwhile", 100) == list(range(100))

        patient = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        patient.produce("orders", b"100")
        assert patient.flush(1) == 1
        WEATHERS["down"].down = False
        assert patient.flush(60) == 0
        assert eventually(lambda: health(node)["objects"] == "ok")
        assert consume(bootstrap, "after", 101) == list(range(101))


def test_a_node_starts_again_while_its_store_is_down(tmp_path: Path) -> None:
    properties = diskless(tmp_path, "restart")
    data = str(tmp_path / "data")
    with Node(data=data, properties=properties) as node:
        assert produce(node.bootstrap_servers, 50) == []
        assert consume(node.bootstrap_servers, "before", 50) == list(range(50))
    WEATHERS["restart"].down = True
    with Node(data=data, properties=properties) as node:
        assert consume(node.bootstrap_servers, "cached", 50) == list(range(50))
        WEATHERS["restart"].down = False
        assert produce(node.bootstrap_servers, 1) == []


def test_the_disk_holds_only_metadata_and_cache(tmp_path: Path) -> None:
    properties = diskless(tmp_path, "cache")
    data = tmp_path / "data"
    with Node(data=str(data), properties=properties) as node:
        assert produce(node.bootstrap_servers, 200) == []
    for path in data.iterdir():
        if path.is_dir() and not path.name.startswith("__"):
            shutil.rmtree(path)
    for database in data.glob("__diskless_metadata-*/*.sqlite*"):
        database.unlink()
    with Node(data=str(data), properties=properties) as node:
        assert consume(node.bootstrap_servers, "after", 200) == list(range(200))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"url": "ftp://nowhere"}, "diskless.storage.url"),
        ({"url": "file:///proc/nowhere"}, "file:///proc/nowhere"),
        (
            {
                "url": "s3://bucket",
                "endpoint": "http://127.0.0.1:1",
                "access_key_id": "key",
                "secret_access_key": "secret",
            },
            "s3://bucket",
        ),
    ],
)
def test_a_store_that_cannot_be_used_ends_the_start_with_one_line(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    arguments = [f"--set=diskless.storage.{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "dev", "--data", str(tmp_path / "data"), "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert named in done.stderr
