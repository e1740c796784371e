"""``partition.metadata``: the file with the topic id of a partition's folder."""

import base64
import uuid
from typing import Final

from moldau.runtime.files.disk import Disk
from moldau.storage.folders.file_names import PARTITION_METADATA

_VERSION: Final = 0
_MISREAD_MAX: Final = 4
"""Maximum number of wrong characters in a damaged id, which has 22 characters. Two random ids have on average
less than one equal character."""


class MalformedMetadataError(Exception):
    """The file has neither Kafka's format nor Moldau's format."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}. It holds the topic's id: restore it from a backup, or see 'Damaged"
            " files' in docs/operations.md."
        )


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's text form of an id: 22 characters of base64url."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def decode_topic_id(text: str) -> uuid.UUID:
    """Decode an id. Raises ``ValueError`` if the text is not 16 bytes in base64url."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def is_misread(found: uuid.UUID, wanted: uuid.UUID) -> bool:
    """Whether ``found`` is probably the id ``wanted`` in which the disk has changed a few bytes. A random id
    would differ in more characters."""
    if wanted.version != 4 or found == wanted:
        return False
    pairs = zip(encode_topic_id(found), encode_topic_id(wanted), strict=True)
    return sum(one != other for one, other in pairs) <= _MISREAD_MAX


def format_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the content of the file for a topic id."""
    return f"version: {_VERSION}\ntopic_id: {encode_topic_id(topic_id)}\n".encode("ascii")


def write_partition_metadata(disk: Disk, folder: str, topic_id: uuid.UUID) -> None:
    """Write the file durably."""
    disk.write_atomically(f"{folder}/{PARTITION_METADATA}", format_partition_metadata(topic_id))


def read_partition_metadata(disk: Disk, folder: str) -> uuid.UUID | None:
    """The topic id; ``None`` when the file does not exist. Raises :class:`MalformedMetadataError` if the
    content is malformed."""
    path = f"{folder}/{PARTITION_METADATA}"
    try:
        text = disk.read(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if int(fields["version"]) != _VERSION:
            raise MalformedMetadataError(path, f"unknown version {fields['version']}")
        return decode_topic_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise MalformedMetadataError(path, f"{type(error).__name__}: {error}") from error
