"""Requests of brokers, controllers and coordinators whose fields are changed. Frames and types are correct.

Without an authorizer, any client can send these requests. After each batch of such requests, ordinary clients
must be served again within seconds, also after a restart. ``FUZZ_SEEDS=N`` runs the seeds from 0 to N - 1.
"""

import asyncio
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pytest

from changed_requests import ChangedRequests
from moldau.cluster.broker_lifecycle import BrokerLifecycle
from moldau.cluster.decisions import brokers
from moldau.cluster.image.registrations import SupportedFeature
from moldau.coordinators.diskless import handlers
from moldau.coordinators.diskless.calls import BatchToCommit
from moldau.coordinators.diskless.codecs.batch_columns import encode_batches
from moldau.diskless.writing.open_commits import OpenCommits
from moldau.protocol.api import SUPPORTED, ApiKey
from moldau.protocol.codec import encode_request
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.framing import RequestHeader, encode_request_header
from moldau.protocol.messages import create_topics, fetch, find_coordinator, offset_commit, produce
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.broker_registration import Feature
from moldau.protocol.messages.envelope import EnvelopeRequest
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.own import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.own.diskless.commit_file import DisklessCommitFileRequest
from moldau.protocol.own.diskless.commit_parts import DisklessCommitPartsRequest
from moldau.protocol.own.diskless.describe_files import DisklessDescribeFilesRequest
from moldau.protocol.own.diskless.prune import DisklessPruneRequest
from moldau.protocol.schema import Message, parse_versions
from moldau.quorum.core import requests
from moldau.records import Record, build_batch
from moldau.runtime import ErrorCode
from moldau.simulation.checks.answers_checks import check_budgets, check_defects
from moldau.simulation.clients.client import Bootstrap, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.stories.diskless_stories import story
from moldau.simulation.world.clock import EPOCH_MS
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World
from request_classes import request_class

pytestmark = [pytest.mark.simulation]

SEEDS = range(int(os.environ.get("FUZZ_SEEDS") or "5"))
ROUNDS = 25
REQUESTS_A_ROUND = 12
HOST, PORT, CONTROLLER_PORT = "node-1", 9092, 9093
LISTENERS = f"PLAINTEXT://{HOST}:{PORT},CONTROLLER://{HOST}:{CONTROLLER_PORT}"
SERVED_AGAIN_S: Final = 40.0
"""Virtual time within which ordinary clients must be served. A broker that has lost its registration
registers again within this time. The same time limit applies after a start of the node."""
ANSWERED_S: Final = 20.0
"""Time limit for each request. No request asks the node to wait longer than a second."""
SERVED: Final = {"kept-classic": "false", "kept-diskless": "true"}
"""Topics of ordinary clients. No changed request names them."""
HIT: Final = {"hit-classic": "false", "hit-diskless": "true"}
"""Topics that the changed requests name."""
MANAGED: Final = {
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.UPDATE_FEATURES, ApiKey.CREATE_PARTITIONS,
}  # fmt: skip
"""APIs of administrators. The effect of such a request may correctly stop other clients."""
OF_BROKERS: Final = (
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.UNREGISTER_BROKER, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER,
)  # fmt: skip
"""APIs on the listener for clients that other brokers or their administrators use."""

TRUSTED: Final = {
    ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.BROKER_HEARTBEAT,
    ApiKey.BROKER_REGISTRATION, ApiKey.ALTER_PARTITION, ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    DisklessCommitFileRequest.API_KEY, DisklessCommitPartsRequest.API_KEY, DisklessPruneRequest.API_KEY,
}  # fmt: skip
"""APIs whose values the receiver stores. Requests of these APIs are sent more often than other requests."""
NAMES: Final = (
    "name", "topic", "topic_name", "ConsolidationPlanRequest.topics", "TieredDescribeTopicsRequest.topics",
)  # fmt: skip
"""Fields with a name of a topic."""
OF_THE_QUORUM: Final = (
    "TopicData.topic_name", "VoteRequestTopicData.topic_name", "BeginQuorumEpochRequestTopicData.topic_name",
    "EndQuorumEpochRequestTopicData.topic_name", "TopicSnapshot.name",
    "DescribeQuorumRequestTopicData.topic_name",
)  # fmt: skip
"""Fields that name the topic of the quorum."""


