"""Control records, compared with kio's schemas of the same messages. aiokafka must also be able to read the
markers."""

import io
import uuid
from typing import Any

import kio.schema.leader_change_message.v0.data as leader_change_v0
import kio.schema.leader_change_message.v1.data as leader_change_v1
import kio.schema.snapshot_footer_record.v0.data as snapshot_footer_v0
import kio.schema.snapshot_header_record.v0.data as snapshot_header_v0
import kio.schema.voters_record.v0.data as voters_v0
import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_writer

from moldau.records import InvalidRecordError, Record, check_batch, read_records
from moldau.records.control import (
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    LeaderChange,
    RecordedVoter,
    RecordedVoters,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotOrigin,
    VoterEndpoint,
    VotersRecordEntry,
    build_control_batch,
    build_end_transaction_marker,
    parse_control_record,
    parse_control_type,
)
from moldau.runtime import KafkaError

DIRECTORY = uuid.UUID("12345678-1234-4234-8234-123456789abc")
VOTERS = (RecordedVoter(1, DIRECTORY), RecordedVoter(2, DIRECTORY))
VOTER_SET = RecordedVoters(
    (VotersRecordEntry(1, DIRECTORY, (VoterEndpoint("CONTROLLER", "höst", 65535),), 0, 1),)
)
CONTENTS: list[Any] = [
    EndTransactionMarker(True, 7),
    EndTransactionMarker(False, 8),
    LeaderChange(1, (RecordedVoter(1), RecordedVoter(2)), (RecordedVoter(1),)),
    LeaderChange(1, VOTERS, VOTERS[:1], version=1),
    SnapshotHeader(1234),
    SnapshotHeader(1234, origin=SnapshotOrigin("töpic", 3, DIRECTORY, 2**40, 7)),
    SnapshotFooter(),
    KRaftVersion(1),
    VOTER_SET,
]


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def test_quorum_records_are_kafkas() -> None:
    zero, one = leader_change_v0, leader_change_v1
    assert CONTENTS[2].encode() == written_by_kio(
        zero.LeaderChangeMessage(
            version=0,  # type: ignore[arg-type]
            leader_id=1,  # type: ignore[arg-type]
            voters=tuple(zero.Voter(voter_id=voter) for voter in (1, 2)),  # type: ignore[arg-type]
            granting_voters=(zero.Voter(voter_id=1),),  # type: ignore[arg-type]
        )
    )
    assert CONTENTS[3].encode() == written_by_kio(
        one.LeaderChangeMessage(
            version=1,  # type: ignore[arg-type]
            leader_id=1,  # type: ignore[arg-type]
            voters=tuple(
                one.Voter(voter_id=voter, voter_directory_id=DIRECTORY)  # type: ignore[arg-type]
                for voter in (1, 2)
            ),
            granting_voters=(one.Voter(voter_id=1, voter_directory_id=DIRECTORY),),  # type: ignore[arg-type]
        )
    )
    assert SnapshotFooter().encode() == written_by_kio(
        snapshot_footer_v0.SnapshotFooterRecord(version=0)  # type: ignore[arg-type]
    )


def test_the_voter_set_is_kafkas() -> None:
    v0: Any = voters_v0
    feature = v0.KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
    endpoint = v0.Endpoint(name="CONTROLLER", host="höst", port=65535)
    voter = {"voter_id": 1, "voter_directory_id": DIRECTORY, "endpoints": (endpoint,)}
    record = v0.VotersRecord(version=0, voters=(v0.Voter(**voter, k_raft_version_feature=feature),))
    assert VOTER_SET.encode() == written_by_kio(record)


def test_the_snapshot_header_is_kafkas() -> None:
    v0: Any = snapshot_header_v0
    theirs = v0.SnapshotHeaderRecord(version=0, last_contained_log_timestamp=1234)
    assert SnapshotHeader(1234).encode() == written_by_kio(theirs)


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: type(content).__name__)
def test_written_control_records_can_be_read(content: Any) -> None:
    batch = build_control_batch([content], timestamp=5, base_offset=9, leader_epoch=2)
    header = check_batch(batch)
    assert header.is_control
    assert (header.base_offset, header.partition_leader_epoch) == (9, 2)
    [record] = read_records(batch)
    assert parse_control_type(record.key) is content.control_type
    assert parse_control_record(record) == content


@pytest.mark.parametrize("committed", [True, False])
def test_end_markers_have_the_form_that_clients_expect(committed: bool) -> None:
    batch = build_end_transaction_marker(4, 5, committed=committed, coordinator_epoch=6, timestamp=7)
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 5, -1)
    assert header.is_transactional
    assert header.is_control
    [record] = read_records(batch)
    assert record.key is not None
    assert ControlRecord.parse(record.key) == (COMMIT_MARKER if committed else ABORT_MARKER)


def test_control_types_of_later_versions_are_unknown() -> None:
    future = Record(0, 0, b"\0\0\0\x63", b"?")
    assert parse_control_type(future.key) is ControlType.UNKNOWN
    assert parse_control_record(future) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_malformed_key_is_invalid(key: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        parse_control_type(key)


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: type(content).__name__)
def test_a_value_that_was_cut_off_is_invalid(content: Any) -> None:
    [record] = read_records(build_control_batch([content], timestamp=0))
    assert record.value is not None
    # The tagged fields at the end are empty. Readers do not need them for the other fields.
    for size in range(len(record.value) - 1):
        with pytest.raises(InvalidRecordError):
            parse_control_record(record._replace(value=record.value[:size]))


@given(st.sampled_from(range(7)), st.binary(max_size=40))
def test_arbitrary_values_never_raise_anything_else(number: int, value: bytes) -> None:
    try:
        parse_control_record(Record(0, 0, bytes([0, 0, 0, number]), value))
    except KafkaError:
        return
