"""Every message in every version, compared with kio."""

import contextlib
import importlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from kio_twins import kio_bytes, random_message, to_kio

from moldau.protocol.codec import decode_request
from moldau.protocol.compiler.decoding import compile_decoder, decode
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.generate import kio_classes, schema_names
from moldau.protocol.schema import Message, parse_versions

CASES = [
    (schema, kind)
    for schema in schema_names()
    for kind in ("request", "response", "data")
    if kio_classes(schema, kind)
]


def our_class(schema: str, kind: str) -> type[Message]:
    name = next(iter(kio_classes(schema, kind).values())).__name__
    found: type[Message] = getattr(importlib.import_module(f"moldau.protocol.messages.{schema}"), name)
    return found


@pytest.mark.parametrize(("schema", "kind"), CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=2, deadline=None, database=None)
def test_bytes_are_those_of_kio_in_every_version(schema: str, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    cls = our_class(schema, kind)
    twins = kio_classes(schema, kind)
    versions = parse_versions(cls.VERSIONS)
    assert list(twins) == list(range(versions.min, versions.max + 1))
    for version, twin in twins.items():
        message = random_message(rng, cls, version)
        entity = to_kio(message, twin)
        theirs = kio_bytes(entity)
        ours = b"".join(encoder(cls, version)(message))
        assert ours == theirs, (version, message)
        assert decode(cls, version, memoryview(theirs)) == message
        read, size = entity_reader(twin)(theirs, 0)
        assert (read, size) == (entity, len(theirs))


@pytest.mark.parametrize(("schema", "kind"), CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=2, deadline=None, database=None)
def test_truncated_and_damaged_bytes_raise_only_protocol_errors(schema: str, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    cls = our_class(schema, kind)
    versions = parse_versions(cls.VERSIONS)
    version = rng.randint(versions.min, versions.max)
    whole = b"".join(encoder(cls, version)(random_message(rng, cls, version)))
    for _ in range(10):
        cut = rng.randrange(len(whole)) if whole else 0
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        for data in (damaged, rng.randbytes(rng.randrange(200)), whole + b"\0"):
            with contextlib.suppress(ProtocolError):
                decode(cls, version, data)
        if cut < len(whole):
            with pytest.raises(ProtocolError):
                decode(cls, version, whole[:cut])


def test_every_version_compiles_alone() -> None:
    for schema, kind in CASES:
        cls = our_class(schema, kind)
        versions = parse_versions(cls.VERSIONS)
        for version in range(versions.min, versions.max + 1):
            assert compile_decoder(cls, version)


def test_a_request_with_bytes_to_spare_is_read_as_librdkafka_sends_it() -> None:
    # A Metadata request of version 13 for all topics: a null array, two booleans and tagged fields. Three
    # bytes follow it.
    request = decode_request(3, 13, memoryview(bytes.fromhex("00000000010000")))
    assert request.topics is None