async def served_keys() -> list[tuple[int, int]]:
    """Pairs of a port and the key of an API that is served there."""
    found = []
    for port in (PORT, CONTROLLER_PORT):
        connection = await RpcConnection.open("fuzzer", HOST, port)
        asked = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        of_kafka = {row.api_key for row in (await connection.request(18, 3, asked)).api_keys}
        own = await connection.request(DescribeOwnApisRequest.API_KEY, 0, DescribeOwnApisRequest())
        keys = of_kafka - MANAGED if port == CONTROLLER_PORT else of_kafka & set(OF_BROKERS)
        found += [(port, key) for key in sorted({*keys, *(row.api_key for row in own.apis)})]
        connection.close()
    return found


def versions(api_key: int) -> Any:
    return SUPPORTED[ApiKey(api_key)] if api_key in SUPPORTED else parse_versions(MODULES[api_key][1])


class Fuzzer:
    """Sends changed requests to a node."""

    def __init__(self, host: Host, chance: random.Random, history: History) -> None:
        self._host = host
        self._chance = chance
        self._history = history
        self._connections: dict[int, RpcConnection] = {}
        self._object_keys: list[str] = ["never-uploaded"]
        self._served: list[tuple[int, int]] = []
        self._deck: list[tuple[int, int]] = []
        self.sent = self.closed = 0
        self.last: list[Message] = []
        """The requests of the current round."""
        self.codes: set[ErrorCode] = set()

    async def round(self) -> None:
        self.last = []
        self._served = self._served or await served_keys()
        await self._learn_objects()
        for _ in range(REQUESTS_A_ROUND):
            await self._send_one()

    async def _send_one(self) -> None:
        if not self._deck:  # one shuffled round contains every API
            often = [pair for pair in self._served if pair[1] in TRUSTED]
            deck = [*self._served, *often, *often]
            self._deck = self._chance.sample(deck, len(deck))
        port, api_key = self._deck.pop()
        version, message = self._changed(api_key)
        try:
            encode_request(api_key, version, message)
        except Exception:  # this version of the request cannot contain the changed value
            return
        self.last.append(message)
        try:
            connection = await self._connection(port)
            self.sent += 1
            response = await connection.request(api_key, version, message, timeout_s=ANSWERED_S)
            self.codes.add(getattr(response, "error_code", ErrorCode.none))
        except TimeoutError:
            self._history.violate(f"no response to version {version} of {message}")
            self._connections.pop(port).close()
        except OSError:
            self.closed += 1

    def _changed(self, api_key: int) -> tuple[int, Message]:
        chance, range_ = self._chance, versions(api_key)
        version = chance.choice((range_.max, range_.max, chance.randint(range_.min, range_.max)))
        changed = ChangedRequests(chance, known_values(self._host, self._object_keys))
        message = changed.request(request_class(api_key), version)
        if isinstance(message, EnvelopeRequest):
            keys = [key for port, key in self._served if port == CONTROLLER_PORT and key in SUPPORTED]
            inner_key = chance.choice([key for key in keys if key != ApiKey.ENVELOPE])
            inner_version = versions(inner_key).max
            inner = changed.request(request_class(inner_key), inner_version)
            try:
                body = b"".join(bytes(part) for part in encode_request(inner_key, inner_version, inner))
            except Exception:
                body = b""
            message.request_data = (
                encode_request_header(RequestHeader(inner_key, inner_version, 1, "f")) + body
            )
        return version, message

    async def _connection(self, port: int) -> RpcConnection:
        found = self._connections.get(port)
        if found is None or found.closed:
            found = self._connections[port] = await RpcConnection.open("fuzzer", HOST, port)
        return found

    async def _learn_objects(self) -> None:
        request = DisklessDescribeFilesRequest(
            coordinator_id=self._chance.randrange(2), files=None, after_key="", limit=20
        )
        try:
            connection = await self._connection(PORT)
            answer = await connection.request(request.API_KEY, 0, request, timeout_s=ANSWERED_S)
        except OSError:
            return
        self._object_keys = ["never-uploaded", *(file.object_key for file in answer.files)][:8]

    def disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


