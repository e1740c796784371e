"""Requests that are designed to be expensive. The benchmark measures how long another client waits during
such a request, and the node's memory.

``python -m bench.hostile`` starts a node. During each attack another client (the bystander) produces and
requests metadata on its own connection. ``--only NAME`` runs only some attacks. ``--source FOLDER`` uses
another copy of the code.
"""

import argparse
import contextlib
import gzip
import multiprocessing
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from moldau.protocol.api import request_header_version, response_header_version
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages import create_topics, describe_configs, list_offsets, metadata, offset_commit
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression, Record, build_batch
from moldau.records.batch import parse_header
from moldau.records.compression import compress
from moldau.records.rewriting import assemble_batch

TINY_RECORDS = 15_000_000
PATIENCE_S = 240.0


class Client:
    """A blocking connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def send_body(self, api: tuple[int, int], body: bytes) -> None:
        header = struct.pack(">hhih", *api, 1, -1) + (b"\0" if request_header_version(*api) == 2 else b"")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self, api: tuple[int, int]) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        return decode_response(*api, memoryview(frame)[4 + response_header_version(*api) :])

    def call(self, version: int, message: Any) -> Any:
        api = (type(message).API_KEY, version)
        self.send_body(api, b"".join(encode_request(*api, message)))
        return self.receive(api)

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            piece = self._socket.recv(min(size - len(content), 1 << 20))
            if not piece:
                raise EOFError("the node closed the connection")
            content += piece
        return bytes(content)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        rows = [
            create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in {"diskless_enable": "false", **configs}.items()
        ]
        topic = create_topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=rows
        )
        self.call(7, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=60_000))

    def produce(self, topic: str, batch: bytes) -> Any:
        data = PartitionProduceData(index=0, records=batch)
        rows = [TopicProduceData(name=topic, partition_data=[data])]
        answer = self.call(9, ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=rows))
        return answer.responses[0].partition_responses[0].error_code.name


def bystander(port: int, topic: str, stop: Any, longest: Any, answers: Any) -> None:
    """Send metadata and produce requests alternately. The *silence* is the longest wait for a response."""
    client = Client(port)
    batch = build_batch([Record(0, int(time.time() * 1000), b"k", b"v")])
    while not stop.is_set():
        begun = time.perf_counter()
        if answers.value % 2:
            client.call(9, metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)]))
        else:
            client.produce(topic, batch)
        longest.value = max(longest.value, time.perf_counter() - begun)
        answers.value += 1
        time.sleep(0.002)


def bomb(codec: Compression, count: int = TINY_RECORDS) -> bytes:
    """A batch of ``count`` equal records without key and value."""
    record = b"\x0c\0\0\0\x01\x01\0"
    plain = record * count
    payload = gzip.compress(plain, 9) if codec is Compression.GZIP else compress(codec, plain)
    now_ms = int(time.time() * 1000)
    header = parse_header(build_batch([Record(0, now_ms, None, None)]))._replace(last_offset_delta=count - 1)
    return assemble_batch(header, int(codec), now_ms, now_ms, count, payload)


Attack = Callable[[Client], str]


def _produce_bomb(name: str, codec: Compression, count: int = TINY_RECORDS, **configs: str) -> Attack:
    def attack(client: Client) -> str:
        client.create(name, max_message_bytes=str(64 << 20), **configs)
        batch = bomb(codec, count)
        return f"{len(batch):,} bytes: {client.produce(name, batch)}"

    return attack


def _list_offsets(client: Client, count: int = TINY_RECORDS) -> str:
    client.create("planted", max_message_bytes=str(64 << 20), message_timestamp_after_max_ms=str(2**62))
    batch = bomb(Compression.GZIP, count)
    header = parse_header(batch)
    false = assemble_batch(
        header, int(Compression.GZIP), header.base_timestamp, 2**61, header.records_count, batch[61:]
    )
    produced = client.produce("planted", false)
    part = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=2**60)
    topic = list_offsets.ListOffsetsTopic(name="planted", partitions=[part])
    answer = client.call(7, list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]))
    return f"produce {produced}, list {answer.topics[0].partitions[0].error_code.name}"


def _raw(api: tuple[int, int], body: Callable[[], bytes]) -> Attack:
    def attack(client: Client) -> str:
        content = body()
        client.send_body(api, content)
        return f"{len(content):,} bytes: {type(client.receive(api)).__name__}"

    return attack


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _names(count: int) -> bytes:
    return struct.pack(">i", count) + b"\0\0" * count + b"\0\0\0"


def _many_topics(client: Client) -> str:
    rows = [
        metadata.MetadataRequestTopic(name=f"a-topic-with-a-rather-long-name-of-its-own-{n:06}-{'x' * 40}")
        for n in range(10_000)
    ]
    request = metadata.MetadataRequest(topics=rows, allow_auto_topic_creation=False)
    return f"{len(client.call(12, request).topics)} topics"


def _many_offsets(client: Client) -> str:
    client.create("committed")
    client.call(2, FindCoordinatorRequest(key="group"))
    time.sleep(1)
    rows = [
        offset_commit.OffsetCommitRequestPartition(partition_index=n, committed_offset=5)
        for n in range(50_000)
    ]
    topic = offset_commit.OffsetCommitRequestTopic(name="committed", partitions=rows)
    request = offset_commit.OffsetCommitRequest(
        group_id="group", generation_id_or_member_epoch=-1, topics=[topic]
    )
    return f"{len(client.call(8, request).topics[0].partitions)} partitions"


def _many_configs(client: Client) -> str:
    rows = [
        describe_configs.DescribeConfigsResource(
            resource_type=4, resource_name=str(1 if n % 2 else ""), configuration_keys=None
        )
        for n in range(1_000)
    ]
    request = describe_configs.DescribeConfigsRequest(
        resources=rows, include_synonyms=True, include_documentation=True
    )
    return f"{len(client.call(4, request).results)} resources"


def _large_member(client: Client) -> str:
    client.call(2, FindCoordinatorRequest(key="group"))
    time.sleep(1)
    protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(50_000_000))
    request = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = client.call(3, request)
    return f"{joined.error_code.name}, {len(joined.members)} members"


ATTACKS: dict[str, Attack] = {
    "gzip, recompressed": _produce_bomb("recompressed", Compression.GZIP, compression_type="zstd"),
    "gzip, compacted": _produce_bomb("compacted", Compression.GZIP, cleanup_policy="compact"),
    "zstd, compacted": _produce_bomb("compacted-zstd", Compression.ZSTD, cleanup_policy="compact"),
    "lz4, compacted": _produce_bomb("compacted-lz4", Compression.LZ4, cleanup_policy="compact"),
    "snappy, compacted": _produce_bomb("compacted-snappy", Compression.SNAPPY, cleanup_policy="compact"),
    "gzip, timestamps": _produce_bomb("stamped", Compression.GZIP, message_timestamp_before_max_ms="3600000"),
    "ListOffsets, planted": _list_offsets,
    "gzip, recompressed, 1,000,000 records": _produce_bomb(
        "recompressed", Compression.GZIP, 1_000_000, compression_type="zstd"
    ),
    "gzip, compacted, 1,000,000 records": _produce_bomb(
        "compacted", Compression.GZIP, 1_000_000, cleanup_policy="compact"
    ),
    "ListOffsets, planted, 1,000,000 records": lambda client: _list_offsets(client, 1_000_000),
    "JoinGroup, 50 MB of metadata": _large_member,
    "Metadata, 100 MB of empty names": _raw((3, 1), lambda: _names(50_000_000)),
    "Metadata, 1 MB of empty names": _raw((3, 4), lambda: _names(500_000)),
    "Metadata, 64 KB of empty names": _raw((3, 4), lambda: _names(32_000)),
    "ApiVersions, 20 MB of tags": _raw(
        (18, 3), lambda: b"\x01\x01" + _uvarint(10_000_000) + b"\x7f\0" * 10_000_000
    ),
    "Metadata of 10,000 topics": _many_topics,
    "OffsetCommit of 50,000 partitions": _many_offsets,
    "DescribeConfigs of 1,000 resources": _many_configs,
}


@contextlib.contextmanager
def running(source: str | None) -> Iterator[tuple[int, int]]:
    """A node's process id and port."""
    environment = dict(os.environ)
    if source:
        environment["PYTHONPATH"] = source
    with tempfile.TemporaryDirectory(prefix="moldau-hostile-") as folder:
        command = [sys.executable, "-m", "moldau", "dev", "--data", folder, "--port", "0", "--classic"]
        command += ["--set", "auto.create.topics.enable=false"]
        node = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        try:
            assert node.stdout is not None
            line = node.stdout.readline()
            yield node.pid, int(line.rsplit(":", 1)[1])
        finally:
            node.send_signal(signal.SIGKILL)
            node.wait()


