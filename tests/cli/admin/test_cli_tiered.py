"""``moldau tiered`` against a node that has copied a topic, and the content of the remote tier's files."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import moldau.testing
from moldau.tiered.storage.object_layout import unpack_indexes
from moldau.tiered.storage.storage_manager import IndexType

JARS = Path(__file__).parents[3] / ".tools" / "jars"
PATIENCE_S = 120.0
PROPERTIES = {"remote.log.manager.task.interval.ms": "50"}


@pytest.fixture(scope="module")
def node():
    with moldau.testing.Node(properties=PROPERTIES) as running:
        yield running


def parsed(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def copied(run, topic):
    """Wait until at least one copy is finished and no copy is in progress. Returns the segments of the
    topic."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = parsed(run("tiered", "segments", topic, "--json"))
        if found and all(segment["state"] == "COPY_SEGMENT_FINISHED" for segment in found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.fixture
def orders(run):
    """A tiered topic with at least one copied segment in partition 0, and an empty partition."""
    configs = ("-c", "remote.storage.enable=true", "-c", "segment.bytes=1048576")
    if run("topics", "create", "orders", *configs, "-p", "2").code == 0:
        # There is more than one segment, because the active segment is never copied.
        lines = b"".join(b"%0999d\n" % number for number in range(1500))
        assert run("produce", "orders", "-p", "0", stdin=lines).code == 0
    return "orders"


def test_tiered_segments_lists_the_copied_segments(run, orders):
    first = copied(run, orders)[0]
    assert (first["partition"], first["start_offset"], first["leader_epochs"]) == (0, 0, [[0, 0]])
    assert first["end_offset"] > 0
    assert 0 < first["size_bytes"] <= 1048576
    assert not first["has_aborted_transactions"]
    assert parsed(run("tiered", "segments", orders, "-p", "1", "--json")) == []
    code, out, err = run("tiered", "segments", orders)
    assert (code, err) == (0, "")
    header, line, *_ = (each.split() for each in out.splitlines())
    assert header[:4] == ["PARTITION", "START", "END", "BYTES"]
    assert line[:3] == ["0", "0", str(first["end_offset"])]
    assert line[-2:] == ["COPY_SEGMENT_FINISHED", first["id"]]


def test_tiered_topics_shows_offsets_and_sizes_of_each_partition(run, orders):
    segments = copied(run, orders)
    (topic,) = parsed(run("tiered", "topics", "--json"))
    assert topic["name"] == orders
    one, empty = topic["partitions"]
    assert (one["log_start"], one["high_watermark"], one["problem"]) == (0, 1500, None)
    assert one["remote_end"] >= segments[0]["end_offset"]
    assert one["remote_bytes"] >= segments[0]["size_bytes"]
    assert one["segments"] >= len(segments)
    assert (empty["remote_end"], empty["segments"], empty["remote_bytes"]) == (None, 0, 0)
    code, out, err = run("tiered", "topics", orders)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [[orders, "0"], [orders, "1"]]


def test_topics_that_are_not_tiered_and_missing_partitions_are_errors(run, orders):
    assert run("topics", "create", "plain").code == 0
    for arguments in (("topics", "plain"), ("segments", "plain"), ("segments", "absent")):
        code, _, err = run("tiered", *arguments)
        assert (code, "no tiered topic is called" in err) == (1, True)
    code, _, err = run("tiered", "segments", orders, "-p", "7")
    assert (code, "orders has no partition 7" in err) == (1, True)


def test_a_broker_without_a_remote_tier_names_the_missing_config(cli):
    with moldau.testing.Node(properties={"remote.log.storage.system.enable": "false"}) as other:
        code, _, err = cli("tiered", "topics", "-b", other.bootstrap_servers)
    assert (code, "remote.log.storage.system.enable" in err) == (1, True)


def metadata_logs(node):
    found = Path(node.data).glob("__remote_log_metadata-*/*.log")
    return [str(path) for path in found if path.stat().st_size]


def test_dump_log_reads_the_events(run, cli, node, orders):
    first = copied(run, orders)[0]
    # the output has the events of one or of both partitions, because ``moldau dev`` has four metadata
    # partitions
    (log,) = metadata_logs(node)
    ran = cli("dump-log", log, "--deep", "--json")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in ran.out.splitlines()]
    named = cli("dump-log", log, "--deep", "--json", "--decoder", "remote-log-metadata")
    assert [json.loads(line) for line in named.out.splitlines()][: len(rows)] == rows
    started, finished = [row for row in rows if row.get("record", "").startswith("RemoteLog")][:2]
    assert started["record"] == "RemoteLogSegmentMetadataRecord"
    assert started["fields"]["remote_log_segment_state"] == "COPY_SEGMENT_STARTED"
    assert started["fields"]["remote_log_segment_id"]["topic_id_partition"]["name"] == orders
    assert started["fields"]["end_offset"] == first["end_offset"]
    assert finished["record"] == "RemoteLogSegmentMetadataUpdateRecord"
    assert finished["fields"]["remote_log_segment_state"] == "COPY_SEGMENT_FINISHED"
    assert finished["fields"]["custom_metadata"]["attempt"] == ""


