"""Clients cannot write or delete internal topics."""

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from plain_requests import Requests

from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    STATE_TOPICS,
    TRANSACTION_STATE,
    StateTopic,
)
from moldau.config.broker import BrokerConfig
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.messages import find_coordinator
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.partitions import TopicPartition as TopicPartitionName
from moldau.records import Compression, Record, build_batch, iter_headers
from moldau.records.batch import set_base_offset_and_epoch
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.core.policy import SNAPSHOTTED
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, Machine
from moldau.runtime import KafkaError as MoldauError
from moldau.server.development_cluster import plan_nodes, properties_of
from moldau.server.settings import development_config
from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.storage.folders.log_folders import NewLog
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager
from moldau.testing import Node

DISKLESS = {"diskless.system.enable": "true", "diskless.storage.url": "memory://"}


def health(node: Node) -> dict[str, str]:
    """The reasons on the health page for each check."""
    try:
        with urllib.request.urlopen(f"{node.monitoring_url}/health", timeout=60) as answer:
            content = answer.read()
    except urllib.error.HTTPError as unwell:
        content = unwell.read()
    checks: dict[str, str] = json.loads(content)["checks"]
    return checks


def produce_error(bootstrap: str, topic: str, client_id: str) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    producer.produce(topic, b"x", key=b"k", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    return errors[0]


def test_a_client_cannot_write_to_an_internal_topic() -> None:
    with Node() as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        for topic in (CONSUMER_OFFSETS_TOPIC, REMOTE_LOG_METADATA_TOPIC):
            if topic not in admin.list_topics(timeout=60).topics:
                admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
            for client_id in ("someone", "__admin_client"):
                error = produce_error(node.bootstrap_servers, topic, client_id)
                assert error is not None, (topic, client_id)
                assert error.code() == KafkaError.TOPIC_EXCEPTION


def test_the_diskless_metadata_cannot_be_deleted_while_topics_need_it() -> None:
    with Node(properties=DISKLESS) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        topic = NewTopic("kept", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["kept"].result(60)
        deletion = admin.delete_topics([DISKLESS_METADATA_TOPIC])[DISKLESS_METADATA_TOPIC]
        with pytest.raises(Exception, match="INVALID_REQUEST"):
            deletion.result(60)
        assert produce_error(node.bootstrap_servers, "kept", "someone") is None


def test_a_formatted_folder_without_its_metadata_log_is_refused(tmp_path: Path) -> None:
    node = Node(data=str(tmp_path))
    node.start()
    node.stop()
    shutil.rmtree(tmp_path / CLUSTER_METADATA_FOLDER)
    with pytest.raises(MoldauError, match="__cluster_metadata-0 is missing"):
        Node(data=str(tmp_path)).start()


def test_the_refusal_of_log_folders_in_another_order_names_the_one_with_the_metadata(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    node = Node(data=first, properties={"log.dirs": f"{first},{second}"})
    node.start()
    node.stop()
    with pytest.raises(MoldauError, match=f"Set metadata.log.dir={first}"):
        Node(data=first, properties={"log.dirs": f"{second},{first}"}).start()
    node = Node(data=first, properties={"log.dirs": f"{second},{first}", "metadata.log.dir": first})
    node.start()
    node.stop()


def test_an_internal_topic_is_not_created_with_fewer_replicas_than_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    properties = {"offsets.topic.replication.factor": "3", "metrics.listener": "127.0.0.1:0"}
    with Node(properties=properties) as node:

        async def ask() -> tuple[ErrorCode, ErrorCode]:
            async with Requests(node.bootstrap_servers) as client:
                wanted = find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
                found = (await client.ask(wanted)).coordinators[0].error_code
                return found, (await client.describe(CONSUMER_OFFSETS_TOPIC)).error_code

        assert asyncio.run(ask()) == (
            ErrorCode.coordinator_not_available,
            ErrorCode.unknown_topic_or_partition,
        )
        assert CONSUMER_OFFSETS_TOPIC in health(node)["topics"]
    (warning,) = [each.getMessage() for each in caplog.records if CONSUMER_OFFSETS_TOPIC in each.getMessage()]
    assert "offsets.topic.replication.factor=3" in warning


def test_a_node_starts_before_the_diskless_metadata_can_be_created() -> None:
    properties = {
        **DISKLESS,
        "diskless.metadata.topic.replication.factor": "2",
        "metrics.listener": "127.0.0.1:0",
    }
    with Node(properties=properties) as node:

        async def ask() -> None:
            async with Requests(node.bootstrap_servers) as client:
                await client.create("classic")
                assert await client.produce_values("classic", b"x") == 0

        asyncio.run(ask())
        assert "diskless.metadata.topic.replication.factor=2" in health(node)["topics"]
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        wanted = [NewTopic("d", 1, 1, config={"diskless.enable": "true"})]
        refused = admin.create_topics(wanted, operation_timeout=1)["d"]
        with pytest.raises(Exception, match="COORDINATOR_NOT_AVAILABLE"):
            refused.result(60)


@pytest.mark.parametrize(("factor", "min_in_sync"), [(1, "1"), (2, "2"), (3, "2")])
def test_decisive_topics_need_two_in_sync_replicas_if_possible(factor: int, min_in_sync: str) -> None:
    assert TRANSACTION_STATE.configs(factor) == {
        "cleanup.policy": "compact",
        "min.insync.replicas": min_in_sync,
        "unclean.leader.election.enable": "false",
    }


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_a_log_is_opened_with_snapshots_if_its_kind_has_them(tmp_path: Path, has_snapshots: bool) -> None:
    partition = PartitionRegistration(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    topic = Topic(DISKLESS_METADATA_TOPIC, UUID(int=5), (partition,))

    async def story() -> None:
        machine = Machine.real()
        logs = LogManager(machine, [str(tmp_path)])
        kind = ClassicKind(
            ReplicaHost(
                machine=machine,
                logs=logs,
                local_id=1,
                arrivals=WaitingRoom(),
                meters=BrokerTopicMeters(Meters()),
            ),
            lambda _: LogConfig(),
            lambda _: 1,
            has_snapshots=has_snapshots,
        )
        if has_snapshots:
            config = kind.log_config(topic)
            assert config is not None
            await logs.create([NewLog(TopicPartitionName(topic.name, 0), config, topic.topic_id)])
            found = kind.open(topic, 0)
            assert isinstance(found, ClassicPartition)
            assert found.policy == SNAPSHOTTED
        else:
            assert kind.log_config(topic) is None
            with pytest.raises(MoldauError, match=f"the log of {topic.name} is shortened by snapshots"):
                kind.open(topic, 0)

    asyncio.run(story())


def test_the_state_of_diskless_topics_is_kept_while_they_are_switched_off(tmp_path: Path) -> None:
    store = tmp_path / "objects"
    store.mkdir()
    one = {"diskless.metadata.topic.num.partitions": "1"}
    diskless = {**DISKLESS, **one, "diskless.storage.url": f"file://{store}"}
    data = str(tmp_path / "data")
    with Node(data=data, properties=diskless) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        topic = NewTopic("kept", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["kept"].result(60)
        assert produce_error(node.bootstrap_servers, "kept", "someone") is None
    off = {"diskless.system.enable": "false", "metrics.listener": "127.0.0.1:0"}
    with Node(data=data, properties=off) as node:
        assert health(node)["partitions"] == "2 partitions are offline"
    with Node(data=data, properties=diskless) as node:
        consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"})
        assert consumer.get_watermark_offsets(TopicPartition("kept", 0), timeout=60) == (0, 1)
        consumer.close()


def test_committed_offsets_are_written_in_the_configured_codec(tmp_path: Path) -> None:
    properties = {"offsets.topic.compression.codec": "4", "offsets.topic.num.partitions": "1"}

    def consumer(node: Node) -> Consumer:
        return Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"})

    place = TopicPartition("read", 0, 5)
    with Node(data=str(tmp_path), properties=properties) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.create_topics([NewTopic("read", 1, 1)])["read"].result(60)
        reader = consumer(node)
        reader.commit(offsets=[place], asynchronous=False)
        reader.close()
    (segment,) = (tmp_path / f"{CONSUMER_OFFSETS_TOPIC}-0").glob("*.log")
    headers = [header for _, header in iter_headers(segment.read_bytes())]
    assert {header.compression for header in headers} == {Compression.ZSTD}
    with Node(data=str(tmp_path), properties=properties) as node:
        reader = consumer(node)
        (found,) = reader.committed([place], timeout=60)
        assert found.offset == 5
        reader.close()


def plant(segment: Path, *pairs: tuple[bytes | None, bytes | None]) -> None:
    """Append a batch to the segment file of a log that is closed."""
    content = segment.read_bytes()
    end_offset = max(header.last_offset + 1 for _, header in iter_headers(content))
    batch = bytearray(build_batch([Record(n, 1_000, key, value) for n, (key, value) in enumerate(pairs)]))
    set_base_offset_and_epoch(batch, 0, end_offset, 0)
    segment.write_bytes(content + batch)


def test_groups_continue_after_invalid_bytes_in_their_log(tmp_path: Path) -> None:
    properties = {"offsets.topic.num.partitions": "1", "metrics.listener": "127.0.0.1:0"}
    place = TopicPartition("read", 0, 5)
    with Node(data=str(tmp_path), properties=properties) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.create_topics([NewTopic("read", 1, 1)])["read"].result(60)
        reader = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"})
        reader.commit(offsets=[place], asynchronous=False)
        reader.close()
    (segment,) = (tmp_path / f"{CONSUMER_OFFSETS_TOPIC}-0").glob("*.log")
    plant(segment, (None, b"x"), (b"\x00\x01broken", b"x"), (b"\x03\xe7later", b"x"))
    with Node(data=str(tmp_path), properties=properties) as node:
        reader = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"})
        assert reader.committed([place], timeout=60)[0].offset == 5
        reader.commit(offsets=[TopicPartition("read", 0, 6)], asynchronous=False)
        assert reader.committed([place], timeout=60)[0].offset == 6
        reader.close()
        with urllib.request.urlopen(f"{node.monitoring_url}/health", timeout=60) as answer:
            health = json.load(answer)
        assert health["status"] == "up"
        assert "__consumer_offsets-0: 2 broken records were skipped" in health["notices"]["groups"]


@pytest.mark.parametrize("topic", STATE_TOPICS.values(), ids=lambda topic: topic.name)
def test_development_gives_each_state_topic_the_replicas_that_its_brokers_allow(topic: StateTopic):
    """The properties of development nodes need no entry for a new state topic."""
    assert development_config("/data", 9092, {}).integer(topic.factor_key) == 1
    nodes = plan_nodes("/data", "127.0.0.1", [1, 2, 3, 4], [5], [])
    properties = properties_of(nodes[0], nodes, {})
    assert BrokerConfig.from_properties(properties).integer(topic.factor_key) == 3
