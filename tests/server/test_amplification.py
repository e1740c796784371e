"""The worst requests of every API, with a bystander beside them: no step of the event loop becomes long.

What a step costs is the number of calls that it makes, counted by the interpreter: the same on any machine. A
step of a hundred thousand calls takes some 10 to 50 ms.
"""

import socket
import struct
import sys
import threading
from asyncio import Handle
from collections import Counter

import pytest
from wire_client import METADATA_V12, WireClient

from moldau.protocol.api import SUPPORTED, ApiKey, request_header_version
from moldau.protocol.codec import encode_request, request_class
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.testing import Node
from worst_requests import worst_requests

CALLS_A_STEP = 100_000
OBJECTS_MAX = 1_500_000
SIZES = (30_000, 250_000)
LAST = 77
"""The correlation id of the request behind the attack: its answer says that the attack is over."""


class Steps:
    """Counts the calls that each callback of the node's event loop makes."""

    def __init__(self):
        self.longest = 0
        self.objects = 0
        self._calls = 0
        self._begin = Handle._run.__code__

    def __call__(self, frame, event, argument):
        if event == "call":
            if frame.f_code is self._begin:
                self.longest = max(self.longest, self._calls)
                self._calls = 0
                self.objects = max(self.objects, sys.getallocatedblocks())
                return
            self._calls += 1
        elif event == "c_call":
            self._calls += 1

    def start(self):
        self.longest = self.objects = 0


@pytest.fixture(scope="module")
def steps():
    return Steps()


@pytest.fixture(scope="module")
def node(steps):
    """A node whose loop is counted; worker threads are not: they do not keep it."""

    def watch(frame, event, argument):
        sys.setprofile(steps if threading.current_thread().name == "moldau-node" else None)

    threading.setprofile(watch)
    try:
        with Node(properties={"auto.create.topics.enable": "false"}) as running:
            yield running
    finally:
        threading.setprofile(None)


def served(node):
    with WireClient(node.bootstrap_servers) as client:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        rows = client.call((18, 3), request).api_keys
    return [row.api_key for row in rows]


def attack(node, api_key, version, body):
    """Send a request and one behind it; whether that one was answered, or the connection closed."""
    host, port = node.bootstrap_servers.rsplit(":", 1)
    header = struct.pack(">hhih", api_key, version, 1, -1)
    header += b"\0" if request_header_version(api_key, version) == 2 else b""
    last = struct.pack(">hhih", 18, 0, LAST, -1) + b"".join(encode_request(18, 0, ApiVersionsRequest()))
    frames = b"".join(struct.pack(">i", len(frame)) + frame for frame in (header + body, last))
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        try:
            connection.sendall(frames)
            while True:
                head = _exactly(connection, 8)
                if head is None:
                    return False
                size, correlation_id = struct.unpack(">ii", head)
                if _exactly(connection, size - 4) is None:
                    return False
                if correlation_id == LAST:
                    return True
        except ConnectionError:
            return False


def _exactly(connection, size):
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(min(size - len(content), 1 << 20))
        if not piece:
            return None
        content += piece
    return bytes(content)


class Bystander(threading.Thread):
    """Asks for metadata as long as it lives; counts right answers."""

    def __init__(self, node):
        super().__init__(name="bystander", daemon=True)
        self._bootstrap_servers = node.bootstrap_servers
        self.answers = Counter()
        self.over = threading.Event()

    def run(self):
        topics = [MetadataRequestTopic(name="bystander")]
        with WireClient(self._bootstrap_servers, timeout_s=120) as client:
            while not self.over.wait(0.005):
                (row,) = client.call(METADATA_V12, MetadataRequest(topics=topics)).topics
                self.answers["right" if len(row.partitions) == 3 else "wrong"] += 1


@pytest.fixture
def bystander(node):
    with WireClient(node.bootstrap_servers) as client:
        client.create_topic("bystander", partitions=3)
    thread = Bystander(node)
    thread.start()
    yield thread
    thread.over.set()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("size", SIZES)
def test_no_request_makes_a_long_step(node, steps, bystander, size):
    answered = refused = 0
    found = []
    for api_key in served(node):
        versions = SUPPORTED[ApiKey(api_key)]
        for version in sorted({versions.min, versions.max}):
            for body in worst_requests(request_class(api_key), version, size):
                before = sys.getallocatedblocks()
                steps.start()
                if attack(node, api_key, version, body):
                    answered += 1
                else:
                    refused += 1
                found.append((steps.longest, steps.objects - before, ApiKey(api_key).name, version))
    assert max(found)[0] < CALLS_A_STEP, sorted(found)[-5:]
    assert max(grown for _, grown, _, _ in found) < OBJECTS_MAX, found
    assert answered > 30
    assert bystander.answers["wrong"] == 0
    assert bystander.answers["right"] > 3
