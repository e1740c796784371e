"""Records of ``__remote_log_metadata``: golden bytes, encoding and decoding, and a comparison with Kafka's
own classes."""

import os
import shutil
import subprocess
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_fakes import FINISHED, ORDERS, event, segment

from moldau.protocol.decoding_errors import ProtocolError
from moldau.tiered.metadata.lifecycle import (
    PARTITION_DELETE_TRANSITIONS,
    SEGMENT_TRANSITIONS,
    IllegalTransitionError,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    check_partition_delete_move,
    check_segment_move,
)
from moldau.tiered.metadata.records import decode_event, decode_snapshot, encode_event, encode_snapshot
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.metadata.topic import metadata_partition_of

JARS = Path(__file__).parents[3] / ".tools" / "jars"
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**62)
PARTITIONS = st.builds(
    TopicIdPartition, st.uuids(), st.text("abcXYZ09._-", min_size=1, max_size=40), st.integers(0, 100_000)
)
IDS = st.builds(RemoteLogSegmentId.of, PARTITIONS, st.uuids())
CUSTOM = st.none() | st.binary(max_size=128)


def metadata_of(
    id: RemoteLogSegmentId, numbers: tuple[int, ...], custom: bytes | None, dice: int
) -> RemoteLogSegmentMetadata:
    start, length, max_timestamp, broker, time, size, epoch, step = numbers
    count = min(dice % 5, length) + 1
    return RemoteLogSegmentMetadata(
        id,
        start,
        start + length,
        max_timestamp - 1,
        broker,
        time,
        size,
        tuple(EpochStart(epoch + index * (step + 1), start + index) for index in range(count)),
        custom,
        RemoteLogSegmentState(dice // 5 % 4),
        bool(dice // 20 % 2),
    )


SMALL = st.integers(0, 2**20)
METADATA = st.builds(
    metadata_of,
    IDS,
    st.tuples(st.integers(0, 2**60), INT32, INT64, INT32, INT64, INT32, SMALL, SMALL),
    CUSTOM,
    st.integers(0, 39),
)
UPDATES = st.builds(
    RemoteLogSegmentMetadataUpdate,
    IDS,
    INT64,
    st.sampled_from(RemoteLogSegmentState).filter(bool),
    INT32,
    CUSTOM,
)
DELETIONS = st.builds(
    RemotePartitionDeleteMetadata, PARTITIONS, st.sampled_from(RemotePartitionDeleteState), INT64, INT32
)
EVENTS = st.one_of(METADATA, UPDATES, DELETIONS)

EXAMPLES: list[RemoteLogMetadata] = [
    segment(5, 10, 300, (0, 10), (7, 120), txn_index_empty=True),
    segment(6, 0, 2**40, custom_metadata=b"\x00\xffwhere", state=FINISHED, txn_index_empty=False),
    event(segment(5, 10, 300), FINISHED, custom_metadata=b"custom"),
    event(segment(5, 10, 300), RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
    RemotePartitionDeleteMetadata(
        ORDERS, RemotePartitionDeleteState.DELETE_PARTITION_STARTED, 1_700_000_000_000, 3
    ),
]


@given(EVENTS)
def test_events_are_unchanged_after_encoding_and_decoding(of: RemoteLogMetadata) -> None:
    assert decode_event(encode_event(of)) == of


@given(METADATA)
def test_segments_survive_a_snapshot(of: RemoteLogSegmentMetadata) -> None:
    assert decode_snapshot(of.topic_id_partition, encode_snapshot(of)) == of


@given(EVENTS, st.data())
def test_incomplete_records_are_refused(of: RemoteLogMetadata, data: st.DataObject) -> None:
    value = encode_event(of)
    with pytest.raises(ProtocolError):
        decode_event(value[: data.draw(st.integers(0, len(value) - 1))])


def test_events_are_encoded_in_these_bytes() -> None:
    topic_id, orders = ORDERS.topic_id.bytes.hex(), "076f7264657273"
    assert encode_event(EXAMPLES[4]).hex() == (
        "010200"  # frame version 1, record type 2, record version 0
        f"{orders}{topic_id}0000000300"  # topic name, id, partition, no tags
        "00000003" "0000018bcfe56800" "01" "00"  # broker, time, state, no tags
    )  # fmt: skip
    assert encode_event(EXAMPLES[2]).hex() == (
        f"010100{orders}{topic_id}0000000300{UUID(int=5).hex}00"
        "00000001" "0000000000000002" "07637573746f6d" "01" "00"
    )  # fmt: skip
    assert encode_event(EXAMPLES[0]).hex() == (
        f"010000{orders}{topic_id}0000000300{UUID(int=5).hex}00"
        "000000000000000a" "000000000000012c" "00000001" "0000018bcfe5692c" "0000000000000001"
        "03" "00000000" "000000000000000a" "00" "00000007" "0000000000000078" "00"  # epochs
        "000003e8" "00" "00"  # size, no custom metadata, state
        "01" "00" "01" "01"  # one tag: 0, a byte, the transaction index is empty
    )  # fmt: skip


def test_a_value_that_is_no_event_is_refused() -> None:
    for value in (b"", b"\x01", b"\x02\x00\x00", b"\x01\x09\x00", encode_snapshot(segment(1, 0, 1))):
        with pytest.raises(ProtocolError):
            decode_event(value)
    value = bytearray(encode_event(EXAMPLES[4]))
    value[-2] = 9
    with pytest.raises(ProtocolError, match="9 is not a valid RemotePartitionDeleteState"):
        decode_event(value)


@pytest.mark.java
def test_kafka_reads_and_writes_the_same_bytes() -> None:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    source = Path(__file__).with_name("java") / "RemoteMetadata.java"
    values = [encode_event(each).hex() for each in EXAMPLES]
    done = subprocess.run(
        [java, "-Xmx128m", "-cp", f"{JARS}/*", str(source)],
        input="\n".join(values),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 3 * len(EXAMPLES)), done.stderr
    assert lines[1::3] == values
    for each, text, number in zip(EXAMPLES, lines[::3], lines[2::3], strict=True):
        assert type(each).__name__ in text
        assert each.state.name in text
        assert metadata_partition_of(each.topic_id_partition, 50) == int(number)
    assert "segmentLeaderEpochs={0=10, 7=120}" in lines[0]
    assert "txnIdxEmpty=true" in lines[0]
    assert "txnIdxEmpty=false" in lines[3]


def test_every_move_of_the_tables_and_no_other() -> None:
    segment_moves = {
        (None, 0), (0, 1), (0, 2), (1, 2), (2, 3),
    }  # fmt: skip
    for source in SEGMENT_TRANSITIONS:
        for target in RemoteLogSegmentState:
            if (source, target) in segment_moves or source is target:
                check_segment_move(source, target)
            else:
                with pytest.raises(IllegalTransitionError, match=target.name):
                    check_segment_move(source, target)
    for source_state in PARTITION_DELETE_TRANSITIONS:
        for target_state in RemotePartitionDeleteState:
            follows = target_state == (-1 if source_state is None else source_state) + 1
            if follows or source_state is target_state:
                check_partition_delete_move(source_state, target_state)
            else:
                with pytest.raises(IllegalTransitionError, match=target_state.name):
                    check_partition_delete_move(source_state, target_state)


def test_impossible_segments_and_events_are_refused() -> None:
    for start, end in ((-1, 5), (5, 4)):
        with pytest.raises(ValueError, match="those of no segment"):
            segment(1, start, end)
    with pytest.raises(ValueError, match="at least one leader epoch"):
        RemoteLogSegmentMetadata(segment(1, 0, 1).id, 0, 1, 0, 1, 0, 1, ())
    with pytest.raises(ValueError, match="not an update"):
        event(segment(1, 0, 1), RemoteLogSegmentState.COPY_SEGMENT_STARTED)
