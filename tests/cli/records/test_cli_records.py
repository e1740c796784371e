import json

import pytest

from moldau.cli.records.producer import partition_of_key
from moldau.records.hashing import murmur2


def test_lines_come_back_as_they_were(run):
    lines = b"one\n\ntwo \xff\xfe\nlast without a newline"
    assert run("produce", "lines", stdin=lines) == (0, "4 records to lines\n", "")
    read = run("consume", "lines").out.encode("utf-8", "surrogateescape")
    assert read == lines + b"\n"


def test_keys_headers_nulls_and_offsets(run):
    produced = run(
        "produce", "fields", "-p", "0", "-K", ":", "-H", "trace=1", "--null", "NULL", "--json",
        stdin=b"alice:1\nbob:NULL\n",
    )  # fmt: skip
    assert json.loads(produced.out) == {
        "topic": "fields",
        "records": 2,
        "partitions": [{"partition": 0, "records": 2, "first_offset": 0, "last_offset": 1}],
    }
    assert run("consume", "fields", "--key", "--headers", "--offset", "--separator", "|").out == (
        "0:0|trace=1|alice|1\n0:1|trace=1|bob|null\n"
    )
    first, second = map(json.loads, run("consume", "fields", "--json").out.splitlines())
    assert first.pop("timestamp") > 0
    assert first == {
        "topic": "fields",
        "partition": 0,
        "offset": 0,
        "key": "alice",
        "value": "1",
        "headers": [{"name": "trace", "value": "1"}],
    }
    assert (second["key"], second["value"]) == ("bob", None)


def test_json_that_was_consumed_can_be_produced(run, tmp_path):
    run("produce", "original", "-K", ":", "-H", "h=v", "--partition", "0", stdin=b"k:\xff\nk:text\n")
    copied = run("consume", "original", "--json").out
    file = tmp_path / "records.jsonl"
    file.write_text(copied)
    assert run("produce", "copy", "--format", "json", "--file", str(file)).code == 0
    assert run("consume", "copy", "--json").out == copied.replace('"original"', '"copy"')


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_in_every_compression_are_read_back(run, codec):
    assert run("produce", f"codec-{codec}", "--compression", codec, stdin=b"a\nb\n").code == 0
    assert run("consume", f"codec-{codec}").out == "a\nb\n"


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_with_every_acks_level_are_read_back(run, acks):
    assert run("produce", f"acks-{acks}", "--acks", acks, stdin=b"a\nb\n").code == 0
    assert run("consume", f"acks-{acks}", "--follow", "--count", "2").out == "a\nb\n"


def test_many_records_in_many_batches(run):
    run("topics", "create", "many", "-p", "3")
    values = [f"{number:0100d}" for number in range(20_000)]
    assert run("produce", "many", stdin="\n".join(values).encode()).out == "20000 records to many\n"
    assert sorted(run("consume", "many").out.split()) == values
    assert len(run("consume", "many", "--count", "7").out.split()) == 7


def test_consume_begins_at_the_requested_position(run):
    run("topics", "create", "starts", "-p", "1", "-c", "retention.ms=-1")
    rows = [{"value": str(second), "timestamp": 1_000_000_000_000 + second * 1000} for second in range(10)]
    lines = "\n".join(map(json.dumps, rows)).encode()
    assert run("produce", "starts", "--format", "json", stdin=lines).code == 0
    for start, expected in {
        "beginning": "0123456789",
        "latest": "",
        "4": "456789",
        "-3": "789",
        "@1000000008000": "89",
        "@2001-09-09T01:46:47Z": "789",
        "@2040-01-01T00:00:00+00:00": "",
    }.items():
        assert run("consume", "starts", "--from", start).out.replace("\n", "") == expected, start
    assert run("consume", "starts", "--from", "11") == (
        1,
        "",
        "moldau: offset 11 is outside of starts-0, which has 0 to 10\n",
    )


def test_following_ends_when_no_record_arrives_in_time(run):
    run("produce", "idle", stdin=b"x\n")
    assert run("consume", "idle", "--follow", "--idle-timeout", "0.2").out == "x\n"


def test_records_before_an_invalid_line_are_sent(run):
    code, out, err = run("produce", "bad-line", "-K", ":", stdin=b"a:1\nb\nc:3\n")
    assert (code, out, err) == (1, "", "moldau: line 2: there is no key separator ':'\n")
    assert run("consume", "bad-line").out == "1\n"


def test_a_record_without_an_acknowledgement_is_an_error(run):
    run("topics", "create", "small", "-c", "max.message.bytes=100")
    code, out, err = run("produce", "small", stdin=b"x" * 1000)
    assert (code, out) == (1, "")
    assert err.endswith("(0 records were acknowledged)\n")
    assert err.count("\n") == 1


def test_missing_topics_partitions_and_files_are_errors(run):
    run("topics", "create", "one-partition", "-p", "1")
    assert run("produce", "one-partition", "-p", "5", stdin=b"x\n").err == (
        "moldau: topic one-partition has no partition 5\n"
    )
    assert run("consume", "one-partition", "-p", "5").err == (
        "moldau: topic one-partition has no partition 5\n"
    )
    assert run("consume", "no-such-topic").err == "moldau: topic no-such-topic does not exist\n"
    assert run("produce", "bad/name", stdin=b"x\n").code == 1
    assert run("produce", "x", "--file", "/does/not/exist").err == (
        "moldau: cannot read /does/not/exist: No such file or directory\n"
    )


def test_records_before_an_offset_are_deleted(run):
    run("topics", "create", "shrinks", "-p", "1")
    run("produce", "shrinks", stdin=b"0\n1\n2\n3\n")
    assert (
        run("records", "delete", "shrinks", "--before", "1").out
        == "PARTITION  EARLIEST\n        0         1\n"
    )
    assert run("consume", "shrinks").out == "1\n2\n3\n"
    run("records", "delete", "shrinks", "--before", "-1")
    assert run("consume", "shrinks").out == "3\n"
    assert json.loads(run("records", "delete", "shrinks", "--before", "latest", "--json").out) == {
        "topic": "shrinks",
        "partitions": [{"partition": 0, "earliest": 4}],
    }
    assert run("consume", "shrinks").out == ""


def test_keys_get_the_partitions_that_the_java_client_chooses():
    # The Java client computes these hash values.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}
    for key, signed in hashes.items():
        assert murmur2(key) == signed % 2**32
    assert partition_of_key(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10
