"""A cache of decoded Fetch requests, and a fast encoder of Fetch responses.

An idle consumer repeats its request byte for byte, and many consumers send equal requests, so decoded
requests are cached by their bytes. For responses, this module packs the headers, and the records stay in the
buffers in which they arrived.

The compiled encoder handles every shape of a response. The encoder in this module handles only the usual
shape (no aborted transactions, no redirects). In this shape the fields around a partition's records need only
two ``struct`` calls.
"""

import functools
from collections.abc import Callable, Sequence
from struct import Struct

from moldau.protocol.compiler.decoding import decode_leading
from moldau.protocol.compiler.encoding import Encoder, encoder
from moldau.protocol.compiler.primitives import uvarint
from moldau.protocol.costs import UNBOUNDED
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from moldau.protocol.schema import parse_versions
from moldau.runtime.buffers import Buffer

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13

_REQUESTS_KEPT = 1024
_KEPT_BODY_BYTES = 512
_COUNT_MAX = 126
_pack_start = Struct(">ihiB").pack
_pack_topic_id = Struct(">16sB").pack
# The values of a partition, in this order: number of the partition, error code, high watermark, last stable
# offset, log start offset, no aborted transactions, preferred replica.
_pack_partition = Struct(">ihqqqBi").pack
_DEFAULTS = PartitionData()
_NO_EPOCH = _DEFAULTS.diverging_epoch
_NO_LEADER = _DEFAULTS.current_leader
_NO_SNAPSHOT = _DEFAULTS.snapshot_id


class _DecodedRequests(dict[bytes, FetchRequest]):
    """Decoded requests of one version, by the bytes of their bodies. Callers share the requests and must not
    change them."""

    def __init__(self, version: int) -> None:
        self._version = version

    def __missing__(self, body: bytes) -> FetchRequest:
        if len(self) >= _REQUESTS_KEPT:
            self.clear()
        found = self[body] = decode_leading(FetchRequest, self._version, body)
        return found


@functools.cache
def request_decoder(version: int) -> Callable[..., FetchRequest]:
    """Make the function that decodes Fetch requests of a version from 4 to 18."""
    if version not in parse_versions(FetchRequest.VERSIONS):
        raise ProtocolError(f"FetchRequest has no version {version} (it has {FetchRequest.VERSIONS})")
    decoded = _DecodedRequests(version)

    def decode(body: Buffer, left: int = UNBOUNDED, /) -> FetchRequest:
        if len(body) > _KEPT_BODY_BYTES:
            return decode_leading(FetchRequest, version, body, left)
        return decoded[bytes(body)]

    return decode


def encode_response(version: int, response: FetchResponse) -> list[Buffer]:
    """Encode a Fetch response of version 4 to 18.

    A partition's ``records`` may be a single buffer or several buffers. They are passed on unchanged, and
    never copied or joined.
    """
    return response_encoder(version)(response)


@functools.cache
def response_encoder(version: int) -> Encoder:
    """Make the function that ``encode_response`` calls."""
    if version not in parse_versions(FetchResponse.VERSIONS):
        raise ProtocolError(f"FetchResponse has no version {version} (it has {FetchResponse.VERSIONS})")
    compiled = encoder(FetchResponse, version)
    if version < FLEXIBLE_VERSION:
        return compiled
    by_id = version >= TOPIC_ID_VERSION

    def encode_fetch(response: FetchResponse) -> list[Buffer]:
        topics = response.responses
        count = len(topics)
        if count > _COUNT_MAX or response.node_endpoints:
            return compiled(response)
        out: list[Buffer] = []
        head = _pack_start(response.throttle_time_ms, response.error_code, response.session_id, count + 1)
        for topic in topics:
            partitions = topic.partitions
            count = len(partitions)
            if count > _COUNT_MAX:
                return compiled(response)
            if by_id:
                head += _pack_topic_id(topic.topic_id.bytes, count + 1)
            else:
                name = topic.topic.encode()
                head += uvarint(len(name) + 1) + name + uvarint(count + 1)
            rest = _encode_partitions(head, partitions, out)
            if rest is None:
                return compiled(response)
            head = rest + b"\0"
        out.append(head + b"\0")
        return out

    return encode_fetch


def _encode_partitions(head: bytes, partitions: Sequence[PartitionData], out: list[Buffer]) -> bytes | None:
    """Append partitions to ``out`` after ``head``. Returns the bytes after the partitions. Returns None if a
    partition has an unusual shape."""
    for partition in partitions:
        aborted = partition.aborted_transactions
        if (
            aborted
            or partition.current_leader is not _NO_LEADER
            or partition.diverging_epoch is not _NO_EPOCH
            or partition.snapshot_id is not _NO_SNAPSHOT
        ):
            return None
        head += _pack_partition(
            partition.partition_index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            0 if aborted is None else 1,
            partition.preferred_read_replica,
        )
        records = partition.records
        if not records:
            head += b"\0\0" if records is None else b"\1\0"
        elif records.__class__ is list or records.__class__ is tuple:
            size = len(records[0]) if len(records) == 1 else sum(map(len, records))
            out.append(head + uvarint(size + 1))
            out += records
            head = b"\0"
        else:
            out.append(head + uvarint(len(records) + 1))
            out.append(records)  # type: ignore[arg-type]
            head = b"\0"
    return head
