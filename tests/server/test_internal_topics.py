"""What the cluster writes for itself is not for clients to write or to take away."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.records import Compression, iter_headers
from moldau.runtime import KafkaError as MoldauError
from moldau.testing import Node

DISKLESS = {"diskless.system.enable": "true", "diskless.storage.url": "memory://"}


def produce_error(bootstrap: str, topic: str, client_id: str) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    producer.produce(topic, b"x", key=b"k", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    return errors[0]


def test_a_client_cannot_write_to_an_internal_topic() -> None:
    with Node() as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.create_topics([NewTopic("__consumer_offsets", 1, 1)])["__consumer_offsets"].result(60)
        error = produce_error(node.bootstrap_servers, "__consumer_offsets", "someone")
        assert error is not None
        assert error.code() == KafkaError.TOPIC_EXCEPTION
        assert produce_error(node.bootstrap_servers, "__consumer_offsets", "__admin_client") is None


def test_the_diskless_metadata_cannot_be_deleted_while_topics_need_it() -> None:
    with Node(properties=DISKLESS) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        topic = NewTopic("kept", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["kept"].result(60)
        deletion = admin.delete_topics(["__diskless_metadata"])["__diskless_metadata"]
        with pytest.raises(Exception, match="INVALID_REQUEST"):
            deletion.result(60)
        assert produce_error(node.bootstrap_servers, "kept", "someone") is None


def test_a_formatted_folder_without_its_metadata_log_is_refused(tmp_path: Path) -> None:
    node = Node(data=str(tmp_path))
    node.start()
    node.stop()
    shutil.rmtree(tmp_path / "__cluster_metadata-0")
    with pytest.raises(MoldauError, match="__cluster_metadata-0 is missing"):
        Node(data=str(tmp_path)).start()


def test_committed_offsets_are_written_in_the_codec_that_was_asked_for(tmp_path: Path) -> None:
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
    (segment,) = (tmp_path / "__consumer_offsets-0").glob("*.log")
    headers = [header for _, header in iter_headers(segment.read_bytes())]
    assert {header.compression for header in headers} == {Compression.ZSTD}
    with Node(data=str(tmp_path), properties=properties) as node:
        reader = consumer(node)
        (found,) = reader.committed([place], timeout=60)
        assert found.offset == 5
        reader.close()