def feature_of(known: SupportedFeature) -> Feature:
    return Feature(
        name=known.name, min_supported_version=known.min_level, max_supported_version=known.max_level
    )


def known_values(host: Host, object_keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    """For each field name of a request, valid values of the running node (ids, epochs, names and so on)."""
    assert host.process is not None
    node: Any = host.process.exhibit
    image = node.metadata.publisher.image
    broker = image.brokers.get(1)
    topics = [image.topics.get(name) for name in HIT]
    ids = [topic.topic_id for topic in topics if topic is not None]
    parts = [topic.partitions[0] for topic in topics if topic is not None]
    batch = BatchToCommit(ids[-1], 0, 0, 0, 100, 0, 1, EPOCH_MS, 0, -1, -1, -1, -1, 0)
    true_epoch = -1 if broker is None else broker.epoch
    directories = [UUID(int=5)] if broker is None else broker.log_dirs
    return {
        "broker_epoch": [true_epoch, true_epoch, true_epoch + 1],
        "previous_broker_epoch": [true_epoch],
        "incarnation_id": [UUID(int=5)] if broker is None else [broker.incarnation_id],
        **{name: [1] for name in ("broker_id", "node_id", "controller_id", "uploader_broker_id")},
        **{name: [1, 1, 1, 2] for name in ("voter_id", "replica_id", "candidate_id")},
        "leader_id": [1],
        "broker_ids": [(1,)],
        "replicas": [(1,)],
        "in_sync": [(1,)],
        "new_isr": [(1,)],
        **dict.fromkeys(("topic_id", "topic_ids"), ids),
        **{key: [*HIT, CLUSTER_METADATA_TOPIC] for key in NAMES},
        "cluster_id": [node.metadata.identity.cluster_id],
        **dict.fromkeys(("directory_id", "id_", "log_dirs", "replica_directory_id"), directories),
        **dict.fromkeys(("voter_directory_id", "candidate_directory_id"), directories),
        "current_leader_epoch": [node.metadata.driver.epoch, -1],
        "replica_epoch": [node.metadata.driver.epoch + 1],
        "leader_epoch": [node.metadata.driver.epoch, parts[0].leader_epoch],
        "last_offset_epoch": [node.metadata.driver.epoch],
        "last_offset": [image.provenance.offset + 100],
        "current_metadata_offset": [image.provenance.offset],
        "partition_epoch": [parts[0].partition_epoch],
        "epoch": [parts[0].leader_epoch],
        "coordinator_id": [0, 1],
        "owner_ids": [(0,)],
        "remaining_owner_ids": [(0,), (1,)],
        "object_key": object_keys,
        "object_keys": object_keys,
        "file_size": [100],
        "created_ms": [node._machine.clock.now_ms()],
        "columns": [encode_batches([batch], with_guards=True)],
        "commit_number": [0, 1, 1 << 40],
        "open_from": [0, 1 << 40],
        "object_format": [1],
        "security_protocol": [0],
        "features": [tuple(map(feature_of, () if broker is None else broker.features))],
        **{key: [CLUSTER_METADATA_TOPIC] for key in OF_THE_QUORUM},
        "Listener.name": ["PLAINTEXT"],
        "host": [HOST],
        "port": [PORT],
        "timeout_ms": [100, 1_000, 1_000],
        "transaction_timeout_ms": [60_000],
        "endpoint_type": [1, 2],
        "max_wait_ms": [0, 100],
        "max_bytes": [1 << 20],
        "partition_max_bytes": [1 << 20],
        "limit": [10],
        "engine": ["a", "b"],
        "producer_id": [-1, 7],
        "group_id": ["hit"],
        "transactional_id": ["hit"],
    }


class OrdinaryClient:
    """Produces and fetches, creates topics and commits offsets."""

    def __init__(self) -> None:
        self._connection: RpcConnection | None = None
        self._created = 0

    async def is_served(self) -> str:
        """Send ordinary requests to the node. Returns an empty text if all of them succeeded, otherwise a
        description of the failed request."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await RpcConnection.open("ordinary", HOST, PORT)
            for topic in SERVED:
                await self._produce_and_fetch(self._connection, topic)
            await self._create(self._connection)
            await self._commit(self._connection)
        except AssertionError as error:
            return str(error)
        except OSError as error:
            self.disconnect()
            return repr(error)
        return ""

    async def _produce_and_fetch(self, connection: RpcConnection, topic: str) -> None:
        value = build_batch([Record(0, EPOCH_MS, None, b"good")])
        data = produce.PartitionProduceData(index=0, records=value)
        rows = [produce.TopicProduceData(name=topic, partition_data=[data])]
        request = produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=rows)
        answer = await connection.request(ApiKey.PRODUCE, 9, request, timeout_s=ANSWERED_S)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code is ErrorCode.none, f"produce to {topic}: {row.error_code.name}"
        wanted = fetch.FetchPartition(partition=0, fetch_offset=row.base_offset, partition_max_bytes=1 << 20)
        topics = [fetch.FetchTopic(topic=topic, partitions=[wanted])]
        asked = fetch.FetchRequest(replica_id=-1, max_wait_ms=500, min_bytes=1, topics=topics)
        found = (await connection.request(ApiKey.FETCH, 11, asked, timeout_s=ANSWERED_S)).responses[0]
        part = found.partitions[0]
        assert part.error_code is ErrorCode.none, f"fetch from {topic}: {part.error_code.name}"
        assert part.records, f"fetch from {topic}: no records at {row.base_offset}"

    async def _create(self, connection: RpcConnection) -> None:
        self._created += 1
        topic = create_topics.CreatableTopic(
            name=f"new-{self._created}", num_partitions=1, replication_factor=1
        )
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        answer = await connection.request(ApiKey.CREATE_TOPICS, 5, request, timeout_s=ANSWERED_S)
        code = answer.topics[0].error_code
        assert code is ErrorCode.none, f"create a topic: {code.name}"

    async def _commit(self, connection: RpcConnection) -> None:
        for key_type in (CoordinatorKeyType.GROUP, CoordinatorKeyType.TRANSACTION):
            find = find_coordinator.FindCoordinatorRequest(key="ordinary", key_type=key_type)
            found = await connection.request(ApiKey.FIND_COORDINATOR, 3, find, timeout_s=ANSWERED_S)
            assert found.error_code is ErrorCode.none, f"find a coordinator: {found.error_code.name}"
        row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topics = [offset_commit.OffsetCommitRequestTopic(name=next(iter(SERVED)), partitions=[row])]
        request = offset_commit.OffsetCommitRequest(group_id="ordinary", topics=topics)
        answer = await connection.request(ApiKey.OFFSET_COMMIT, 8, request, timeout_s=ANSWERED_S)
        code = answer.topics[0].partitions[0].error_code
        assert code is ErrorCode.none, f"commit an offset: {code.name}"

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def until_served(client: OrdinaryClient, history: History, what: Callable[[], object]) -> bool:
    """Wait until an ordinary client is served."""
    start_s = history.now_s()
    while failure := await client.is_served():
        if history.now_s() - start_s > SERVED_AGAIN_S:
            history.violate(f"{failure} for {SERVED_AGAIN_S} s, after {what()}")
            return False
        await asyncio.sleep(0.5)
    return True


async def fuzz(host: Host, program: Any, chance: random.Random, history: History, rounds: int) -> Fuzzer:
    """Send rounds of changed requests. Restart the node in the middle and at the end."""
    admin = SimulatedClient("admin", Bootstrap(HOST, PORT), history, chance)
    for name, is_diskless in {**SERVED, **HIT}.items():
        await admin.create_topic(name, 2, {"diskless.enable": is_diskless})
    admin.disconnect()
    fuzzer, client = Fuzzer(host, chance, history), OrdinaryClient()
    for number in range(rounds):
        await fuzzer.round()
        if not await until_served(client, history, lambda: fuzzer.last) or not host.running:
            break
        if number in (rounds // 2, rounds - 1):
            fuzzer.disconnect()
            client.disconnect()
            await check_budgets(host, history)
            check_defects(host, history)
            host.kill()
            host.start(program)
            if not await until_served(client, history, lambda: "a restart"):
                break
    fuzzer.disconnect()
    client.disconnect()
    return fuzzer


def play(seed: int, rounds: int = ROUNDS) -> tuple[list[str], Fuzzer]:
    """Violations in a history, and its fuzzer."""
    program = story((), {"listeners": LISTENERS, "diskless.metadata.topic.num.partitions": "2"}).program
    with World(seed, time_limit_s=20_000.0) as world:
        history = History(world.loop.elapsed_s)
        node = world.host(HOST)
        node.start(program)

        async def run() -> Fuzzer:
            chance = random.Random(f"privileged {seed}")
            process = world.host("clients").start(
                lambda _machine: fuzz(node, program, chance, history, rounds)
            )
            assert process.main is not None
            return await process.main

        fuzzer = world.run(run())
        return [*history.violations, *world.errors()], fuzzer


@pytest.mark.usefixtures("quiet_nodes")
@pytest.mark.parametrize("seed", SEEDS)
def test_ordinary_clients_are_served_after_changed_requests(seed: int) -> None:
    violations, fuzzer = play(seed)
    assert not violations
    assert fuzzer.closed == 0, "a connection was closed, although all frames are correct"
    assert fuzzer.sent > ROUNDS * REQUESTS_A_ROUND // 2
    assert len(fuzzer.codes) > 4, "the requests are poor"


def accept_every_epoch(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator stores epochs that no broker has yet, and a broker never stops numbering
    its commits."""
    patch.setattr(handlers, "check_epochs", lambda named: None)
    patch.setattr(OpenCommits, "abandon_numbers", lambda commits: None)


def accept_the_highest_epoch(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a controller accepts any epoch in a request of the quorum."""
    patch.setattr(requests, "EPOCH_STEP_MAX", 1 << 31)


def believe_every_stop(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a running broker sends no heartbeats any more if a response of the controller allows
    it to stop."""
    process = BrokerLifecycle._process_heartbeat

    def stop(lifecycle: BrokerLifecycle, response: Any) -> None:
        if response.should_shut_down:
            lifecycle._may_go.set()
        else:
            process(lifecycle, response)

    patch.setattr(BrokerLifecycle, "_process_heartbeat", stop)


def replace_registrations(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a registration request with the id of another broker's incarnation replaces the
    addresses of that broker."""
    patch.setattr(brokers, "_is_repeated", lambda *_, is_alive: True)


@pytest.mark.usefixtures("quiet_nodes")
@pytest.mark.parametrize(
    ("mutate", "seed"),
    [
        (accept_every_epoch, 0),
        (accept_the_highest_epoch, 0),
        (believe_every_stop, 1),
        (replace_registrations, 0),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], seed: int) -> None:
    """``seed`` detects the mutant. If a change of the code has made this seed useless, one of the seeds from
    0 to 11 must detect the mutant."""

    def is_caught(seed: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            mutate(patch)
            return bool(play(seed)[0])

    assert any(map(is_caught, (seed, *range(12)))), f"{mutate.__doc__} is missed"
