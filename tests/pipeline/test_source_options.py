"""Options of ``format("moldau")``."""

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from moldau.client.errors import ToolError
from moldau.pipeline.source.options import (
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


def test_names_are_known_in_any_case() -> None:
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
def test_where_a_query_begins(options: dict[str, str], starting: object) -> None:
    assert parsed(subscribe="a", **options).starting == starting


def test_an_end_by_time_may_lie_behind_all_records() -> None:
    assert parsed(subscribe="a", endingTimestamp="17").ending == Timestamps(everywhere=17, or_latest=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "a", "assign": "{}"}, "give one of the options"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "below -2"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "below 0"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "positive number"),
        ({"subscribe": "a", "readFrom": "disks"}, "objects or brokers"),
        ({"subscribe": "a", "kafka.isolation.level": "none"}, "read_committed or"),
    ],
)
def test_nonsense_is_refused(options: dict[str, str], problem: str) -> None:
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
def test_what_a_batch_query_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        check_batch(parsed(**options))


def test_a_stream_has_no_end() -> None:
    check_streaming(parsed(subscribe="a", startingOffsets="latest"))
    with pytest.raises(ToolError, match="no ending offsets"):
        check_streaming(parsed(subscribe="a", endingOffsets="latest"))