def object_of(node, segment, kind):
    (found,) = Path(node.data).glob(f"objects/tiered/orders-*/0/*-{segment['id']}.{kind}")
    return found


def test_dump_log_reads_the_objects(run, cli, node, orders):
    first = copied(run, orders)[0]
    paths = [str(object_of(node, first, kind)) for kind in ("log", "indexes")]
    ran = cli("dump-log", *paths, "--deep", "--json")
    assert (ran.code, ran.err) == (0, "")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert sum(row["type"] == "record" for row in rows) == first["end_offset"] + 1
    (segment,) = [row for row in rows if row["type"] == "remote segment"]
    assert (segment["topic"], segment["end_offset"]) == (orders, first["end_offset"])
    indexes = {row["index"] for row in rows if row["type"] == "index"}
    assert {"offset", "timestamp", "producer-snapshot", "leader-epoch"} <= indexes
    assert any(row["type"] == "entry" and "position" in row for row in rows)
    by_url = cli("dump-log", *(f"file://{path}" for path in paths), "--deep", "--json")
    assert len(by_url.out.splitlines()) == len(rows), by_url.err
    damaged = Path(paths[1]).with_name("damaged.indexes")
    content = bytearray(Path(paths[1]).read_bytes())
    content[3] ^= 1
    damaged.write_bytes(content)
    code, out, _ = cli("dump-log", str(damaged))
    damaged.unlink()
    assert (code, "checksum" in out) == (1, True)


@pytest.mark.java
def test_kafkas_dump_tool_reads_the_events_and_the_copied_segments(run, node, orders, tmp_path):
    """Kafka's DumpLogSegments reads the events and the copied segments."""
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    first = copied(run, orders)[0]
    _, indexes = unpack_indexes(object_of(node, first, "indexes").read_bytes())
    name = f"{first['start_offset']:020d}"
    shutil.copy(object_of(node, first, "log"), tmp_path / f"{name}.log")
    for kind, suffix in ((IndexType.OFFSET, "index"), (IndexType.TIMESTAMP, "timeindex")):
        (tmp_path / f"{name}.{suffix}").write_bytes(indexes[kind])
    snapshot = tmp_path / f"{first['end_offset'] + 1:020d}.snapshot"
    snapshot.write_bytes(indexes[IndexType.PRODUCER_SNAPSHOT])
    command = [java, "-Xmx128m", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments", "--files"]

    def dumped(files, *options):
        done = subprocess.run(
            [*command, ",".join(map(str, files)), *options],
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    shown = dumped(metadata_logs(node), "--remote-log-metadata-decoder")
    assert "RemoteLogSegmentMetadata{" in shown
    assert "RemoteLogSegmentMetadataUpdate{" in shown
    assert f"endOffset={first['end_offset']}" in shown
    shown = dumped(sorted(tmp_path.iterdir()))
    assert shown.count("isvalid: true") > 1
    assert f"lastOffset: {first['end_offset']} " in shown
