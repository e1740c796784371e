"""The number of requests that tasks send to an S3 store. A unit needs one request for each of its objects.
The tests do not need Spark."""

import http.client
import pathlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.consolidation.units import BuildUnits
from moldau.pipeline.reading.decoding import decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import pin
from moldau.pipeline.source.units import ask

PARTITIONS, FLUSHES, RECORDS = 4, 3, 20
TIMEOUT_S = 120.0
KEYS = {"access.key.id": "test", "secret.access.key": "test"}


class CountingProxy:
    """A proxy that forwards requests to a server, and records the keys of requested objects."""

    def __init__(self, endpoint: str) -> None:
        server, gets = urlsplit(endpoint).netloc, Counter[str]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                if self.command == "GET":
                    gets[urlsplit(self.path).path] += 1
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                connection = http.client.HTTPConnection(server, timeout=TIMEOUT_S)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            do_GET = do_PUT = do_POST = do_DELETE = pass_on

            def log_message(self, *_: Any) -> None:
                pass

        self.gets = gets
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[CountingProxy]:
    """A proxy that is used by tasks but not by brokers."""
    running = CountingProxy(s3_endpoint)
    yield running
    running.close()


@pytest.fixture
def node(s3_endpoint: str, s3_bucket: str, tmp_path: pathlib.Path) -> Iterator[moldau.testing.Node]:
    store = {"url": f"s3://{s3_bucket}/cluster", "endpoint": s3_endpoint, **KEYS}
    properties = {
        **{f"diskless.storage.{key}": value for key, value in store.items()},
        "diskless.metadata.topic.num.partitions": "2",
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "2",
        "remote.log.metadata.topic.replication.factor": "1",
        "diskless.consolidation.enable": "false",
        "diskless.consolidation.segment.bytes": "5000",
        "diskless.consolidation.max.age.ms": "0",
    }
    with moldau.testing.Node(data=str(tmp_path), diskless=True, properties=properties) as running:
        yield running


def produce(node: moldau.testing.Node, topic: str) -> None:
    """Produce records with several flushes. Each flush results in at least one object, with batches of all
    partitions."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 5})
    for _ in range(FLUSHES):
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"%d" % number + b"v" * 90, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0


def test_a_unit_reads_each_object_once(node: moldau.testing.Node, proxy: CountingProxy) -> None:
    produce(node, "orders")
    counted: list[tuple[int, set[str], Counter[str]]] = []

    def counting(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        assert isinstance(function, BuildUnits)
        found = []
        for unit in units:
            proxy.gets.clear()
            found.append(function(unit))
            names = {run.object_key for segment in unit.segments for run in segment.runs}
            counted.append((len(unit.segments), names, Counter(proxy.gets)))
        return found

    through = {
        f"diskless.storage.{key}": value for key, value in {**KEYS, "endpoint": proxy.endpoint}.items()
    }
    job = ConsolidateJob(
        node.bootstrap_servers, ("orders",), unit_bytes=12_000, timeout_s=TIMEOUT_S, storage=through
    )
    done = consolidate_once(job, counting)
    assert (done["failures"], done["segments"] >= PARTITIONS, done["units"] >= 2) == ([], True, True)
    assert max(segments for segments, _, _ in counted) >= 2
    assert max(len(names) for _, names, _ in counted) >= 2
    for _, names, gets in counted:
        asked = {path.split("/cluster/", 1)[1]: count for path, count in gets.items()}
        assert asked == dict.fromkeys(names, 1)


def test_a_unit_of_the_source_reads_each_object_once(node: moldau.testing.Node, proxy: CountingProxy) -> None:
    produce(node, "orders")
    through = {
        f"diskless.storage.{key}": value for key, value in {**KEYS, "endpoint": proxy.endpoint}.items()
    }
    options = parse_options(
        {"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": "orders", **through}
    )
    (found,) = ask(node.bootstrap_servers, lambda client: pin(client, options))
    assert found.source.wal is not None
    owners = found.source.wal.coordinators
    assert len(set(owners.values())) == 2
    rows = 0
    for owner in set(owners.values()):
        # As in a unit of the source, all partitions have the same coordinator.
        ranges = [one for one in found.ranges if owners[one.partition] == owner]
        proxy.gets.clear()
        tables = decode_found(fetch_found(found.source, ranges), ranges)
        rows += sum(table.num_rows for table in tables)
        assert len(proxy.gets) >= FLUSHES
        assert set(proxy.gets.values()) == {1}
    assert rows == PARTITIONS * FLUSHES * RECORDS
