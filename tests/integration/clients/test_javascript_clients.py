"""JavaScript's clients: kafkajs and @platformatic/kafka."""

import json

import pytest
from foreign_clients import JavaScript

pytestmark = pytest.mark.clients


def test_kafkajs(javascript: JavaScript, bootstrap: str, topic: str, group: str) -> None:
    report = json.loads(javascript.script("kafkajs_clients.js", bootstrap, topic, group))
    zipped, tombstone = report["first"]
    assert zipped == {
        "partition": 0,
        "offset": "0",
        "key": "k",
        "value": "zipped",
        "headers": {"h": "v"},
        "timestamp": "1600000000000",
    }
    assert tombstone["value"] is None
    assert [message["value"] for message in report["second"]] == ["later"]
    assert {entry["partition"]: entry["high"] for entry in report["offsets"]} == {0: "2", 1: "1"}
    committed = {item["partition"]: item["offset"] for item in report["committed"][0]["partitions"]}
    assert committed == {0: "2", 1: "1"}
    assert group in report["groups"]
    assert report["state"] == "Empty"
    assert [f"{broker['host']}:{broker['port']}" for broker in report["cluster"]["brokers"]] == [bootstrap]
    assert [entry["configValue"] for entry in report["configs"]] == ["604800000"]
    assert report["partitions"] == 3
    assert report["low"] == "1"
    assert topic not in report["topics"]


def test_platformatic_kafka(javascript: JavaScript, bootstrap: str, topic: str, group: str) -> None:
    report = json.loads(javascript.script("platformatic_clients.js", bootstrap, topic, group))
    assert report["created"] == topic
    assert {"none", "gzip", "snappy", "lz4"} <= set(report["codecs"])
    seen = report["first"] + report["second"]
    assert [message["key"] for message in seen] == report["codecs"]
    assert [message["headers"]["codec"] for message in seen] == report["codecs"]
    assert [message["offset"] for message in seen] == [str(number) for number in range(len(seen))]
    assert report["committed"] == str(len(seen))
    assert group in report["groups"]
    assert report["state"] == "EMPTY"
    assert report["partitions"] == 2
    assert topic not in report["topics"]
