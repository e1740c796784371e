"""A cut: a consistent state of the cluster's own logs and of its metadata, and the objects that contain this
state. Pure.

=========================================== ==========================================================
key                                         content
=========================================== ==========================================================
``.moldau/backup/data/<generation>-…``      record batches of logs, bytes of snapshots, or the metadata
``.moldau/backup/cuts/<generation>-…``      a cut: every log with its pieces, as JSON, in one object
=========================================== ==========================================================

A cut has the checksums of all its pieces. The key of an object with data has the generation of the cluster
that wrote it, the time (milliseconds since the epoch), and the broker. The object of a cut is stored last.
Therefore a cut is complete if its object exists. The key of this object has the generation, the number of the
cut in that generation, the time, and the broker that made the cut. Cuts are ordered by generation and number,
because the clocks of brokers may differ.

*Order.* The logs are read in the order of :data:`STEPS`, and the metadata are read after the logs. This order
makes a cut consistent. If a cut contains a committed offset, it also contains the records before this offset.
If a cut shows that a batch has left the WAL, it also lists the remote segment with this batch. If a cut
contains records of a partition, it also contains the metadata of this partition.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from moldau.cluster.internal_topics import STATE_TOPICS
from moldau.protocol.partitions import PartitionKey

__all__ = [
    "CUTS_FOLDER",
    "DATA_FOLDER",
    "STEPS",
    "BrokenCutError",
    "ClusterCut",
    "CutName",
    "LogPiece",
    "LogPieces",
    "ObjectPart",
    "created_of",
    "cut_key",
    "data_key",
    "encode_cut",
    "parse_cut",
    "parse_cut_key",
]

CUTS_FOLDER: Final = ".moldau/backup/cuts/"
DATA_FOLDER: Final = ".moldau/backup/data/"

STEPS: Final = tuple(
    tuple(topic.name for topic in STATE_TOPICS.values() if topic.saved_in_step == step)
    for step in sorted({topic.saved_in_step for topic in STATE_TOPICS.values()})
)
"""The topics that a cut contains, in the order in which they are read. All partitions of the topics in one
step are read before the next step begins."""

FORMAT: Final = 1
DEFAULT_LEASE_MS: Final = 20_000
_TIME_DIGITS: Final = 13
_GENERATION_DIGITS: Final = 10


class BrokenCutError(ValueError):
    """The bytes of an object are not a valid cut."""


class ObjectPart(NamedTuple):
    """A range of bytes in an object, and the CRC-32C of these bytes."""

    object_key: str
    byte_offset: int
    size_bytes: int
    crc: int


class LogPiece(NamedTuple):
    """Consecutive records of a log, or a range of bytes in one of its snapshots."""

    part: ObjectPart
    base_offset: int
    """Offset of the first record. For a snapshot, it is the position of the first byte in the snapshot's
    file."""
    end_offset: int
    """Offset after the last record. For a snapshot, it is the end offset of the snapshot."""
    epoch: int
    """Leader epoch of the last record, or the epoch of the snapshot."""
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class LogPieces:
    """The pieces of a log in order. If the log has a snapshot, the pieces of the snapshot come first, and the
    pieces of records follow."""

    topic: str
    pieces: tuple[LogPiece, ...] = ()

    @property
    def end_offset(self) -> int:
        """Offset after the last saved record; 0 for a log without records."""
        return self.pieces[-1].end_offset if self.pieces else 0

    @property
    def epoch(self) -> int:
        return self.pieces[-1].epoch if self.pieces else -1

    @property
    def size_bytes(self) -> int:
        return sum(piece.part.size_bytes for piece in self.pieces)

    def extended(self, pieces: Sequence[LogPiece], from_offset: int) -> "LogPieces":
        """Replace the pieces that begin at or after ``from_offset`` by new pieces. Compaction may have
        removed the first records after ``from_offset``. The new pieces may therefore begin at a later
        offset."""
        kept = (each for each in self.pieces if each.is_snapshot or each.base_offset < from_offset)
        return replace(self, pieces=(*kept, *pieces))

    def problem(self) -> str | None:
        """The reason why the pieces do not form a log; None if they form one."""
        end_offset = 0
        for piece in self.pieces:
            if not piece.is_snapshot and piece.base_offset < end_offset:
                return f"records at {piece.base_offset} follow the end {end_offset}"
            end_offset = piece.end_offset
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCut:
    """The saved state of a cluster."""

    cluster_id: str
    created_ms: int
    """The time at which the work on the cut began, before the first log was read. It is measured by the clock
    of the broker that made the cut.
    """
    generation: int = 0
    """The number of times that the cluster was restored before this cut was made."""
    number: int = 0
    """One more than the number of the previous cut. This cut continues the previous cut."""
    lease_ms: int = DEFAULT_LEASE_MS
    """The time in ms after the beginning of a restore during which a node of the saved cluster can still
    write to the bucket.
    """
    metadata: ObjectPart
    """Values of the records from which the metadata image can be built (``image_records.to_records``)."""
    metadata_offset: int
    metadata_epoch: int
    logs: Mapping[PartitionKey, LogPieces] = field(default_factory=dict)

    def object_keys(self) -> set[str]:
        """The objects that a restore of this cut reads."""
        found = {piece.part.object_key for log in self.logs.values() for piece in log.pieces}
        return found | {self.metadata.object_key}


def data_key(generation: int, created_ms: int, broker_id: int, unique: str) -> str:
    """A key for data of a cut, which no other object has. ``unique`` must differ between the objects of a
    broker."""
    created = f"{created_ms:0{_TIME_DIGITS}d}"
    return f"{DATA_FOLDER}{generation:0{_GENERATION_DIGITS}d}-{created}-{broker_id}-{unique}"


class CutName(NamedTuple):
    """The parts of a cut's key. Cuts are sorted by these parts."""

    generation: int
    number: int
    created_ms: int
    broker_id: int
    unique: str


