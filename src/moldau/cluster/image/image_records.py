"""Converts an image to the records of a snapshot. The level of metadata.version determines the versions of
the records.
"""

from collections.abc import Iterator

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.parts.configs import CONFIGS
from moldau.cluster.image.parts.table import METADATA_RECORDS, PARTS
from moldau.cluster.image.parts.topics import TOPICS
from moldau.protocol.records.schema import latest_version
from moldau.protocol.schema import Message


def record_version(record: Message, metadata_version: int) -> int:
    """The version in which ``record`` is written. It is the newest version that every reader of this level
    understands."""
    for level, version in PARTS.versions.get(type(record), ()):
        if metadata_version >= level:
            return version
    return latest_version(type(record))


def encode_record(record: Message, metadata_version: int) -> bytes:
    """Return the encoded value of a record for the metadata log of a cluster at this level."""
    return METADATA_RECORDS.encode(record, record_version(record, metadata_version))


def to_records(image: MetadataImage) -> Iterator[Message]:
    """Return records that build ``image`` from an empty image, in the same order on every node.

    ``metadata.version`` comes first, because it determines the versions of the other records.
    """
    return PARTS.records(image)


def records_before_topics(image: MetadataImage) -> Iterator[Message]:
    """Make the records of the parts that come before the topics in a snapshot."""
    for part in PARTS.parts[: PARTS.parts.index(TOPICS)]:
        yield from part.to_records(part.of(image))


def records_after_topics(image: MetadataImage) -> Iterator[Message]:
    """Make the records of the parts that come after the topics in a snapshot, except the configs."""
    for part in PARTS.parts[PARTS.parts.index(TOPICS) + 1 :]:
        if part is not CONFIGS:
            yield from part.to_records(part.of(image))
