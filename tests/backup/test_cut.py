"""The object of a cut. Written content can be read back, and damage is detected."""

import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from moldau.backup.cut_format import (
    BrokenCutError,
    ClusterCut,
    LogPiece,
    LogPieces,
    ObjectPart,
    cut_key,
    encode_cut,
    parse_cut,
    parse_cut_key,
)
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC, DISKLESS_METADATA_TOPIC
from moldau.protocol.partitions import PartitionKey

NUMBERS = st.integers(0, 2**40)
PARTS = st.builds(
    ObjectPart, st.text("ab/-.", min_size=1, max_size=9), NUMBERS, NUMBERS, st.integers(0, 2**32 - 1)
)
PIECES = st.builds(LogPiece, PARTS, NUMBERS, NUMBERS, st.integers(-1, 9), st.booleans())
LOGS = st.dictionaries(
    st.builds(PartitionKey, st.uuids(), st.integers(0, 99)),
    st.builds(
        LogPieces,
        st.sampled_from([CONSUMER_OFFSETS_TOPIC, DISKLESS_METADATA_TOPIC]),
        st.lists(PIECES).map(tuple),
    ),
    max_size=4,
)
CUTS = st.builds(
    ClusterCut,
    cluster_id=st.text("abc", min_size=1),
    created_ms=st.integers(0, 10**13 - 1),
    generation=st.integers(0, 9),
    number=st.integers(0, 9),
    metadata=PARTS,
    metadata_offset=NUMBERS,
    metadata_epoch=st.integers(0, 9),
    logs=LOGS,
)


@given(CUTS)
def test_a_cut_is_read_as_it_was_written(cut: ClusterCut) -> None:
    assert parse_cut(encode_cut(cut)) == cut


@given(CUTS, st.data())
def test_a_changed_byte_of_a_cut_is_found(cut: ClusterCut, data: st.DataObject) -> None:
    content = bytearray(encode_cut(cut))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BrokenCutError):
        parse_cut(content)


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"7", b"[]", b'{"format": 99}', b'{"format": 1}', b"\xff", b"[" * 100_000],
    ids=["empty", "null", "number", "list", "other format", "no fields", "no text", "deep"],
)
def test_a_document_of_another_shape_is_no_cut(line: bytes) -> None:
    with pytest.raises(BrokenCutError, match=r"it cannot be read: |it has format 99; "):
        parse_cut(line + f"\n{crc32c(line):08x}\n".encode())


@given(CUTS, st.integers(0, 10**6))
def test_the_key_of_a_cut_has_its_generation_number_time_and_broker(cut: ClusterCut, broker_id: int) -> None:
    name = parse_cut_key(cut_key(cut, broker_id, "0123456789ab"))
    assert name == (cut.generation, cut.number, cut.created_ms, broker_id, "0123456789ab")


@pytest.mark.parametrize(
    "key", ["", "x", ".moldau/backup/cuts/12-1-0-a", "0-0-0-0-a", ".moldau/backup/cuts/ü-1-0-0-a"]
)
def test_keys_of_other_objects_are_not_parsed_as_keys_of_cuts(key: str) -> None:
    assert parse_cut_key(key) is None


def test_the_objects_of_a_cut_are_those_of_its_logs_and_its_metadata() -> None:
    piece = LogPiece(ObjectPart("data", 0, 1, 2), 0, 1, 0)
    cut = ClusterCut(
        cluster_id="c",
        created_ms=1,
        metadata=ObjectPart("image", 0, 1, 2),
        metadata_offset=1,
        metadata_epoch=1,
        logs={PartitionKey(uuid.UUID(int=1), 0): LogPieces(DISKLESS_METADATA_TOPIC, (piece,))},
    )
    assert cut.object_keys() == {"data", "image"}


def test_records_that_compaction_has_removed_are_replaced_too() -> None:
    old = LogPieces(CONSUMER_OFFSETS_TOPIC, (_records(0, 100), _records(100, 200), _records(200, 300)))
    assert old.problem() is None
    merged = old.extended([_records(150, 400)], from_offset=100)
    assert [piece.base_offset for piece in merged.pieces] == [0, 150]
    assert merged.problem() is None


def test_overlapping_pieces_of_a_log_are_a_problem() -> None:
    assert LogPieces(CONSUMER_OFFSETS_TOPIC, (_records(0, 100), _records(50, 200))).problem() is not None


def _records(base_offset: int, end_offset: int) -> LogPiece:
    return LogPiece(ObjectPart("data", 0, 1, 2), base_offset, end_offset, 0)