def cut_key(cut: ClusterCut, broker_id: int, unique: str) -> str:
    """The key of a cut that a broker has made. ``unique`` must differ between the cuts of a broker."""
    generation = f"{cut.generation:0{_GENERATION_DIGITS}d}"
    return f"{CUTS_FOLDER}{generation}-{cut.number:012d}-{cut.created_ms:013d}-{broker_id}-{unique}"


def parse_cut_key(key: str) -> CutName | None:
    """The parts of a cut's key; None if the key is not the key of a cut."""
    *numbers, unique = key.removeprefix(CUTS_FOLDER).split("-")
    is_cut = key.startswith(CUTS_FOLDER) and len(numbers) == 4
    if not is_cut or not all(each.isascii() and each.isdigit() for each in numbers):
        return None
    generation, number, created_ms, broker_id = map(int, numbers)
    return CutName(generation, number, created_ms, broker_id, unique)


def created_of(key: str) -> int | None:
    """The time in the key of an object with a cut's data; None if the key has no such time. Older keys begin
    with the time, without a generation."""
    for digits in key.rpartition("/")[2].split("-")[:2]:
        if len(digits) == _TIME_DIGITS and digits.isascii() and digits.isdigit():
            return int(digits)
    return None


def encode_cut(cut: ClusterCut) -> bytes:
    """The content of a cut's object: a line of JSON, and a line with the CRC-32C of the first line."""
    document = {
        "format": FORMAT,
        "cluster_id": cut.cluster_id,
        "created_ms": cut.created_ms,
        "generation": cut.generation,
        "number": cut.number,
        "lease_ms": cut.lease_ms,
        "metadata": {"offset": cut.metadata_offset, "epoch": cut.metadata_epoch, "part": cut.metadata},
        "logs": [
            {
                "topic": log.topic,
                "topic_id": log_id.topic_id.hex,
                "partition": log_id.partition,
                "pieces": [
                    [*each.part, each.base_offset, each.end_offset, each.epoch, each.is_snapshot]
                    for each in log.pieces
                ],
            }
            for log_id, log in sorted(cut.logs.items(), key=lambda item: (item[1].topic, item[0].partition))
        ],
    }
    line = json.dumps(document, separators=(",", ":")).encode()
    return line + f"\n{crc32c(line):08x}\n".encode()


def parse_cut(content: bytes | memoryview) -> ClusterCut:
    """Parse the object of a cut. Raises :class:`BrokenCutError`."""
    line, _, rest = bytes(content).partition(b"\n")
    if rest != f"{crc32c(line):08x}\n".encode():
        raise BrokenCutError("its checksum is wrong")
    try:
        return _cut_of(json.loads(line))
    except BrokenCutError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BrokenCutError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _cut_of(document: Any) -> ClusterCut:
    if document.get("format") != FORMAT:
        raise BrokenCutError(f"it has format {document.get('format')}; {FORMAT} is known")
    metadata = document["metadata"]
    return ClusterCut(
        cluster_id=document["cluster_id"],
        created_ms=document["created_ms"],
        generation=document["generation"],
        number=document["number"],
        lease_ms=document.get("lease_ms", DEFAULT_LEASE_MS),
        metadata=ObjectPart(*metadata["part"]),
        metadata_offset=metadata["offset"],
        metadata_epoch=metadata["epoch"],
        logs={
            PartitionKey(UUID(hex=log["topic_id"]), log["partition"]): LogPieces(
                log["topic"], tuple(_piece(row) for row in log["pieces"])
            )
            for log in document["logs"]
        },
    )


def _piece(row: Sequence[Any]) -> LogPiece:
    return LogPiece(ObjectPart(*row[:4]), *row[4:])
