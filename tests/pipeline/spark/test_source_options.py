"""Options of ``format("moldau")``."""

import pathlib
import re

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from moldau.client.errors import ToolError
from moldau.pipeline.source import kafka_options
from moldau.pipeline.source.options import (
    CONNECTOR,
    EARLIEST,
    LATEST,
    SourceOptions,
    Timestamps,
    check_batch,
    check_streaming,
    parse_options,
)


def parsed(**options: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": "localhost:9092", **options})


def test_option_names_are_accepted_in_upper_and_lower_case() -> None:
    storage = {"Diskless.Storage.URL": "s3://bucket"}
    options = parsed(SUBSCRIBE="a, b", failondataloss="FALSE", checkpointLocation="/here", **storage)
    assert options.topics == {"a": None, "b": None}
    assert not options.fail_on_data_loss
    assert options.storage == {"diskless.storage.url": "s3://bucket"}


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ({}, None),
        ({"startingOffsets": "Earliest"}, EARLIEST),
        ({"startingOffsets": "latest"}, LATEST),
        ({"startingOffsets": '{"a": {"0": 5, "1": -2}}'}, {"a": {0: 5, 1: EARLIEST}}),
        ({"startingTimestamp": "17", "startingOffsets": "latest"}, Timestamps(everywhere=17)),
        (
            {
                "startingOffsetsByTimestamp": '{"a": {"0": 5}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            Timestamps(by_partition={"a": {0: 5}}, or_latest=True),
        ),
    ],
)
def test_start_positions_of_a_query(options: dict[str, str], starting: object) -> None:
    assert parsed(subscribe="a", **options).starting == starting