def peak_mib(pid: int) -> float:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(name: str, source: str | None) -> str:
    """Run one attack. Returns its row of the table."""
    with running(source) as (pid, port):
        client = Client(port)
        client.create("bystander")
        context = multiprocessing.get_context("spawn")
        stop, longest, answers = context.Event(), context.Value("d", 0.0), context.Value("q", 0)
        watcher = context.Process(target=bystander, args=(port, "bystander", stop, longest, answers))
        watcher.start()
        while answers.value < 20:
            time.sleep(0.05)
        longest.value = 0.0
        before = peak_mib(pid)
        begun = time.perf_counter()
        try:
            outcome = ATTACKS[name](client)
        except (EOFError, OSError) as error:
            outcome = str(error)
        took = time.perf_counter() - begun
        seen = answers.value
        while answers.value < seen + 2:
            time.sleep(0.01)
        stop.set()
        watcher.join()
        grown = peak_mib(pid) - before
    return f"| {name} | {longest.value * 1000:,.0f} ms | {took:.1f} s | {grown:,.0f} MiB | {outcome} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--source")
    arguments = parser.parse_args()
    print("| attack | longest silence | attack took | memory grew by | outcome |\n|---|---|---|---|---|")
    for name in ATTACKS:
        if not arguments.only or any(part in name for part in arguments.only):
            print(measure(name, arguments.source), flush=True)


if __name__ == "__main__":
    main()
