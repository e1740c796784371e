"""Captured requests of real clients. Our codec decodes each request and encodes it again, and the test
compares the bytes.

Each file in ``captures/`` has the requests of one client. Each line is one request frame in hex, without its
length. There is one line for every API and version that the client used with a node.
"""

from pathlib import Path

import pytest

from moldau.protocol.codec import decode_request, encode_request
from moldau.protocol.framing import encode_request_header, parse_request_header
from moldau.protocol.messages.metadata import MetadataRequest

CAPTURES = sorted(Path(__file__).with_name("captures").glob("*.hex"))

FRAMES = [
    pytest.param(path.stem, bytes.fromhex(line), id=f"{path.stem}-{line[:4]}-{line[4:8]}")
    for path in CAPTURES
    for line in path.read_text().split()
]


def surplus_bytes(client: str, message: object) -> int:
    """Bytes after the end of the message. librdkafka adds some bytes when it requests all topics."""
    asks_for_all = isinstance(message, MetadataRequest) and message.topics is None
    return 3 if client == "librdkafka" and asks_for_all else 0


@pytest.mark.parametrize(("client", "frame"), FRAMES)
def test_a_request_comes_back_as_it_was_sent(client: str, frame: bytes) -> None:
    header, position = parse_request_header(memoryview(frame))
    body = frame[position:]
    message = decode_request(header.api_key, header.api_version, memoryview(body))
    again = b"".join(encode_request(header.api_key, header.api_version, message))
    assert again == body[: len(body) - surplus_bytes(client, message)]
    assert encode_request_header(header) == frame[:position]


def test_every_client_is_captured() -> None:
    names = {path.stem for path in CAPTURES}
    assert names == {"aiokafka", "java", "kafka-python", "kafkajs", "kcat", "librdkafka", "platformatic"}