def test_an_end_by_time_may_be_after_all_records() -> None:
    assert parsed(subscribe="a", endingTimestamp="17").ending == Timestamps(everywhere=17, or_latest=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "a", "assign": "{}"}, "give one of the options"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "below -2"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 5.7}}'}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": true}}'}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1e400}}'}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"-1": 5}}'}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": 5}'}, "JSON like"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": 9223372036854775808}}'}, "beyond 64 bits"),
        ({"subscribe": "a", "startingTimestamp": "9223372036854775808"}, "milliseconds since 1970"),
        ({"assign": '{"a": "01"}'}, "JSON like"),
        ({"assign": '{"a": [true]}'}, "JSON like"),
        ({"assign": '{"a": [1.5]}'}, "JSON like"),
        ({"assign": '{"a": [-1]}'}, "JSON like"),
        ({"assign": '{"a": []}'}, "JSON like"),
        ({"assign": "{}"}, "JSON like"),
        ({"subscribePattern": ""}, "empty"),
        ({"subscribe": "a", "kafka.bootstrap.servers": " "}, "is missing"),
        (
            {"subscribe": "a", "kafka.bootstrap.servers": "a:1,nowhere"},
            r"'nowhere' is not HOST:PORT \(kafka.bootstrap.servers\)",
        ),
        ({"subscribe": "a", "kafka.bootstrap.servers": ","}, "kafka.bootstrap.servers names no node"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "below 0"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "positive number"),
        ({"subscribe": "a", "readFrom": "disks"}, "objects or brokers"),
        ({"subscribe": "a", "kafka.isolation.level": "none"}, "read_committed or"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        parsed(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "a", "startingOffsets": "latest"},
        {"subscribe": "a", "endingOffsets": "earliest"},
        {"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'},
    ],
)
def test_options_that_a_batch_query_cannot_have(options: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        check_batch(parsed(**options))


def test_a_stream_has_no_end() -> None:
    check_streaming(parsed(subscribe="a", startingOffsets="latest"))
    with pytest.raises(ToolError, match="no ending offsets"):
        check_streaming(parsed(subscribe="a", endingOffsets="latest"))


GUIDE = {
    "assign": '{"a": [0, 1]}',
    "subscribe": "a",
    "subscribePattern": "a.*",
    "kafka.bootstrap.servers": "localhost:9092",
    "startingTimestamp": "1000",
    "startingOffsetsByTimestamp": '{"a": {"0": 1000}}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestampStrategy": "latest",
    "endingTimestamp": "1000",
    "endingOffsetsByTimestamp": '{"a": {"0": 1000}}',
    "endingOffsets": "latest",
    "failOnDataLoss": "false",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "1000",
    "maxOffsetsPerTrigger": "1000",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
    "minPartitions": "4",
    "maxRecordsPerPartition": "1000",
    "groupIdPrefix": "spark-kafka-source",
    "kafka.group.id": "mine",
    "includeHeaders": "true",
    "topic": "a",
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.client.id": "mine",
    "kafka.auto.include.jmx.reporter": "true",
    "kafka.fetch.max.bytes": "1000000",
    "kafka.max.partition.fetch.bytes": "1000000",
    "kafka.session.timeout.ms": "45000",
    "kafka.acks": "1",
    "kafka.linger.ms": "5",
    "kafka.compression.type": "zstd",
    "kafka.isolation.level": "read_committed",
    "kafka.request.timeout.ms": "20000",
    "kafka.client.rack": "eu-central-1a",
    "kafka.transactional.id": "mine",
    "kafka.transaction.timeout.ms": "60000",
}
"""Every option of Spark's Kafka integration guide, and frequently used client configurations."""


@pytest.mark.parametrize("name", GUIDE)
def test_options_of_the_connector_are_known(name: str) -> None:
    parsed(**{name: GUIDE[name]})


def test_each_option_of_the_connector_is_tried_and_documented() -> None:
    assert set(CONNECTOR) <= set(GUIDE)
    page = (pathlib.Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    listed = set(re.findall(r"`([A-Za-z.]+)`", page))
    assert set(CONNECTOR) <= listed
    refused = {f"kafka.{name}" for name in kafka_options.REFUSED}
    assert refused <= listed


def test_times_of_the_connector_have_a_meaning() -> None:
    options = parsed(subscribe="a", maxTriggerDelay="2h", **{"kafka.request.timeout.ms": "1500"})
    assert (options.max_trigger_delay_s, options.request_timeout_s) == (7200, 1.5)
    assert parsed(subscribe="a", maxTriggerDelay="250").max_trigger_delay_s == 0.25


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("kafka.security.protocol", "SASL_SSL", "cannot be 'SASL_SSL': nodes have no TLS and no SASL yet"),
        ("kafka.sasl.jaas.config", "x", "nodes have no TLS and no SASL yet"),
        ("kafka.ssl.truststore.location", "x", "nodes have no TLS and no SASL yet"),
        ("kafka.auto.offset.reset", "earliest", "give 'startingOffsets' instead"),
        ("kafka.enable.auto.commit", "false", "in its checkpoint, not in a consumer group"),
        ("kafka.key.deserializer", "x", "keys and values are binary columns"),
        ("kafka.partitioner.class", "x", "Kafka's default partitioner"),
        ("kafka.partitioner.ignore.keys", "true", "Kafka's default partitioner"),
        ("kafka.transactional.id", " ", "is empty"),
        ("kafka.transaction.timeout.ms", "2147483648", "is at most 2147483647"),
        ("kafka.transaction.two.phase.commit.enable", "true", "do not support transactions with two phases"),
        ("firstTransactionalBatch", "7", "needs the option 'kafka.transactional.id'"),
        ("kafka.acks", "2", "it is all, -1, 0 or 1"),
        ("kafka.isolation.levle", "x", "is it 'kafka.isolation.level'\\?"),
        ("maxOffsetPerTrigger", "5", "is it 'maxOffsetsPerTrigger'\\?"),
        ("maxTriggerDelay", "soon", "a time like 30s, 15m or 1h"),
        ("maxRecordsPerPartition", "0", "positive number"),
        ("kafka.request.timeout.ms", "-1", "positive number"),
        ("fetchOffset.numRetries", "often", "is a number, not 'often'"),
        ("fetchOffset.retryIntervalMs", "-1", "is a number, not '-1'"),
    ],
)
def test_unsupported_settings_are_refused_in_one_line(name: str, value: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem) as failure:
        parsed(subscribe="a", **{name: value})
    assert name in str(failure.value)
    assert "\n" not in str(failure.value)


def test_the_minimum_of_offsets_per_batch_may_not_be_above_the_maximum() -> None:
    with pytest.raises(
        ToolError, match=r"'minOffsetsPerTrigger' \(6\) is above 'maxOffsetsPerTrigger' \(5\)"
    ):
        parsed(subscribe="a", minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
