"""Produce by hand: the one request that carries nearly all bytes, and its answer.

Requests are read by offsets into the buffer: with one partition, two ``struct`` calls read everything before
the records, which stay a view of the input. Whatever does not have the expected shape (tagged fields,
long lengths, malformed bytes) is read by the compiled decoder, which also finds the error to raise.
With one partition this halves the time to read (compiled: 2.1 µs) and takes a third off the answer (0.9 µs).
"""

import functools
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any

from moldau.protocol.decoding import decode_leading
from moldau.protocol.encoding import Encoder, encoder
from moldau.protocol.errors import ProtocolError
from moldau.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.protocol.primitives import UUIDS
from moldau.protocol.schema import ZERO_UUID, Buffer, parse_versions
from moldau.runtime.errors import ErrorCode

RequestDecoder = Callable[[Buffer], ProduceRequest]

FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13

_new = object.__new__
_NO_LEADER = PartitionProduceResponse().current_leader
# Null transactional id, acks, timeout, number of topics plus one, length of the first name plus one.
_unpack_start = Struct(">BhiBB").unpack_from
# ..., number of topics plus one, first topic's id, number of its partitions plus one, index, records' length.
_unpack_id = Struct(">BhiB16sBiBBBB").unpack_from
_unpack_legacy_start = Struct(">hhiih").unpack_from


class _NameUnpackers(dict[int, Callable[..., tuple[Any, ...]]]):
    """Unpackers of a name and what follows it, by the name's size in bytes (at most 250 of them)."""

    def __init__(self, following: str) -> None:
        self._following = following

    def __missing__(self, size: int) -> Callable[..., tuple[Any, ...]]:
        unpack = self[size] = Struct(f">{size}s{self._following}").unpack_from
        return unpack


# Name, number of partitions plus one, index, the first bytes of the records' length plus one.
_unpack_name = _NameUnpackers("BiBBBB")
_unpack_legacy_name = _NameUnpackers("iii")


def decode_request(version: int, body: Buffer) -> ProduceRequest:
    """Decode a Produce request of version 3 to 13; ``records`` is a view of ``body``."""
    return request_decoder(version)(body)


@functools.cache
def request_decoder(version: int) -> RequestDecoder:
    """The function behind ``decode_request``."""
    if version not in parse_versions(ProduceRequest.VERSIONS):
        raise ProtocolError(f"ProduceRequest has no version {version} (it has {ProduceRequest.VERSIONS})")
    compiled = functools.partial(decode_leading, ProduceRequest, version)
    if version >= TOPIC_ID_VERSION:
        return _reader_by_id(compiled)
    return _reader(compiled) if version >= FLEXIBLE_VERSION else _legacy_reader(compiled)


def _reader(compiled: RequestDecoder) -> RequestDecoder:
    """Versions 9 to 12."""

    def read(body: Buffer) -> ProduceRequest:
        view = body if isinstance(body, memoryview) else memoryview(body)
        try:
            transactional, acks, timeout_ms, topics, name_size = _unpack_start(view)
            if transactional or topics != 2 or not 0 < name_size < 128:
                return compiled(view)
            name, partitions, index, a, b, c, d = _unpack_name[name_size - 1](view, 9)
            # The records' length plus one is a varint of two to four bytes.
            if partitions != 2 or a < 128:
                return compiled(view)
            start = name_size + 15
            if b < 128:
                stop = start + (a & 127 | b << 7) - 1
            elif c < 128:
                start += 1
                stop = start + (a & 127 | (b & 127) << 7 | c << 14) - 1
            elif d < 128:
                start += 2
                stop = start + (a & 127 | (b & 127) << 7 | (c & 127) << 14 | d << 21) - 1
            else:
                return compiled(view)
            # Three empty sections of tagged fields must follow, and nothing else.
            if stop + 3 != len(view) or view[stop] or view[stop + 1] or view[stop + 2]:
                return compiled(view)
            return _request(acks, timeout_ms, ZERO_UUID, name.decode(), index, view[start:stop])
        except (StructError, IndexError, ValueError):
            return compiled(view)

    return read


def _reader_by_id(compiled: RequestDecoder) -> RequestDecoder:
    """Version 13."""

    def read(body: Buffer) -> ProduceRequest:
        view = body if isinstance(body, memoryview) else memoryview(body)
        try:
            transactional, acks, timeout_ms, topics, topic_id, partitions, index, a, b, c, d = _unpack_id(
                view
            )
            if transactional or topics != 2 or partitions != 2 or a < 128:
                return compiled(view)
            if b < 128:
                start = 31
                stop = 30 + (a & 127 | b << 7)
            elif c < 128:
                start = 32
                stop = 31 + (a & 127 | (b & 127) << 7 | c << 14)
            elif d < 128:
                start = 33
                stop = 32 + (a & 127 | (b & 127) << 7 | (c & 127) << 14 | d << 21)
            else:
                return compiled(view)
            if stop + 3 != len(view) or view[stop] or view[stop + 1] or view[stop + 2]:
                return compiled(view)
            return _request(acks, timeout_ms, UUIDS[topic_id], "", index, view[start:stop])
        except (StructError, IndexError):
            return compiled(view)

    return read


