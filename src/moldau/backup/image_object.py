"""The object of a cut that contains the metadata image. It consists of record batches with the records that
build the image."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.image_records import encode_record, records_after_topics, records_before_topics
from moldau.cluster.image.parts.configs import config_records
from moldau.cluster.image.parts.table import METADATA_RECORDS
from moldau.cluster.image.parts.topics import topic_records
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.metadata_log import RECORDS_A_TURN
from moldau.protocol.schema import Message
from moldau.records.batch import check_batch, iter_headers
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record, iter_records

__all__ = ["ImageEncoder", "decode_image"]

_PARTITIONS_A_BLOCK: Final = 1_000


class ImageEncoder:
    """Encodes successive images. Only the parts that changed since the previous image are encoded again."""

    def __init__(self) -> None:
        self._version = -1
        self._blocks: dict[object, _Block] = {}

    async def encode(self, image: MetadataImage) -> bytes:
        """Record batches that build the image. The event loop can run other tasks between two batches."""
        if image.metadata_version != self._version:
            self._version, self._blocks = image.metadata_version, {}
        content = bytearray(self._encoded(records_before_topics(image)))
        blocks: dict[object, _Block] = {}
        for key, source, records in _sources(image):
            block = self._blocks.get(key)
            # The entries of ``source`` that have not changed are the same objects as in the previous image.
            # Python compares entries by identity first, so this comparison is fast.
            if block is None or not (block.source is source or block.source == source):
                block = _Block(source, self._encoded(records()))
                await asyncio.sleep(0)
            blocks[key] = block
            content += block.encoded
        content += self._encoded(records_after_topics(image))
        self._blocks = blocks
        return bytes(content)

    def _encoded(self, records: Iterable[Message]) -> bytes:
        values = [encode_record(record, self._version) for record in records]
        batches = (values[at : at + RECORDS_A_TURN] for at in range(0, len(values), RECORDS_A_TURN))
        return b"".join(_batch(each) for each in batches)


class _Block(NamedTuple):
    """A part of an image, and its record batches."""

    source: object
    encoded: bytes


def _sources(image: MetadataImage) -> Iterator[tuple[object, object, Callable[[], Iterable[Message]]]]:
    """The parts of the image that change rarely. For each part, yields a key, the immutable object of the
    part, and a function that returns the part's records.
    """
    for topics in image.topics.by_name.chunks():
        if sum(len(topic.partitions) for topic in topics.values()) <= _PARTITIONS_A_BLOCK:
            yield id(topics), topics, partial(_records_of, topics)
            continue
        for topic in topics.values():
            for start in range(0, max(1, len(topic.partitions)), _PARTITIONS_A_BLOCK):
                some = topic.partitions[start : start + _PARTITIONS_A_BLOCK]
                key = (topic.topic_id, topic.name, start)
                yield key, some, partial(topic_records, topic, start, _PARTITIONS_A_BLOCK)
    for configs in image.configs.chunks():
        yield id(configs), configs, partial(config_records, configs)


def _records_of(topics: Mapping[str, Topic]) -> Iterator[Message]:
    return chain.from_iterable(topic_records(topic) for topic in topics.values())


def _batch(values: Sequence[bytes]) -> bytes:
    """A batch that begins at offset 0. Only the order of the batches matters, so every batch may begin at
    offset 0."""
    records = [Record(number, 0, None, value) for number, value in enumerate(values)]
    return build_batch(records, compression=Compression.ZSTD)


def decode_image(content: memoryview) -> list[Message]:
    """The records of an image. Raises ``KafkaError(corrupt_message)`` for a damaged batch, and
    ``MetadataError`` for a record that this version does not support.
    """
    found: list[Message] = []
    for position, header in iter_headers(content):
        check_batch(content, position)
        for record in iter_records(content[position : position + header.size_bytes]):
            assert record.value is not None
            found.append(METADATA_RECORDS.decode(record.value))
    return found
