"""Even the worst requests of every API do not block the event loop for long. An ordinary client is still
served.

The cost of a step is the number of function calls that the interpreter counts, because this number is the
same on any machine. A step of a hundred thousand calls takes about 10 to 50 ms.
"""

import cProfile
import socket
import struct
import sys
import threading
import time
import tracemalloc
import uuid
from asyncio import Handle
from collections import Counter

import pytest
from wire_client import METADATA_V12, WireClient

from moldau.protocol.api import SUPPORTED, ApiKey, request_header_version
from moldau.protocol.codec import encode_request
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.own import MODULES as OWN_MODULES
from moldau.protocol.own.diskless import (
    describe_producers,
    end_transactions,
    find_batches,
    guard_transactions,
    hand_over,
)
from moldau.protocol.own.diskless.create_partitions import (
    DisklessCreatablePartitions as CreatablePartitions,
)
from moldau.protocol.own.diskless.create_partitions import (
    DisklessCreatePartitionsRequest as CreatePartitions,
)
from moldau.protocol.schema import Message, parse_versions
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node
from request_classes import request_class
from worst_requests import worst_requests

CALLS_A_STEP = 100_000
OBJECTS_MAX = 1_500_000
SIZES = (30_000, 250_000)
"""The sizes of requests in bytes. Requests of the larger size are sent only in the newest version, because
the handlers have the same steps for all versions.
"""
CALLS_OF_LONG_STEPS = 500
STEPS_PER_LOOK = 50
"""Objects are counted after each long step, and also after this number of steps. They are not counted after
every step, because counting reads the whole heap."""
ANSWERED_BYTES = 80_000
ANSWERED_BYTES_RATIO = 16
ANSWERED_BYTES_FLOOR = 4 * 1024 * 1024
"""The memory that a request may need from its parsing to its response: the bytes of the request times
``ANSWERED_BYTES_RATIO``, plus ``ANSWERED_BYTES_FLOOR``."""
ANSWERED_IN_SLICES = (
    (ApiKey.LIST_OFFSETS, 1),
    (ApiKey.OFFSET_COMMIT, 2),
    (ApiKey.DELETE_RECORDS, 0),
)
"""APIs whose response has a separate row for each item of a few bytes, with the version that has the smallest
items."""
DECIDED_AS_A_WHOLE = (
    (ApiKey.ALTER_CONFIGS, 2),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
    (ApiKey.DESCRIBE_QUORUM, 2),
    (ApiKey.UPDATE_FEATURES, 0),
    (ApiKey.TXN_OFFSET_COMMIT, 0),
)
"""APIs whose handlers need all rows at once. The limit for the size of their parsed requests is stricter."""
LAST = 77
"""The correlation id of the request after the attack. The response to this request shows that the attack is
over."""


class Steps:
    """Counts the calls of functions and builtins in each callback of the node's event loop.

    It uses the interpreter's own profiler. If a Python function counted each event, the counting would take
    most of the test's time.
    """

    def __init__(self):
        self.longest = 0
        self.objects = 0
        self.thread = None
        self._number = 0
        self._profiler = cProfile.Profile()

    def run(self, step, handle):
        """Run a step and count its calls."""
        self._profiler.enable()
        try:
            step(handle)
        finally:
            self._profiler.disable()
        calls = sum(each.callcount for each in self._profiler.getstats())
        self._profiler.clear()
        self.longest = max(self.longest, calls)
        self._number += 1
        if calls > CALLS_OF_LONG_STEPS or self._number % STEPS_PER_LOOK == 0:
            self.objects = max(self.objects, sys.getallocatedblocks())

    def start(self):
        self.longest = self.objects = 0


@pytest.fixture(scope="module")
def steps():
    return Steps()


@pytest.fixture(scope="module")
def controller_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def node(steps, controller_port):
    """A node in whose event loop calls are counted. Worker threads are not counted, because they do not block
    the event loop."""
    step = Handle._run

    def run(handle):
        if threading.get_ident() == steps.thread:
            steps.run(step, handle)
        else:
            step(handle)

    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}"
    properties = {"auto.create.topics.enable": "false", "listeners": listeners}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "_run", run)
        others = set(threading.enumerate())
        with Node(diskless=True, properties=properties) as running:
            (steps.thread,) = (
                each.ident for each in set(threading.enumerate()) - others if each.name == "moldau-node"
            )
            yield running


@pytest.fixture(params=["clients", "own", "controllers"])
def target(request, node, controller_port):
    """An address, and the API versions that are served at this address."""
    address = node.bootstrap_servers
    if request.param == "own":
        ranges = {key: parse_versions(module[1]) for key, module in OWN_MODULES.items()}
        return address, {key: {versions.min, versions.max} for key, versions in ranges.items()}
    if request.param == "controllers":
        address = f"127.0.0.1:{controller_port}"
    with WireClient(address) as client:
        asked = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        keys = [ApiKey(row.api_key) for row in client.call((18, 3), asked).api_keys]
    return address, {key: {SUPPORTED[key].min, SUPPORTED[key].max} for key in keys}


def attack(address, api_key, version, body):
    """Send a request and then a second request. Returns whether there was a response to the second request or
    the connection was closed."""
    host, port = address.rsplit(":", 1)
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
    """Another client. It requests metadata until it is stopped, and counts correct responses."""

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
def test_no_request_makes_a_long_step(target, steps, bystander, size):
    answered = refused = 0
    found = []
    address, served = target
    for api_key, versions in served.items():
        for version in sorted(versions)[-1:] if size == max(SIZES) else sorted(versions):
            for body in worst_requests(request_class(api_key), version, size):
                before = sys.getallocatedblocks()
                steps.start()
                if attack(address, api_key, version, body):
                    answered += 1
                else:
                    refused += 1
                found.append((steps.longest, steps.objects - before, int(api_key), version))
    assert max(found)[0] < CALLS_A_STEP, sorted(found)[-5:]
    assert max(grown for _, grown, _, _ in found) < OBJECTS_MAX, found
    assert answered > 15
    assert bystander.answers["wrong"] == 0
    assert bystander.answers["right"] > 3


