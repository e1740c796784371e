"""kcat with the librdkafka of the Linux distribution. This librdkafka is several years older than the
librdkafka in confluent-kafka."""

import json

import pytest
from foreign_clients import Kcat

pytestmark = pytest.mark.clients


def test_metadata_lists_broker_and_topics(kcat: Kcat, bootstrap: str, topic: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, stdin="hello\n")
    shown = json.loads(kcat(bootstrap, "-L", "-J"))
    assert [broker["name"] for broker in shown["brokers"]] == [bootstrap]
    assert topic in [entry["topic"] for entry in shown["topics"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_round_trip_with_every_codec(kcat: Kcat, bootstrap: str, topic: str, codec: str) -> None:
    lines = [f"key{number}:value {number}" for number in range(200)]
    produced = "".join(line + "\n" for line in lines)
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-z", codec, "-H", "h=v", stdin=produced)
    shown = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-J").splitlines()
    messages = [json.loads(line) for line in shown]
    assert [f"{message['key']}:{message['payload']}" for message in messages] == lines
    assert messages[0]["headers"] == ["h", "v"]


def test_a_group_consumes_and_resumes(kcat: Kcat, bootstrap: str, topic: str, group: str) -> None:
    settings = ["-X", "auto.offset.reset=earliest", "-q"]
    kcat(bootstrap, "-P", "-t", topic, stdin="1\n2\n3\n")
    assert kcat(bootstrap, "-G", group, "-c", "2", *settings, topic).split() == ["1", "2"]
    kcat(bootstrap, "-P", "-t", topic, stdin="4\n")
    assert kcat(bootstrap, "-G", group, "-e", *settings, topic).split() == ["3", "4"]


def test_offsets_are_queried_by_timestamp(kcat: Kcat, bootstrap: str, topic: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, stdin="1\n2\n")
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:1").split() == [topic, "[0]", "offset", "0"]
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1").split() == [topic, "[0]", "offset", "2"]
    assert kcat(bootstrap, "-C", "-t", topic, "-o", "-1", "-e", "-q").split() == ["2"]
