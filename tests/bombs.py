"""Batches that become large or contain many records when they are decompressed."""

from moldau.records import Compression, Record, build_batch
from moldau.records.batch import BatchHeader, parse_header
from moldau.records.compression import compress
from moldau.records.rewriting import assemble_batch
from moldau.records.varint import encode_varint

TINY_RECORD = b"\x0c\0\0\0\x01\x01\0"
"""The bytes of a record without key and value. A batch repeats these bytes, so all its records have the
relative offset 0. If a broker stores the batch in another codec, it must give the records new relative
offsets."""


def tiny_records(codec: Compression, count: int, now_ms: int, max_timestamp_ms: int | None = None) -> bytes:
    """A batch of ``count`` records of seven bytes. With ``max_timestamp_ms``, the header of the batch has
    this false max timestamp."""
    payload = compress(codec, TINY_RECORD * count)
    latest_ms = now_ms if max_timestamp_ms is None else max_timestamp_ms
    return assemble_batch(_header(now_ms, count), int(codec), now_ms, latest_ms, count, payload)


def many_headers(codec: Compression, records_count: int, headers_count: int, now_ms: int) -> bytes:
    """A batch whose records have a key, no value, and many headers of two bytes each."""
    body = b"\0\0\0\x02k\x01" + encode_varint(headers_count) + b"\0\x01" * headers_count
    payload = compress(codec, (encode_varint(len(body)) + body) * records_count)
    return assemble_batch(_header(now_ms, records_count), int(codec), now_ms, now_ms, records_count, payload)


def large_record(codec: Compression, size_bytes: int, now_ms: int) -> bytes:
    """A batch of one record with ``size_bytes`` of zeros."""
    return build_batch([Record(0, now_ms, b"key", bytes(size_bytes))], compression=codec)


def _header(now_ms: int, count: int) -> BatchHeader:
    header = parse_header(build_batch([Record(0, now_ms, None, None)]))
    return header._replace(last_offset_delta=count - 1)
