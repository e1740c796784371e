"""The memory of a parsed message counts towards the limit before any object is created."""

import contextlib
import tracemalloc

import pytest

from moldau.protocol.api import SUPPORTED
from moldau.protocol.codec import encode_request, request_decoder
from moldau.protocol.compiler.primitives import uvarint
from moldau.protocol.costs import allowance
from moldau.protocol.decoding_errors import ParsedSizeError, ProtocolError
from moldau.protocol.framing import read_request_header
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from request_classes import request_class
from worst_requests import worst_requests

METADATA = 3


def names(count):
    """A Metadata request of version 4 with an array of empty names."""
    return count.to_bytes(4, "big") + b"\0\0" * count + b"\0"


def test_millions_of_empty_names_are_refused_before_one_is_read():
    body = names(5_000_000)
    tracemalloc.start()
    with pytest.raises(ParsedSizeError):
        request_decoder(METADATA, 4)(body, allowance(len(body)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("count", [1, 1000, 10_000])
def test_ordinary_requests_pass(count):
    topics = [MetadataRequestTopic(name=f"topic-{number}") for number in range(count)]
    body = b"".join(encode_request(METADATA, 12, MetadataRequest(topics=topics)))
    assert len(request_decoder(METADATA, 12)(body, allowance(len(body))).topics) == count


def test_requests_of_40_kb_are_never_refused():
    for api_key, versions in SUPPORTED.items():
        for version in {versions.min, versions.max}:
            for body in worst_requests(request_class(api_key), version, 40_000):
                request_decoder(api_key, version)(body, allowance(len(body)))


def test_a_parsed_request_takes_no_more_than_it_is_allowed():
    """The worst arrays of every API are refused, or need at most the allowed memory. This shows that the
    estimate of the memory is high enough."""
    tried = refused = 0
    for api_key, versions in SUPPORTED.items():
        for version in {versions.min, versions.max}:
            decode = request_decoder(api_key, version)
            for body in worst_requests(request_class(api_key), version, 6_000):
                for left in (8 * len(body), 64 * len(body)):
                    tried += 1
                    with contextlib.suppress(ParsedSizeError):
                        decode(body, 0)  # The first call compiles the decoder, so it is not measured.
                    tracemalloc.start()
                    try:
                        decode(body, left)
                    except ParsedSizeError:
                        refused += 1
                    _, peak = tracemalloc.get_traced_memory()
                    tracemalloc.stop()
                    assert peak <= left + 6_000, (api_key, version, peak, left)
    assert tried > 300
    assert refused > 100


def test_the_error_has_the_excess_in_bytes():
    with pytest.raises(ParsedSizeError) as refused:
        request_decoder(METADATA, 4)(names(1000), 1000)
    assert refused.value.excess_bytes > 50_000


def test_unknown_tagged_fields_are_charged():
    body = b"\0" + uvarint(1_000_000) + b"\x7f\0" * 1_000_000  # Metadata 12: topics with null names
    with pytest.raises(ParsedSizeError):
        request_decoder(18, 3)(b"\x01\x01" + body[1:], allowance(len(body)))


def test_a_header_has_a_thousand_tagged_fields_at_most():
    def header(count):
        return b"\0\x12\0\x03\0\0\0\x01\xff\xff" + uvarint(count) + b"\x7f\0" * count

    assert read_request_header(header(1000))[4] == len(header(1000))
    with pytest.raises(ProtocolError):
        read_request_header(header(2000))


def test_strings_are_bounded_as_in_kafka():
    def body(size):
        return b"\x02" + bytes(16) + uvarint(size + 1) + b"x" * size + b"\0\0\0\0"

    assert len(request_decoder(METADATA, 12)(body(32767)).topics[0].name) == 32767
    with pytest.raises(ProtocolError, match="too long"):
        request_decoder(METADATA, 12)(body(32768))