@pytest.fixture
def quiet_node():
    """A node whose calls are not counted."""
    with Node(diskless=True, properties={"auto.create.topics.enable": "false"}) as running:
        yield running


def test_answers_take_no_more_memory_than_requests_may(quiet_node):
    """The measured value is the peak of Python's allocations while a request is handled. It includes the
    request, its slices and its response."""
    answered = 0
    over = {}
    for api_key, version in (*ANSWERED_IN_SLICES, *DECIDED_AS_A_WHOLE):
        cls = request_class(api_key)
        small = worst_requests(cls, version, 300)  # the first call imports and compiles
        for number, body in enumerate(worst_requests(cls, version, ANSWERED_BYTES)):
            assert attack(quiet_node.bootstrap_servers, api_key, version, next(small))
            tracemalloc.start()
            try:
                answered += attack(quiet_node.bootstrap_servers, api_key, version, body)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            times = (peak - ANSWERED_BYTES_FLOOR) / len(body)
            if times > ANSWERED_BYTES_RATIO:
                over[api_key.name, version, number] = round(times)
    assert over == {}
    assert answered > len(ANSWERED_IN_SLICES)


ROWS = 5_000


def calls_about_rows(topic_id, partitions):
    """Calls to a coordinator. Each call has many rows, which name some of its partitions."""

    def topics(topic, partition, **fields):
        return [topic(topic_id=topic_id, partitions=[partition(**row, **fields) for row in rows])]

    rows = [{"partition_index": partitions[number % len(partitions)]} for number in range(ROWS)]
    yield find_batches.REQUEST(
        topics=topics(
            find_batches.DisklessFindBatchesTopic,
            find_batches.DisklessFindBatchesPartition,
            offset=0,
            max_partition_fetch_bytes=1,
        ),
        fetch_max_bytes=1,
        max_batches_per_partition=1,
    )
    rows = [{**row, "producer_id": number, "producer_epoch": 0} for number, row in enumerate(rows)]
    yield guard_transactions.REQUEST(
        topics=topics(guard_transactions.DisklessGuardedTopic, guard_transactions.DisklessGuardedPartition)
    )
    yield end_transactions.REQUEST(
        topics=topics(
            end_transactions.DisklessEndedTopic,
            end_transactions.DisklessEndedPartition,
            coordinator_epoch=0,
            committed=True,
            transaction_version=2,
        )
    )
    rows = [{"partition_index": row["partition_index"]} for row in rows]
    yield describe_producers.REQUEST(
        topics=topics(
            describe_producers.DisklessTopicToDescribe, describe_producers.DisklessPartitionToDescribe
        )
    )
    yield hand_over.REQUEST(
        files=[
            hand_over.DisklessHandedOverFile(
                object_key=f"object-{number}", file_size=1, created_ms=1, remaining_owner_ids=[0]
            )
            for number in range(20)
        ]
    )


def test_calls_that_do_their_work_make_no_long_step(node, steps):
    """Partitions and coordinator exist, so no row is refused. If rows were refused, the test would only
    measure refusals, which are fast.

    Before these requests had limits, a request with about 100,000 rows blocked a node for a long time: 0.1 s
    with rows about guards, 1 s with rows about markers, and 24 s with rows about producers.
    """
    with WireClient(node.bootstrap_servers, timeout_s=120) as client:
        client.create_topic("worked", partitions=100, diskless_enable="true")
        named = MetadataRequest(topics=[MetadataRequestTopic(name="worked")])
        topic_id = client.call(METADATA_V12, named).topics[0].topic_id

        def call(request):
            version = parse_versions(request.VERSIONS).max
            return client.call((request.API_KEY, version), request)

        partitions = []
        deadline = time.monotonic() + 60
        while not partitions:  # wait until the coordinator has created its partitions
            assert time.monotonic() < deadline
            found = call(next(calls_about_rows(topic_id, range(100)))).topics
            partitions = [
                row.partition_index
                for topic in found
                for row in topic.partitions[:100]
                if row.error_code is ErrorCode.none
            ]
        for request in calls_about_rows(topic_id, partitions):
            steps.start()
            assert errors(call(request)) == set()
            assert steps.longest < CALLS_A_STEP, request.__class__.__name__


def errors(message):
    """All error codes in a message."""
    found = set()
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if name == "error_code" and value is not ErrorCode.none:
            found.add(value)
        elif isinstance(value, list | tuple):
            found.update(*(errors(each) for each in value if isinstance(each, Message)))
    return found


@pytest.mark.parametrize("partitions", [{"num_partitions": 2_000}, {"partition_indexes": range(2_000)}])
def test_a_number_of_partitions_is_bounded(node, steps, partitions):
    """A request of 60 bytes can request thousands of partitions from a coordinator of diskless topics."""
    topic = CreatablePartitions(topic_id=uuid.uuid4(), name="many", **partitions)
    with WireClient(node.bootstrap_servers, timeout_s=120) as client:
        steps.start()
        response = client.call((CreatePartitions.API_KEY, 0), CreatePartitions(topics=[topic]))
    assert response.error_code is ErrorCode.invalid_request
    assert steps.longest < CALLS_A_STEP
