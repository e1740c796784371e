"""The image of the metadata as the object of a cut: record batches with the records that build it."""

import asyncio
from collections.abc import Sequence

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.metadata_log import RECORDS_A_TURN
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.records.batch import check_batch, iter_headers
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record, iter_records

__all__ = ["decode_image", "encode_image"]


async def encode_image(image: MetadataImage) -> bytes:
    """Record batches whose records build the image, in steps between which others have a turn."""
    content = bytearray()
    values: list[bytes] = []
    offset = 0
    for record in to_records(image):
        values.append(encode_record(record, image.metadata_version))
        if len(values) == RECORDS_A_TURN:
            content += _batch(offset, values)
            offset, values = offset + len(values), []
            await asyncio.sleep(0)
    if values:
        content += _batch(offset, values)
    return bytes(content)


def _batch(offset: int, values: Sequence[bytes]) -> bytes:
    records = [Record(offset + number, 0, None, value) for number, value in enumerate(values)]
    return build_batch(records, base_offset=offset, compression=Compression.ZSTD)


def decode_image(content: memoryview) -> list[Message]:
    """The records of an image. Raises ``KafkaError(corrupt_message)``, and ``MetadataError`` for a record
    that this version does not know.
    """
    found: list[Message] = []
    for position, header in iter_headers(content):
        check_batch(content, position)
        for record in iter_records(content[position : position + header.size_bytes]):
            assert record.value is not None
            found.append(r.RECORDS.decode(record.value))
    return found
