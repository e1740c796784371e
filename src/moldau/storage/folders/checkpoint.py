"""Kafka's checkpoints in text form. A checkpoint has a line with the version, a line with the number of
entries, and one line for each entry.

The files ``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint`` and
``replication-offset-checkpoint`` have three columns (``topic partition offset``). The file
``leader-epoch-checkpoint`` has two columns. A file is replaced atomically, so after a crash it has either the
old or the new content.
"""

from collections.abc import Iterable, Mapping

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Disk

__all__ = [
    "CheckpointError",
    "format_checkpoint",
    "parse_checkpoint",
    "read_offset_checkpoint",
    "write_offset_checkpoint",
]

_VERSION = 0
_OFFSET_MAX = 2**63 - 1
_REASON_MAX = 200


class CheckpointError(Exception):
    """A checkpoint is unreadable. The message names the file and the line.

    A reason that quotes a long line is shortened.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        if len(reason) > _REASON_MAX:
            reason = f"{reason[:_REASON_MAX]} …"
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def format_checkpoint(rows: Iterable[Iterable[object]]) -> bytes:
    """Return the content of a checkpoint with these rows."""
    lines = [" ".join(map(str, row)) for row in rows]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def parse_checkpoint(content: bytes, path: str, columns: int) -> list[list[str]]:
    """The rows of a checkpoint. Each row has ``columns`` words. An empty file has no rows.

    Raises :class:`CheckpointError` if the content is malformed.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, content[: error.start].count(b"\n") + 1, "not UTF-8") from None
    if not lines:
        return []
    version = parse_number(lines[0], path, 1)
    if version != _VERSION:
        raise CheckpointError(path, 1, f"version {version}, expected {_VERSION}")
    if len(lines) == 1:
        return []
    count = parse_number(lines[1], path, 2)
    rows = []
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if len(words) != columns:
            raise CheckpointError(path, number, f"{len(words)} words, expected {columns}: {line!r}")
        rows.append(words)
    if len(rows) != count:
        raise CheckpointError(path, 2, f"{count} entries announced, {len(rows)} found")
    return rows


def parse_number(word: str, path: str, line: int, *, minimum: int = 0) -> int:
    """Parse a decimal number of up to 63 bits. Raises :class:`CheckpointError` if the text is not such a
    number."""
    digits = word[1:] if word.startswith("-") else word
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise CheckpointError(path, line, f"{word!r} is not a number")
    value = int(word)
    if not minimum <= value <= _OFFSET_MAX:
        raise CheckpointError(path, line, f"{value} is out of range")
    return value


def write_offset_checkpoint(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file durably. This call blocks."""
    rows = ((topic, partition, offset) for (topic, partition), offset in offsets.items())
    disk.write_atomically(path, format_checkpoint(rows))


def read_offset_checkpoint(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets in a file. The result is empty when the file does not exist. Raises
    :class:`CheckpointError` if the content is malformed. This call blocks."""
    try:
        content = disk.read(path)
    except FileNotFoundError:
        return {}
    offsets = {}
    for line, (topic, partition, offset) in enumerate(parse_checkpoint(content, path, 3), start=3):
        key = TopicPartition(topic, parse_number(partition, path, line))
        offsets[key] = parse_number(offset, path, line)
    return offsets
