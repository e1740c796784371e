"""``dump-log``: its exact output for files that the test writes, and its checks of every file of a stopped
node."""

import json
from uuid import UUID

import pytest

import moldau.testing
from moldau.cli.dump.decoders import decoder_for
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    STATE_TOPICS,
    StateRetention,
    StateTopic,
)
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.state.records import FileCommitted, PartitionCreated, Run
from moldau.coordinators.diskless.store.schema import TABLE_NAMES
from moldau.coordinators.diskless.store.snapshot_format import encode_rows
from moldau.diskless.wal import footer_size_bytes, write_tail
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.protocol.records import transactions
from moldau.protocol.records.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_subscription,
    encode_value,
)
from moldau.protocol.records.metadata import (
    ChunkChangeRecord,
    ChunkRecord,
    PartitionChangeRecord,
    TopicRecord,
    encode_record,
)
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.time_index import TimeIndex


@pytest.fixture
def partition(tmp_path):
    """A segment of two batches and a control batch, with its indexes."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    first = build_batch(
        [Record(0, 1000, b"k", b"v", (("h", b"x"),)), Record(0, 1001, None, b"\xff", ())],
        base_offset=10,
        leader_epoch=3,
        compression=Compression.GZIP,
    )
    second = build_batch(
        [Record(0, 2000, b"k", None, ())],
        base_offset=12,
        leader_epoch=3,
        producer_id=7,
        producer_epoch=0,
        base_sequence=4,
        transactional=True,
    )
    marker = build_end_transaction_marker(
        7, 0, committed=False, coordinator_epoch=5, timestamp=2500, base_offset=13, leader_epoch=3
    )
    (folder / f"{10:020d}.log").write_bytes(first + second + marker)
    (folder / f"{10:020d}.index").write_bytes(OffsetIndex.entry.pack(2, len(first)))
    (folder / f"{10:020d}.timeindex").write_bytes(TimeIndex.entry.pack(2000, 2))
    return folder


def segment(folder):
    return folder / f"{10:020d}.log"


def rows(ran):
    return [json.loads(line) for line in ran.out.splitlines()]


def test_the_batches_and_records_of_a_segment_are_shown(cli, partition):
    code, out, err = cli("dump-log", str(segment(partition)), "--deep")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    size = rows(cli("dump-log", str(segment(partition)), "--json"))[0]["size"]
    assert lines[0] == f"{segment(partition)}: record segment"
    assert lines[1].startswith(
        f"batch position: 0 size: {size} base_offset: 10 last_offset: 11 count: 2 leader_epoch: 3 "
        "timestamp_type: create_time base_timestamp: 1000 max_timestamp: 1001 compression: gzip magic: 2 "
    )
    assert lines[2:4] == [
        '| record offset: 10 timestamp: 1000 key: k value: v headers: [["h", "x"]]',
        "| record offset: 11 timestamp: 1001 key: null value: base64:/w==",
    ]
    assert lines[4].endswith(
        "producer_id: 7 producer_epoch: 0 base_sequence: 4 transactional: true control: false"
    )
    assert lines[-1] == (
        "| control offset: 13 timestamp: 2500 record: abort "
        'fields: {"committed": false, "coordinator_epoch": 5}'
    )


def test_indexes_are_compared_with_their_segment(cli, partition):
    assert cli("dump-log", str(partition)).code == 0
    (partition / f"{10:020d}.index").write_bytes(OffsetIndex.entry.pack(2, 5))
    (partition / f"{10:020d}.timeindex").write_bytes(TimeIndex.entry.pack(500, 1))
    code, out, err = cli("dump-log", str(partition))
    assert (code, err) == (1, "moldau: 2 files with problems\n")
    assert "entry offset: 12 position: 5 PROBLEM: no batch begins there" in out.splitlines()
    assert (
        "entry timestamp: 500 offset: 11 PROBLEM: a record up to there has the later timestamp 1001"
        in out.splitlines()
    )


def test_damage_is_found_and_the_rest_is_shown(cli, partition):
    content = bytearray(segment(partition).read_bytes())
    content[30] ^= 1
    segment(partition).write_bytes(content + b"torn")
    code, out, err = cli("dump-log", str(segment(partition)), "--json")
    assert (code, err) == (1, "moldau: 1 file with problems\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert "CRC" in found[0]["problem"]
    assert [row["type"] for row in found] == ["batch", "batch", "batch", "end"]
    assert [row.get("problem") for row in found[1:]] == [None, None, "the next bytes are not a whole batch"]


def test_zeros_at_the_end_are_no_damage(cli, partition):
    segment(partition).write_bytes(segment(partition).read_bytes() + bytes(1000))
    (partition / f"{10:020d}.index").write_bytes(
        (partition / f"{10:020d}.index").read_bytes() + bytes(OffsetIndex.entry.size * 3)
    )
    code, out, _ = cli("dump-log", str(partition))
    assert code == 0
    assert "bytes: 1000 note: preallocated, not written" in out


def test_consumer_offsets_are_decoded(cli, tmp_path):
    folder = tmp_path / f"{CONSUMER_OFFSETS_TOPIC}-3"
    folder.mkdir()
    subscription = encode_subscription(ConsumerProtocolSubscription(topics=["t"]), 0)
    member = MemberMetadata(member_id="m", subscription=subscription)
    group = GroupMetadataValue(protocol_type="consumer", generation=4, members=[member])
    records = [
        Record(
            0, 1, encode_key(OffsetCommitKey(group="g", topic="t", partition=0)),
            encode_value(OffsetCommitValue(offset=42), 3), (),
        ),
        Record(0, 2, encode_key(GroupMetadataKey(group="g")), encode_value(group, 3), ()),
        Record(0, 3, encode_key(GroupMetadataKey(group="g")), None, ()),
        Record(0, 4, b"\x00\x63", b"", ()),
    ]  # fmt: skip
    (folder / f"{0:020d}.log").write_bytes(build_batch(records))
    ran = cli("dump-log", str(folder), "--deep", "--json")
    _, commit, metadata, tombstone, unknown = rows(ran)
    assert (commit["record"], commit["key"]) == ("OffsetCommit", {"group": "g", "topic": "t", "partition": 0})
    assert commit["value"]["offset"] == 42
    assert metadata["value"]["generation"] == 4
    assert metadata["value"]["members"][0]["subscription"]["topics"] == ["t"]
    assert tombstone["value"] is None
    assert unknown["problem"] == "record type 99 is not known"
    plain = rows(cli("dump-log", str(folder), "--deep", "--json", "--decoder", "none"))
    assert plain[4]["key"] == "\x00c"


def test_metadata_is_decoded(cli, tmp_path):
    folder = tmp_path / CLUSTER_METADATA_FOLDER
    folder.mkdir()
    record = Record(0, 1, None, encode_record(TopicRecord(name="t")), ())
    (folder / f"{0:020d}.log").write_bytes(build_batch([record]))
    row = rows(cli("dump-log", str(folder), "--deep", "--json"))[1]
    assert (row["record"], row["version"], row["fields"]["name"]) == ("TopicRecord", 0, "t")


def test_the_chunks_of_partitions_in_metadata_are_decoded(cli, tmp_path):
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    known = {"topic_id": UUID(int=7), "partition_id": 1}
    records = (
        ChunkRecord(**known, start_offset=10, stop_offset=19, end_offset=19, replicas=[1, 2], isr=[1]),
        ChunkChangeRecord(**known, start_offset=10, chunk_epoch=1, isr=[1, 2]),
        PartitionChangeRecord(**known, start_offset=20, start_timestamp=5),
    )
    batch = build_batch([Record(0, 1, None, encode_record(each), ()) for each in records])
    (folder / f"{0:020d}.log").write_bytes(batch)
    shown = rows(cli("dump-log", str(folder), "--deep", "--json"))[1:]
    assert [row["record"] for row in shown] == ["ChunkRecord", "ChunkChangeRecord", "PartitionChangeRecord"]
    chunk, change, partition = (row["fields"] for row in shown)
    assert (chunk["start_offset"], chunk["end_offset"], chunk["replicas"]) == (10, 19, [1, 2])
    assert (change["chunk_epoch"], change["isr"]) == (1, [1, 2])
    assert (partition["start_offset"], partition["start_timestamp"]) == (20, 5)


def test_checkpoints_and_property_files_are_shown(cli, tmp_path):
    for name, content, shown in (
        ("leader-epoch-checkpoint", "0\n1\n3 42\n", "entry epoch: 3 start_offset: 42"),
        ("replication-offset-checkpoint", "0\n1\nt 0 7\n", "entry topic: t partition: 0 offset: 7"),
        ("meta.properties", "#\nversion=1\nnode.id=5\n", "properties version: 1 node.id: 5"),
        ("quorum-state", '{"leaderId":1}', "state leaderId: 1"),
        ("partition.metadata", "version: 0\ntopic_id: abc\n", "properties version: 0 topic_id: abc"),
    ):
        (tmp_path / name).write_text(content)
        assert cli("dump-log", str(tmp_path / name)).out.splitlines()[1:] == [shown]
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n3 42\n")
    assert cli("dump-log", str(tmp_path / "leader-epoch-checkpoint")).code == 1


def test_the_content_of_a_wal_object_is_shown(cli, tmp_path):
    batch = build_batch([Record(0, 1, b"k", b"v", ())])
    content = bytearray(batch) + bytearray(footer_size_bytes(1, 1))
    write_tail(content, len(batch), [(UUID(int=1), 2, 0, [parse_header(batch)])], created_ms=5, broker_id=3)
    path = tmp_path / f"{5:012x}-3-{0:020x}"
    path.write_bytes(content)
    wal, held, record = rows(cli("dump-log", str(path), "--deep", "--json"))
    assert (wal["created"], wal["broker"], wal["data_bytes"], wal["partitions"]) == (5, 3, len(batch), 1)
    assert (held["topic_id"], held["partition"], held["count"]) == ("AAAAAAAAAAAAAAAAAAAAAQ", 2, 1)
    assert (record["key"], record["value"]) == ("k", "v")
    path.write_bytes(content[:-1])
    assert cli("dump-log", str(path)).code == 1


def test_a_wal_object_is_read_by_its_url(cli, tmp_path):
    batch = build_batch([Record(0, 1, b"k", b"v", ())])
    content = bytearray(batch) + bytearray(footer_size_bytes(1, 1))
    write_tail(content, len(batch), [(UUID(int=1), 2, 0, [parse_header(batch)])], created_ms=5, broker_id=3)
    key = f"wal/0/1970010100/{5:012x}-3-{0:020x}"
    path = tmp_path / key
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    wal, held, record = rows(cli("dump-log", f"file://{tmp_path}/{key}", "--deep", "--json"))
    assert (wal["created"], held["partition"], record["value"]) == (5, 2, "v")
    code, _, err = cli("dump-log", f"file://{tmp_path}/{key[:-1]}1")
    assert (code, "there is no such object" in err) == (1, True)
    code, _, err = cli("dump-log", f"file://{tmp_path}/notes.txt")
    assert (code, "is not the URL of a WAL object or a remote segment" in err) == (1, True)
    code, _, err = cli("dump-log", f"ftp://host/{key}")
    assert (code, "not one of s3://" in err) == (1, True)


def test_the_log_and_a_snapshot_of_a_diskless_coordinator_are_decoded(cli, tmp_path):
    folder = tmp_path / f"{DISKLESS_METADATA_TOPIC}-0"
    folder.mkdir()
    codec, topic_id = DisklessCodec(), UUID(int=1)
    file = FileCommitted(
        "wal/x", 1, 500, 3, [0], 10, 11, [Run(topic_id, 2, 7, 2)], [4, 0], [0, 1], [], [0, 100], [100, 90],
        [8, 9], [(77, 1)], [1, 0], [3, -1],
    )  # fmt: skip
    records = [
        Record(0, 1, *codec.encode(PartitionCreated(topic_id, "orders", 2)), ()),
        Record(0, 1, *codec.encode(file), ()),
        Record(0, 1, b"\x00\x64", b"?", ()),
    ]
    (folder / f"{0:020d}.log").write_bytes(build_batch(records))
    _, created, committed, broken = rows(cli("dump-log", str(folder), "--deep", "--json"))
    assert (created["record"], created["fields"]["name"]) == ("PartitionCreated", "orders")
    first, second = committed["fields"]["batches"]
    assert (first["base_offset"], first["last_offset"], first["producer_id"]) == (7, 11, 77)
    assert (second["base_offset"], second["position"], second["log_append_time"]) == (12, 100, True)
    assert "problem" in broken

    row = (2, 11, 7, 1, 190, 9, 9, 11, b"")
    snapshot = Record(0, 1, None, encode_rows(TABLE_NAMES.index("extents"), [row]), ())
    path = folder / f"{2:020d}-{0:010d}.checkpoint"
    path.write_bytes(build_batch([snapshot]))
    shown = rows(cli("dump-log", str(path), "--deep", "--json"))[1]
    assert shown["record"] == "extents"
    assert shown["rows"] == [[2, 11, 7, 1, 190, 9, 9, 11, []]]


def test_unknown_and_missing_files_are_errors(cli, tmp_path):
    (tmp_path / "notes.txt").touch()
    assert cli("dump-log", str(tmp_path / "notes.txt")) == (
        1,
        f"{tmp_path / 'notes.txt'}: unknown\n",
        f"moldau: {tmp_path / 'notes.txt'}: not a kind of file that is known here\n",
    )
    missing = tmp_path / f"{0:020d}.log"
    assert cli("dump-log", str(missing)).err == f"moldau: cannot read {missing}: No such file or directory\n"


def test_dump_log_finds_no_damage_in_any_file_of_a_node(cli, tmp_path):
    data = str(tmp_path / "data")
    properties = {
        "log.diskless.enable": "false",
        "log.segment.bytes": "1048576",
        "log.index.interval.bytes": "1000",
    }
    with moldau.testing.Node(data=data, properties=properties) as node:
        lines = "\n".join(f"{n:0200d}" for n in range(6000)).encode()
        for codec in ("none", "zstd"):
            cli("produce", "filled", "-p", "0", "-z", codec, "-b", node.bootstrap_servers, stdin=lines)
        cli("consume", "filled", "-g", "g", "-n", "5", "-b", node.bootstrap_servers)
        running = cli("dump-log", data, "--deep", "--json")
        assert (running.code, running.err) == (0, "")
    ran = cli("dump-log", data, "--deep", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = rows(ran)
    assert sum(row["type"] == "record" and "filled-0" in row["file"] for row in found) == 12000
    assert {"OffsetCommit", "GroupMetadata", "TopicRecord", "RegisterBrokerRecord", "leader_change"} <= {
        row.get("record") for row in found
    }
    assert {"producer", "entry", "properties", "state"} <= {row["type"] for row in found}


def test_records_of_a_state_topic_are_shown_by_the_schema_in_its_row(monkeypatch):
    """A new kind of coordinator needs no decoder of its own."""
    row = StateTopic(
        name="__new",
        retention=StateRetention.COMPACTED,
        factor_key="new",
        saved_in_step=0,
        records=transactions.RECORDS,
    )
    monkeypatch.setitem(STATE_TOPICS, row.name, row)
    key = transactions.RECORDS.encode_key(transactions.TransactionLogKey(transactional_id="t"))
    shown = decoder_for(row.name, None)(Record(0, 0, key, None, ()))
    assert shown == {"record": "TransactionLog", "key": {"transactional_id": "t"}, "value": None}