def _legacy_reader(compiled: RequestDecoder) -> RequestDecoder:
    """Versions 3 to 8."""

    def read(body: Buffer) -> ProduceRequest:
        view = body if isinstance(body, memoryview) else memoryview(body)
        try:
            transactional, acks, timeout_ms, topics, name_size = _unpack_legacy_start(view)
            if transactional != -1 or topics != 1 or not 0 <= name_size < 250:
                return compiled(view)
            name, partitions, index, size = _unpack_legacy_name[name_size](view, 14)
            start = name_size + 26
            if partitions != 1 or size < 0 or start + size != len(view):
                return compiled(view)
            return _request(acks, timeout_ms, ZERO_UUID, name.decode(), index, view[start:])
        except (StructError, IndexError, ValueError):
            return compiled(view)

    return read


def _request(
    acks: int, timeout_ms: int, topic_id: Any, name: str, index: int, records: memoryview
) -> ProduceRequest:
    # Set field by field: a third of the time of calling three classes with keywords.
    partition: Any = _new(PartitionProduceData)
    partition.index = index
    partition.records = records
    topic: Any = _new(TopicProduceData)
    topic.topic_id = topic_id
    topic.name = name
    topic.partition_data = (partition,)
    request: Any = _new(ProduceRequest)
    request.transactional_id = None
    request.acks = acks
    request.timeout_ms = timeout_ms
    request.topic_data = (topic,)
    return request  # type: ignore[no-any-return]


def appended_response(
    name: str, topic_id: Any, index: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
) -> ProduceResponse:
    """The response to a request whose one partition was appended to; quicker than three constructors."""
    row: Any = _new(PartitionProduceResponse)
    row.index = index
    row.error_code = ErrorCode.none
    row.base_offset = base_offset
    row.log_append_time_ms = log_append_time_ms
    row.log_start_offset = log_start_offset
    row.record_errors = ()
    row.error_message = None
    row.current_leader = _NO_LEADER
    topic: Any = _new(TopicProduceResponse)
    topic.topic_id = topic_id
    topic.name = name
    topic.partition_responses = (row,)
    response: Any = _new(ProduceResponse)
    response.responses = (topic,)
    response.throttle_time_ms = 0
    response.node_endpoints = ()
    return response  # type: ignore[no-any-return]


def encode_response(version: int, response: ProduceResponse) -> list[Buffer]:
    """Encode a Produce response of version 3 to 13."""
    return response_encoder(version)(response)


@functools.cache
def response_encoder(version: int) -> Encoder:
    """The function behind ``encode_response``: by hand for one partition without an error's details."""
    if version not in parse_versions(ProduceResponse.VERSIONS):
        raise ProtocolError(f"ProduceResponse has no version {version} (it has {ProduceResponse.VERSIONS})")
    compiled = encoder(ProduceResponse, version)
    if version < FLEXIBLE_VERSION:
        return compiled
    by_id = version >= TOPIC_ID_VERSION
    pack_by_id = Struct(">B16sBihqqqBxxxix").pack
    packers: dict[int, Callable[..., bytes]] = {}

    def encode_produce(response: ProduceResponse) -> list[Buffer]:
        topics = response.responses
        if len(topics) != 1 or response.node_endpoints:
            return compiled(response)
        topic = topics[0]
        partitions = topic.partition_responses
        if len(partitions) != 1:
            return compiled(response)
        one = partitions[0]
        if one.error_message is not None or one.record_errors or one.current_leader is not _NO_LEADER:
            return compiled(response)
        if by_id:
            return [
                pack_by_id(
                    *(2, topic.topic_id.bytes, 2, one.index, one.error_code, one.base_offset),
                    *(one.log_append_time_ms, one.log_start_offset, 1, response.throttle_time_ms),
                )
            ]
        name = topic.name.encode()
        size = len(name)
        pack = packers.get(size)
        if pack is None:
            if size > 126:
                return compiled(response)
            pack = packers[size] = Struct(f">BB{size}sBihqqqBxxxix").pack
        return [
            pack(
                *(2, size + 1, name, 2, one.index, one.error_code, one.base_offset),
                *(one.log_append_time_ms, one.log_start_offset, 1, response.throttle_time_ms),
            )
        ]

    return encode_produce
