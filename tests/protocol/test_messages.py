"""The message classes: the generator's output, the behaviour of the classes, and their import time."""

import dataclasses
import pathlib
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from moldau.protocol import codec
from moldau.protocol.api import ApiKey
from moldau.protocol.compiler.decoding import decode, decode_from
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.compiler.primitives import UUIDS, read_uvarint, uvarint
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.generate import MESSAGES, write
from moldau.protocol.messages.describe_groups import DescribedGroup
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.messages.write_txn_markers import WritableTxnMarker
from moldau.protocol.schema import Message, VersionRange, is_flexible, layout, parse_versions
from moldau.runtime import ErrorCode
from request_classes import request_class


def test_the_generated_modules_are_fresh(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    fresh = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    checked_in = {path.name: path.read_text() for path in MESSAGES.glob("*.py")}
    assert fresh == checked_in


def test_the_codec_imports_no_message_and_no_schema_of_kio() -> None:
    code = (
        "import sys, moldau.protocol.codec, moldau.protocol.framing, moldau.protocol.api;"
        "print([name for name in sys.modules if name.startswith('moldau.protocol.messages.')"
        " or name.startswith('kio.schema.') and 'header' not in name])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(eval(printed)) <= {"moldau.protocol.messages.index", "kio.schema.errors", "kio.schema.types"}


@pytest.mark.parametrize("api_key", map(int, ApiKey))
def test_an_answer_with_nothing_but_error_codes_can_be_encoded(api_key: int) -> None:
    """The test sets at most the fields that identify a row, because all other fields have valid defaults."""
    response_class = codec.response_class(api_key)
    versions = parse_versions(response_class.VERSIONS)
    for version in range(versions.min, versions.max + 1):
        flexible = is_flexible(response_class, version)
        response = with_rows(response_class, version, flexible=flexible)
        assert b"".join(codec.encode_response(api_key, version, response))


def with_rows(cls: type[Message], version: int, *, flexible: bool) -> Message:
    """A message with one row in each of its arrays, and defaults in all rows."""
    rows: dict[str, Any] = {}
    for field in layout(cls, version, flexible).fields:
        if field.array and not isinstance(field.kind, str):
            rows[field.name] = [with_rows(field.kind, version, flexible=flexible)]
    return cls(**rows)


def test_messages_are_values() -> None:
    one = MetadataResponsePartition(replica_nodes=[1, 2], isr_nodes=(1,))
    other = MetadataResponsePartition(replica_nodes=(1, 2), isr_nodes=[1])
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, leader_id=5)
    assert one != MetadataRequest()
    assert "replica_nodes=[1, 2]" in repr(one)
    with pytest.raises(AttributeError):
        one.no_such_field = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        MetadataResponsePartition(1)  # type: ignore[misc]


def test_a_field_that_a_version_lacks_is_left_out_and_read_as_its_default() -> None:
    partition = MetadataResponsePartition(leader_epoch=7, offline_replicas=[3])
    for version, expected in ((4, ()), (5, (3,))):
        body = b"".join(encoder(MetadataResponsePartition, version)(partition))
        assert decode(MetadataResponsePartition, version, body).offline_replicas == expected


def test_golden_metadata_request() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    assert b"".join(codec.encode_request(3, 9, request)).hex() == "0202740000000000"
    assert b"".join(codec.encode_request(3, 4, request)).hex() == "0000000100017400"
    everything = MetadataRequest(topics=None)
    assert b"".join(codec.encode_request(3, 1, everything)).hex() == "ffffffff"
    assert codec.decode_request(3, 1, b"\xff\xff\xff\xff").topics is None


@pytest.mark.parametrize("lifetime_ms", [0, -1, 1, 1234567, 2**63 - 1, -(2**63)])
def test_times_keep_every_value_of_64_bits(lifetime_ms: int) -> None:
    # kio reads these fields as timedelta. A timedelta cannot represent the extreme values, and for some
    # fields kio refuses -1.
    response = SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)
    for version in (1, 2):
        body = b"".join(codec.encode_response(36, version, response))
        assert codec.decode_response(36, version, body) == response


def test_an_error_of_a_later_kafka_is_an_unknown_server_error() -> None:
    body = bytearray(b"".join(codec.encode_response(36, 0, SaslAuthenticateResponse())))
    body[:2] = b"\x7f\xff"
    assert codec.decode_response(36, 0, body).error_code is ErrorCode.unknown_server_error


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (3, 1, "7fffffff"),  # an array of two billion topics
        (3, 9, "ffffffff0f"),
        (3, 9, "ffffffffff0f"),  # a varint of more than 32 bits
        (3, 9, "80808080808080"),
        (3, 1, "000000017fff"),
        (3, 9, "02ffffffff0f"),
        (2, 1, "ffffffff7ffffff0"),
        (3, 9, "00000000ffffffff0f"),  # two billion tagged fields
        (3, 9, "000000000100ffffffff0f"),
        (3, 0, "fffffffe00"),
        (11, 5, "0001ff"),  # not UTF-8
    ],
)
def test_false_lengths_allocate_no_memory(api_key: int, version: int, body: str) -> None:
    request_class(api_key)
    with pytest.raises(ProtocolError):
        codec.decode_request(api_key, version, b"")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            codec.decode_request(api_key, version, bytes.fromhex(body))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_null_in_a_field_that_is_not_nullable_is_refused_in_both_directions() -> None:
    with pytest.raises(ProtocolError, match="null"):
        codec.decode_request(2, 1, b"\0\0\0\0\xff\xff\xff\xff")
    with pytest.raises(TypeError):
        codec.encode_request(2, 1, ListOffsetsRequest(topics=None))  # type: ignore[arg-type]


def test_an_unknown_tagged_field_is_skipped_and_a_known_one_must_fit() -> None:
    from moldau.protocol.messages.fetch import FetchRequest

    body = b"".join(codec.encode_request(1, 18, FetchRequest()))
    assert body.endswith(b"\0")
    assert codec.decode_request(1, 18, body[:-1] + b"\x01\x63\x02xy") == FetchRequest()
    assert codec.decode_request(1, 18, body[:-1] + b"\x01\x00\x03\x02ab"[:2] + b"\x02\x02a") == FetchRequest(
        cluster_id="a"
    )
    with pytest.raises(ProtocolError, match="another size"):
        codec.decode_request(1, 18, body[:-1] + b"\x01\x00\x03\x02ab")


def test_varints_are_unchanged_after_encoding_and_decoding() -> None:
    for value in (0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**31, 2**32 - 1):
        encoded = uvarint(value)
        assert read_uvarint(encoded, 0) == (value, len(encoded))
    with pytest.raises(ProtocolError):
        read_uvarint(b"\xff\xff\xff\xff\x7f", 0)


def test_versions_are_in_notation_of_kafka() -> None:
    assert parse_versions("3-13") == VersionRange(3, 13)
    assert parse_versions("5") == VersionRange(5, 5)
    assert 40 in parse_versions("9+")
    assert 0 not in parse_versions("none")


def test_uuids_are_kept_within_bounds() -> None:
    for number in range(20_000):
        assert UUIDS[number.to_bytes(16, "big")].int == number
    assert len(UUIDS) < 17_000


def test_a_message_can_be_read_from_the_middle_of_a_buffer() -> None:
    body = b"".join(encoder(DescribedGroup, 6)(DescribedGroup(group_id="g")))
    assert decode_from(DescribedGroup, 6, b"xx" + body + b"yy", 2) == (
        DescribedGroup(group_id="g"),
        2 + len(body),
    )
    assert WritableTxnMarker().producer_id == 0
